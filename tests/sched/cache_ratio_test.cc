// How many requests decode together and which share of their histories leaves the device: the closed form
// against every b with a grid of r, and against the published solver.
#include "sched/mechanisms/cache_ratio.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <utility>
#include <vector>

#include "base/random.h"

namespace kvasir::test {
namespace {

// 10 ms a step, 1 ms a request, 0.1 ms a token that is recomputed.
RatioProblem plain(std::vector<double> lengths, double device_tokens) {
  RatioProblem p;
  p.lengths = std::move(lengths);
  p.cost.compute = {10e-3, 1e-3, 0, 0.1e-3, 0};
  p.device_tokens = device_tokens;
  return p;
}

// What fits, written as the problem states it; `slack` of a token or second allowed.
bool fits(const RatioProblem& p, uint32_t b, double r, double slack) {
  double kept = 0, gone = 0;
  for (uint32_t i = 0; i < b; ++i) {
    const double held = p.held_back.empty() ? 0 : std::min(p.held_back[i], p.lengths[i]);
    const double leaves = (p.lengths[i] - held) * r;
    gone += leaves;
    kept += p.lengths[i] - leaves + p.overhead * leaves;
  }
  const double room = slack * (1 + p.device_tokens);
  return kept <= p.device_tokens + room && gone <= p.passing_tokens + room &&
         gone * (1 - p.again_share) <= p.slower_tokens + room &&
         gone * p.again_share <= p.again_tokens + room && r >= 0 && r <= std::min(1.0, p.greatest_ratio) &&
         ratio_seconds(p, b, r) <= p.most_seconds * (1 + slack);
}

void expect_choice(const RatioChoice& c, uint32_t requests, double ratio, double seconds) {
  EXPECT_EQ(c.requests, requests);
  EXPECT_DOUBLE_EQ(c.ratio, ratio);
  EXPECT_DOUBLE_EQ(c.seconds, seconds);
}

double rate(const RatioChoice& c) {
  return c.requests == 0 ? 0 : c.requests / c.seconds;
}

// The best b / T of all b and `grid` + 1 ratios. Sums are made for each b anew: this is not the code under
// test.
RatioChoice by_grid(const RatioProblem& p, uint32_t grid) {
  RatioChoice best;
  for (uint32_t b = 1; b <= p.lengths.size(); ++b) {
    for (uint32_t k = 0; k <= grid; ++k) {
      const double r = static_cast<double>(k) / grid;
      if (!fits(p, b, r, 0)) continue;
      const RatioChoice here{b, r, ratio_seconds(p, b, r)};
      if (rate(here) > rate(best)) best = here;
      break;  // T grows with r: GrowsWithTheRatio
    }
  }
  return best;
}

double between(Random& random, double low, double high) {
  return std::exp(std::log(low) + random.unit() * (std::log(high) - std::log(low)));
}

bool one_in(Random& random, uint64_t n) {
  return random.below(n) == 0;
}

// Any bound may be there, or not; a third of the devices has room for nearly all.
RatioProblem any_problem(Random& random, int64_t most_requests) {
  RatioProblem p;
  const auto requests = static_cast<size_t>(random.between(1, most_requests));
  const double longest = between(random, 20, 4000);
  double all = 0;
  for (size_t i = 0; i < requests; ++i) {
    p.lengths.push_back(std::ceil(1 + random.unit() * longest));
    all += p.lengths.back();
  }
  if (one_in(random, 2)) {
    for (double length : p.lengths)
      p.held_back.push_back(std::floor(random.unit() * random.unit() * length * 1.1));
  }
  p.cost.compute = {between(random, 1e-3, 30e-3), between(random, 1e-6, 1e-3), between(random, 1e-9, 1e-6),
                    between(random, 1e-6, 1e-4), one_in(random, 3) ? 0 : between(random, 1e-10, 1e-8)};
  if (one_in(random, 2)) p.cost.memory = {between(random, 1e-3, 60e-3), 0, between(random, 1e-9, 1e-6), 0, 0};
  p.device_tokens = all * (one_in(random, 3) ? between(random, 0.7, 2) : between(random, 0.05, 1));
  p.overhead = one_in(random, 3) ? 0 : random.unit() * (one_in(random, 6) ? 2 : 0.5);
  p.again_share = std::array<double, 5>{1, 0, 0.25, 0.4, 2.0 / 3}[random.below(5)];
  if (one_in(random, 3)) p.most_seconds = between(random, 10e-3, 1);
  if (one_in(random, 4)) p.passing_tokens = all * random.unit();
  if (one_in(random, 4)) p.slower_tokens = all * random.unit();
  if (one_in(random, 4)) p.again_tokens = all * random.unit();
  if (one_in(random, 2)) {
    p.staged_token_s = between(random, 1e-7, 1e-4);
    p.staging_s = random.unit() * 1e-3;
  }
  if (one_in(random, 4)) p.greatest_ratio = random.unit();
  if (one_in(random, 3)) {
    for (size_t i = 0; i < requests; ++i) p.prompts_s.push_back(random.unit() * 1e-3);
  }
  return p;
}

TEST(CacheRatio, ADeviceWithRoomForAllKeepsAll) {
  const RatioProblem p = plain({100, 200, 300, 400}, 1000);
  expect_choice(choose_ratio(p), 4, 0, 14e-3);
}

TEST(CacheRatio, ALittleMoreThanThereIsRoomForIsEvicted) {
  // 1000 tokens for 900: a tenth of each is recomputed, 100 tokens in 10 ms. 4 / 24 ms is less than 3 /
  // 13 ms.
  RatioProblem p = plain({100, 200, 300, 400}, 900);
  EXPECT_DOUBLE_EQ(least_ratio(p, 4), 0.1);
  EXPECT_DOUBLE_EQ(ratio_seconds(p, 4, 0.1), 24e-3);
  expect_choice(choose_ratio(p), 3, 0, 13e-3);
  // With computation ten times as fast, 4 / 15 ms is more.
  p.cost.compute.again_token_s = 0.01e-3;
  expect_choice(choose_ratio(p), 4, 0.1, 15e-3);
}

TEST(CacheRatio, WhatIsHeldBackStays) {
  RatioProblem p = plain({100, 200, 300, 400}, 900);
  p.held_back = {0, 200, 500, 0};
  // 500 may leave: a fifth of them does, and their squares are of 20 and of 80.
  EXPECT_DOUBLE_EQ(least_ratio(p, 4), 0.2);
  p.cost.compute.again_square_s = 1e-6;
  EXPECT_DOUBLE_EQ(ratio_seconds(p, 4, 0.2), 14e-3 + 100 * 0.1e-3 + (400 + 6400) * 1e-6);
  p.held_back = {100, 200, 300, 301};
  EXPECT_LT(least_ratio(p, 4), 0);  // 99 may leave
  EXPECT_EQ(choose_ratio(p).requests, 3U);
}

TEST(CacheRatio, OneIsComputedAgainOrStaged) {
  RatioProblem p = plain({400, 400}, 700);
  p.again_share = 0.25;
  p.staged_token_s = 1e-3;
  p.staging_s = 2e-3;
  p.cost.compute.again_square_s = 1e-6;
  // Of 100 tokens 25 are recomputed, 12.5 of each; 75 come in 77 ms, during which all else is done.
  EXPECT_DOUBLE_EQ(least_ratio(p, 2), 0.125);
  EXPECT_DOUBLE_EQ(ratio_seconds(p, 2, 0.125), 77e-3);
  p.staged_token_s = 1e-6;
  EXPECT_DOUBLE_EQ(ratio_seconds(p, 2, 0.125), 12e-3 + 2.5e-3 + 2 * 12.5 * 12.5 * 1e-6);
  p.staging_s = 1;
  EXPECT_DOUBLE_EQ(ratio_seconds(p, 2, 0), 12e-3);  // nothing is staged
}

TEST(CacheRatio, EachBoundIsOne) {
  const RatioProblem free = plain({400, 400}, 600);  // 200 leave
  EXPECT_DOUBLE_EQ(least_ratio(free, 2), 0.25);
  const auto least = [&](auto&& change) {
    RatioProblem p = free;
    p.again_share = 0.75;
    change(p);
    return least_ratio(p, 2);
  };
  EXPECT_LT(least([](RatioProblem& p) { p.passing_tokens = 199; }), 0);
  EXPECT_DOUBLE_EQ(least([](RatioProblem& p) { p.passing_tokens = 200; }), 0.25);
  EXPECT_LT(least([](RatioProblem& p) { p.slower_tokens = 49; }), 0);
  EXPECT_DOUBLE_EQ(least([](RatioProblem& p) { p.slower_tokens = 50; }), 0.25);
  EXPECT_LT(least([](RatioProblem& p) { p.again_tokens = 149; }), 0);
  EXPECT_DOUBLE_EQ(least([](RatioProblem& p) { p.again_tokens = 150; }), 0.25);
  EXPECT_LT(least([](RatioProblem& p) { p.greatest_ratio = 0.24; }), 0);
  EXPECT_DOUBLE_EQ(least([](RatioProblem& p) { p.greatest_ratio = 0.25; }), 0.25);
  // All is recomputed: a tier without room is none of its business.
  EXPECT_DOUBLE_EQ(least([](RatioProblem& p) { p.again_share = 1, p.slower_tokens = 0; }), 0.25);
  EXPECT_DOUBLE_EQ(least([](RatioProblem& p) { p.again_share = 0, p.again_tokens = 0; }), 0.25);
  // Time bounds the choice and not the ratio. 12 ms and 20 ms for 200 tokens.
  RatioProblem slow = free;
  slow.most_seconds = 31e-3;
  EXPECT_EQ(choose_ratio(slow).requests, 1U);
  slow.most_seconds = 10e-3;
  EXPECT_EQ(choose_ratio(slow), RatioChoice{});
}

// M_o takes back what eviction frees: 8 h b s r (l1 + l2) against 4 L h s r is k = 2 (l1 + l2) / L.
TEST(CacheRatio, OverheadIsPaidFromWhatIsFreed) {
  RatioProblem p = plain({400, 400}, 600);
  p.overhead = 2.0 * 5 / 40;
  EXPECT_DOUBLE_EQ(least_ratio(p, 2), 1.0 / 3);  // 267 leave for 200
  p.overhead = 0.8;
  EXPECT_LT(least_ratio(p, 2), 0);  // 1000 would have to
  // Of a model with ten layers, or with fewer, nothing is gained.
  for (double overhead : {1.0, 1.25}) {
    p.overhead = overhead;
    EXPECT_LT(least_ratio(p, 2), 0);
    EXPECT_EQ(least_ratio(p, 1), 0);
    expect_choice(choose_ratio(p), 1, 0, 11e-3);
  }
}

TEST(CacheRatio, NothingIsChosenWhereNothingFits) {
  EXPECT_EQ(choose_ratio({}), RatioChoice{});
  EXPECT_EQ(choose_ratio_slsqp({}), RatioChoice{});
  RatioProblem p = plain({400}, 300);
  p.greatest_ratio = 0.2;
  EXPECT_EQ(choose_ratio(p), RatioChoice{});
  EXPECT_EQ(choose_ratio_slsqp(p), RatioChoice{});
  p = plain({400}, 0);  // all of it leaves
  EXPECT_EQ(choose_ratio(p).ratio, 1);
  EXPECT_EQ(choose_ratio_slsqp(p), choose_ratio(p));
  p = plain({400}, 400);  // neither b nor r can be anything else
  p.greatest_ratio = 0;
  EXPECT_EQ(choose_ratio(p).requests, 1U);
  EXPECT_EQ(choose_ratio_slsqp(p), choose_ratio(p));
}

// Costs of which nothing is known are no reason to serve one request at a time.
// Steps of 11, 12, and 13 ms, with prompts 11.5, 14.5 and 15.5.
TEST(CacheRatio, WhatPromptsAddIsPartOfAStep) {
  RatioProblem p = plain({10, 10, 10}, 1000);
  p.prompts_s = {0.5e-3, 2e-3, 0};
  p.most_seconds = 15e-3;
  expect_choice(choose_ratio(p), 2, 0, 14.5e-3);
  p.most_seconds = 14e-3;
  expect_choice(choose_ratio(p), 1, 0, 11.5e-3);
  EXPECT_EQ(choose_ratio_slsqp(p).requests, 1u);
  p.prompts_s.clear();
  expect_choice(choose_ratio(p), 3, 0, 13e-3);
  // 1 / 11 is more than 2 / 34 and 3 / 35.
  p.prompts_s = {0, 22e-3, 0};
  p.most_seconds = kUnbounded;
  expect_choice(choose_ratio(p), 1, 0, 11e-3);
}

TEST(CacheRatio, AmongEqualsTheMostRequests) {
  RatioProblem p = plain({100, 200, 300}, 300);
  p.cost = {};
  expect_choice(choose_ratio(p), 3, 0.5, 0);
}

// Equation 5 to the letter is a mean cost of a request, without a term that many share: of equal requests all
// are as good as one, of unequal ones the shortest is best alone, and none is worth what its eviction takes.
TEST(CacheRatio, ToTheLetterFewRequestsAreAsGoodAsMany) {
  PublishedShape shape;
  shape.hidden = 5120;
  shape.layers = 40;
  shape.vocabulary = 32'000;
  shape.flops_per_s = 312e12;
  RatioProblem p;
  p.device_tokens = 16'000;
  p.cost = BatchCost::letter(shape);
  p.lengths.assign(64, 1000);
  const double one = 1 / ratio_seconds(p, 1, 0);
  for (uint32_t b = 2; b <= 16; ++b) EXPECT_NEAR(b / ratio_seconds(p, b, 0), one, 1e-9 * one);
  EXPECT_LT(17 / ratio_seconds(p, 17, least_ratio(p, 17)), 0.6 * one);
  EXPECT_EQ(choose_ratio(p).requests, 16U);
  std::iota(p.lengths.begin(), p.lengths.end(), 500);
  EXPECT_EQ(choose_ratio(p).requests, 1U);
  // With the weights that each step reads, as many as fit are best.
  shape.bytes_per_s = 1.555e12;
  shape.weight_bytes = 26e9;
  shape.kv_bytes_per_token = 819'200;
  p.cost = BatchCost::corrected(shape);
  EXPECT_GE(choose_ratio(p).requests, 30U);
}

TEST(CacheRatio, GrowsWithTheRatio) {
  Random random(1);
  for (int i = 0; i < 2000; ++i) {
    const RatioProblem p = any_problem(random, 20);
    const auto all = static_cast<uint32_t>(p.lengths.size());
    double before = 0;
    for (int k = 0; k <= 50; ++k) {
      const double now = ratio_seconds(p, all, k / 50.0);
      ASSERT_GE(now, before);
      before = now;
    }
  }
}

TEST(CacheRatio, TheLeastRatioFitsAndALittleLessDoesNot) {
  Random random(2);
  int kept = 0, evicted = 0, none = 0;
  for (int i = 0; i < 5000; ++i) {
    RatioProblem p = any_problem(random, 30);
    p.most_seconds = kUnbounded;
    const auto b = static_cast<uint32_t>(random.between(1, static_cast<int64_t>(p.lengths.size())));
    const double least = least_ratio(p, b);
    if (least < 0) {
      ++none;
      for (int k = 0; k <= 200; ++k) ASSERT_FALSE(fits(p, b, k / 200.0, 0));
      continue;
    }
    ASSERT_TRUE(fits(p, b, least, 1e-12)) << least;
    ++(least > 0 ? evicted : kept);
    if (least > 0) {
      ASSERT_FALSE(fits(p, b, least - 1e-6, 0)) << least;
    }
  }
  std::printf("%d keep all, %d evict, %d do not fit\n", kept, evicted, none);
  EXPECT_GT(std::min({kept, evicted, none}), 500);
}

TEST(CacheRatio, NoPointOfAGridIsBetter) {
  Random random(3);
  int evicted = 0, none = 0, timely = 0;
  for (int i = 0; i < 2000; ++i) {
    const RatioProblem p = any_problem(random, 40);
    const RatioChoice best = choose_ratio(p), grid = by_grid(p, 400);
    if (best.requests == 0) {
      ++none;
      ASSERT_EQ(grid.requests, 0U);
      continue;
    }
    ASSERT_TRUE(fits(p, best.requests, best.ratio, 1e-12));
    ASSERT_DOUBLE_EQ(best.seconds, ratio_seconds(p, best.requests, best.ratio));
    ASSERT_GE(rate(best) * (1 + 1e-9), rate(grid)) << best.requests << " " << grid.requests;
    evicted += best.ratio > 0;
    timely += best.requests < p.lengths.size() && p.most_seconds != kUnbounded;
  }
  std::printf("%d evict, %d find none, %d are bounded by time\n", evicted, none, timely);
  EXPECT_GT(std::min({evicted, none, timely}), 100);
}

TEST(CacheRatio, TheSolverFindsNothingBetter) {
  Random random(4);
  int chosen = 0, near = 0, found = 0, of_those_that_evict = 0, near_of_those = 0;
  for (int i = 0; i < 5000; ++i) {
    const RatioProblem p = any_problem(random, i % 10 == 0 ? 512 : 40);
    const RatioChoice best = choose_ratio(p), solved = choose_ratio_slsqp(p);
    ASSERT_LE(rate(solved), rate(best) * (1 + 1e-9)) << solved.requests << " " << best.requests;
    if (best.requests == 0) continue;
    ++chosen;
    found += solved.requests > 0;
    if (solved.requests > 0) {
      ASSERT_TRUE(fits(p, solved.requests, solved.ratio, 1e-8));
    }
    const bool close = rate(solved) >= 0.99 * rate(best);
    near += close;
    of_those_that_evict += best.ratio > 0;
    near_of_those += best.ratio > 0 && close;
  }
  std::printf("of %d problems the solver answers %d and is within 1 %% in %d; of %d that evict, in %d\n",
              chosen, found, near, of_those_that_evict, near_of_those);
  EXPECT_EQ(found, chosen);
  EXPECT_GT(near, 0.85 * chosen);
  EXPECT_GT(near_of_those, 0.75 * of_those_that_evict);
}

}  // namespace
}  // namespace kvasir::test
