// The batch of the greatest value, against every batch that there is.
#include "sched/mechanisms/hybrid_knapsack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "base/random.h"

namespace kvasir::test {
namespace {

using Candidates = std::vector<HybridCandidate>;

constexpr HybridForm kNone = HybridForm::kNone;
constexpr HybridForm kX = HybridForm::kX;
constexpr HybridForm kKv = HybridForm::kKv;

double value_of(const HybridCandidate& c, HybridForm form) {
  return form == kNone ? 0 : (form == kKv ? c.value : c.value - c.penalty);
}
uint64_t bytes_of(const HybridCandidate& c, HybridForm form) {
  return form == kNone ? 0 : (form == kKv ? c.kv_bytes : c.x_bytes);
}

// (bytes, value) of every choice among some candidates that fits.
std::vector<std::pair<uint64_t, double>> all_choices(const HybridCandidate* begin, const HybridCandidate* end,
                                                     uint64_t room) {
  std::vector<std::pair<uint64_t, double>> out = {{0, 0.0}};
  for (const HybridCandidate* c = begin; c != end; ++c) {
    const size_t before = out.size();
    for (HybridForm form : {kX, kKv}) {
      if (form == kX && c->x_bytes == 0) continue;
      for (size_t i = 0; i < before; ++i) {
        const uint64_t bytes = out[i].first + bytes_of(*c, form);
        if (bytes <= room) out.emplace_back(bytes, out[i].second + value_of(*c, form));
      }
    }
  }
  return out;
}

// By all choices of the two halves, each of the first with the best that fits beside it.
double best_value(const Candidates& all, uint64_t room) {
  const HybridCandidate* middle = all.data() + all.size() / 2;
  auto a = all_choices(all.data(), middle, room), b = all_choices(middle, all.data() + all.size(), room);
  std::sort(b.begin(), b.end());
  for (size_t i = 1; i < b.size(); ++i) b[i].second = std::max(b[i].second, b[i - 1].second);
  double best = 0;
  for (const auto& [bytes, value] : a) {
    const auto it = std::upper_bound(b.begin(), b.end(), std::pair{room - bytes, 1e300});
    best = std::max(best, value + std::prev(it)->second);
  }
  return best;
}

// What a choice says of itself is so, and fits.
void expect_consistent(const Candidates& all, uint64_t room, const HybridChoice& choice) {
  ASSERT_EQ(choice.forms.size(), all.size());
  double value = 0;
  uint64_t bytes = 0;
  size_t taken = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    value += value_of(all[i], choice.forms[i]);
    bytes += bytes_of(all[i], choice.forms[i]);
    taken += choice.forms[i] != kNone;
    EXPECT_TRUE(choice.forms[i] != kX || all[i].x_bytes > 0) << i;
  }
  EXPECT_LE(bytes, room);
  EXPECT_NEAR(value, choice.value, 1e-9 * (1 + value));
  EXPECT_EQ(choice.order.size(), taken);
}

TEST(HybridKnapsack, WithRoomForAllEveryoneIsKvInTheOrderOfValueByTheByte) {
  const Candidates all = {{2, 0.1, 400, 200}, {3, 0.1, 300, 150}, {1, 0.4, 1000, 500}};
  const HybridChoice choice = choose_batch(all, 1700);
  EXPECT_EQ(choice.forms, (std::vector{kKv, kKv, kKv}));
  EXPECT_EQ(choice.order, (std::vector<uint32_t>{1, 0, 2}));
  EXPECT_DOUBLE_EQ(choice.value, 6);
}

// Densities by hand, a thousandth of a byte: X of the first (2 - 0.4) / 200 = 8, its upgrade 0.4 / 200 = 2;
// of the second 3.5 and 0.5.
TEST(HybridKnapsack, AnUpgradeComesWhereItsDensityStands) {
  const Candidates all = {{2, 0.4, 400, 200}, {1.5, 0.1, 600, 400}};
  EXPECT_EQ(choose_batch(all, 599).forms, (std::vector{kKv, kNone})) << "400 do not fit beside 200";
  EXPECT_EQ(choose_batch(all, 600).forms, (std::vector{kX, kX}));
  EXPECT_EQ(choose_batch(all, 799).forms, (std::vector{kX, kX})) << "the first upgrade is a misfit";
  EXPECT_EQ(choose_batch(all, 800).forms, (std::vector{kKv, kX}));
  EXPECT_EQ(choose_batch(all, 1000).forms, (std::vector{kKv, kKv}));
}

// h = 1/2: X is a candidate where the penalty is at most half of the value (Section 5).
TEST(HybridKnapsack, WhereItsPenaltyIsTooGreatThereIsNoX) {
  EXPECT_EQ(choose_batch(Candidates{{2, 1, 400, 200}}, 399).forms, (std::vector{kX}));
  // What does not fit as K and V is taken as X while it is worth anything.
  EXPECT_EQ(choose_batch(Candidates{{2, 1.9, 400, 200}}, 399).forms, (std::vector{kX}));
  EXPECT_EQ(choose_batch(Candidates{{2, 2, 400, 200}}, 399).forms, (std::vector{kNone}));
  // Beside another that leaves no room for K and V.
  const Candidates two = {{9, 9, 400, 200}, {2, 1.01, 400, 200}};
  EXPECT_EQ(choose_batch(two, 700).forms, (std::vector{kKv, kNone}));
  const Candidates kind = {{9, 9, 400, 200}, {2, 1, 400, 200}};
  EXPECT_EQ(choose_batch(kind, 700).forms, (std::vector{kKv, kX}));
}

TEST(HybridKnapsack, WhereXIsNoSmallerItIsNeverChosen) {
  for (uint64_t x : {uint64_t{0}, uint64_t{400}, uint64_t{800}}) {
    const Candidates all = {{2, 0, 400, x}, {1, 0, 400, x}};
    EXPECT_EQ(choose_batch(all, 500).forms, (std::vector{kKv, kNone})) << x;
  }
}

TEST(HybridKnapsack, WhatDoesNotFitAloneIsLeftOutBeforehand) {
  const Candidates all = {{1.1, 0, 1, 0}, {1000, 0, 1000, 0}, {8.9, 0, 9, 0}};
  const HybridChoice choice = choose_batch(all, 10);
  EXPECT_EQ(choice.forms, (std::vector{kKv, kNone, kKv}));
  EXPECT_DOUBLE_EQ(choice.value, 10);
}

TEST(HybridKnapsack, TheFirstMisfitAloneWhereItIsWorthMore) {
  const Candidates all = {{2, 0, 1, 0}, {10, 0, 10, 0}};
  const HybridChoice choice = choose_batch(all, 10);
  EXPECT_EQ(choice.forms, (std::vector{kNone, kKv}));
  EXPECT_EQ(choice.order, (std::vector<uint32_t>{1}));
}

TEST(HybridKnapsack, OfEqualsTheEarlierComesFirst) {
  const Candidates all(5, HybridCandidate{1, 0.2, 100, 50});
  const HybridChoice choice = choose_batch(all, 330);
  EXPECT_EQ(choice.order, (std::vector<uint32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(choice.forms, (std::vector{kKv, kX, kX, kX, kX}));
}

// Where X, its upgrade and K and V are equally dense the quotients differ by their rounding only.
TEST(HybridKnapsack, AnUpgradeNeverComesBeforeItsX) {
  Random random(5);
  for (int n = 0; n < 20'000; ++n) {
    const auto kv = static_cast<uint64_t>(random.between(2, 1 << 20));
    const auto x = static_cast<uint64_t>(random.between(1, static_cast<int64_t>(kv) - 1));
    const double value = random.unit() + 0.01;
    const double penalty = value * (1 - static_cast<double>(x) / static_cast<double>(kv));
    EXPECT_EQ(choose_batch(Candidates{{value, penalty, kv, x}}, kv).forms, (std::vector{kKv}));
  }
}

TEST(HybridKnapsack, BesideTheFirstMisfitTheOthersAsTheyFit) {
  const Candidates all = {{2, 0, 1, 0}, {10, 0, 9, 0}, {1, 0, 1, 0}};  // 2 + 1 of 10, or 10 and one of them
  const HybridChoice choice = choose_batch(all, 9);
  EXPECT_EQ(choice.forms, (std::vector{kNone, kKv, kNone}));
  const Candidates more = {{2, 0, 2, 0}, {8, 0, 9, 0}, {0.5, 0, 1, 0}};
  EXPECT_EQ(choose_batch(more, 10).forms, (std::vector{kNone, kKv, kKv}));
}

TEST(HybridKnapsack, NoCandidateOrNoRoom) {
  EXPECT_TRUE(choose_batch({}, 10).order.empty());
  EXPECT_EQ(choose_batch(Candidates{{1, 0, 1, 0}}, 0).forms, (std::vector{kNone}));
  EXPECT_EQ(choose_batch(Candidates{{0, 0, 1, 0}, {-1, 0, 1, 0}}, 9).forms, (std::vector{kNone, kNone}));
}

// The published bound, for any sizes of X: that it is half, and how far from half it stays.
TEST(HybridKnapsack, AtLeastHalfOfTheBest) {
  Random random(11);
  double least = 1, sum = 0;
  uint64_t several = 0;
  constexpr int kInstances = 6000;
  for (int n = 0; n < kInstances; ++n) {
    const auto count = static_cast<size_t>(random.between(1, 12));
    const double h = random.unit() < 0.5 ? 0.5 : 0.1 + 0.85 * random.unit();
    const double heavy = random.unit() < 0.5 ? 40 : 1000;  // the largest beside the smallest
    Candidates all;
    uint64_t sizes = 0;
    for (size_t i = 0; i < count; ++i) {
      const auto kv = static_cast<uint64_t>(1 + heavy * random.unit() * random.unit());
      const double value = 0.001 + random.unit() * (random.unit() < 0.2 ? 50 : 2);
      const auto x = random.unit() < 0.1 ? 0 : std::max<uint64_t>(1, static_cast<uint64_t>(h * double(kv)));
      all.push_back({value, value * 1.3 * random.unit() * random.unit(), kv, x});
      sizes += kv;
    }
    const auto room = static_cast<uint64_t>(1 + 1.1 * random.unit() * static_cast<double>(sizes));
    const HybridChoice choice = choose_batch(all, room);
    expect_consistent(all, room, choice);
    const double best = best_value(all, room);
    if (best == 0) continue;
    ++several;
    const double ratio = choice.value / best;
    ASSERT_LE(ratio, 1 + 1e-9);
    least = std::min(least, ratio);
    sum += ratio;
  }
  std::printf("%llu instances: %.4f of the best in the mean, %.4f at the least\n",
              static_cast<unsigned long long>(several), sum / static_cast<double>(several), least);
  EXPECT_GE(least, 0.5);
  EXPECT_LT(least, 1) << "or these instances ask for nothing";
  EXPECT_GT(several, kInstances * 9 / 10);
}

}  // namespace
}  // namespace kvasir::test
