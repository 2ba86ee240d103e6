// The pool against a list of intervals.
#include "cache/tiers/slab_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/random.h"

namespace kvasir {
namespace {

TEST(SlabPool, HandsOutAllThereIsAndNoMore) {
  const std::array<uint64_t, 1> frames = {100};
  SlabPool pool(1050, 100, frames);
  EXPECT_EQ(pool.slabs(), 10u);
  std::set<uint64_t> got;
  while (auto offset = pool.allocate(0)) got.insert(*offset);
  EXPECT_EQ(got.size(), 10u);
  EXPECT_EQ(pool.used_frames(0), 10u);
  for (uint64_t offset : got) pool.release(0, offset);
  EXPECT_EQ(pool.empty_slabs(), 10u);
  EXPECT_TRUE(pool.check_integrity().ok());
}

TEST(SlabPool, AnEmptySlabGoesToWhicheverClassAsks) {
  const std::array<uint64_t, 2> frames = {100, 30};
  SlabPool pool(200, 100, frames);
  std::vector<uint64_t> small;
  for (int i = 0; i < 6; ++i) small.push_back(pool.allocate(1).value());
  EXPECT_FALSE(pool.allocate(0).has_value());
  EXPECT_FALSE(pool.allocate(1).has_value());
  for (int i = 0; i < 3; ++i) pool.release(1, small[static_cast<size_t>(i)]);
  EXPECT_EQ(pool.empty_slabs(), 1u);
  EXPECT_EQ(pool.allocate(0), 0u);
  EXPECT_FALSE(pool.allocate(1).has_value());
}

TEST(SlabPoolDeathTest, RefusesWhatItDidNotGive) {
  const std::array<uint64_t, 2> frames = {40, 20};
  SlabPool pool(200, 100, frames);
  const uint64_t offset = pool.allocate(0).value();
  EXPECT_DEATH(pool.release(0, offset + 1), "offset");
  EXPECT_DEATH(pool.release(1, offset), "not allocated");
  EXPECT_DEATH(pool.release(0, offset + 40), "not allocated");
  EXPECT_DEATH(pool.release(0, offset + 80), "offset");
  EXPECT_DEATH(pool.release(0, 1000), "offset");
  pool.release(0, offset);
  EXPECT_DEATH(pool.release(0, offset), "not allocated");
}

// ---------------------------------------------------------------- idle, spare and loose

TEST(SlabPool, WhatIsIdleInANeededSlabIsLooseAndElseTheSlabIsSpare) {
  const std::array<uint64_t, 2> frames = {40, 20};
  SlabPool pool(400, 100, frames);  // two frames of class 0 to a slab, or five of class 1
  const uint64_t a = pool.allocate(0).value();
  EXPECT_EQ(pool.spare_slabs(), 3u);
  EXPECT_EQ(pool.loose_free(0), 1u);
  const uint64_t b = pool.allocate(0, a).value();
  EXPECT_EQ(b, a + 40);
  pool.set_idle(0, a, true);
  EXPECT_EQ(pool.loose_idle(0), 1u);
  EXPECT_EQ(pool.idle_frames(0), 1u);
  EXPECT_FALSE(pool.in_spare_slab(a));
  pool.set_idle(0, b, true);
  EXPECT_EQ(pool.loose_idle(0), 0u);
  EXPECT_EQ(pool.idle_frames(0), 2u);
  EXPECT_EQ(pool.used_frames(0), 2u);
  EXPECT_EQ(pool.spare_slabs(), 4u);
  EXPECT_EQ(pool.empty_slabs(), 3u);
  EXPECT_TRUE(pool.in_spare_slab(a));
  EXPECT_TRUE(pool.check_integrity().ok());
  pool.release(0, a);
  EXPECT_EQ(pool.loose_free(0), 0u) << "it is free in a spare slab";
  pool.set_idle(0, b, false);
  EXPECT_EQ(pool.loose_free(0), 1u);
  EXPECT_EQ(pool.spare_slabs(), 3u);
  pool.set_idle(0, b, true);
  pool.release(0, b);
  EXPECT_EQ(pool.idle_frames(0), 0u);
  EXPECT_EQ(pool.empty_slabs(), 4u);
  EXPECT_TRUE(pool.check_integrity().ok());
}

TEST(SlabPool, ANeededSlabIsUsedBeforeASpareOneAndThatBeforeAnEmptyOne) {
  const std::array<uint64_t, 1> frames = {50};
  SlabPool pool(300, 100, frames);
  const uint64_t a = pool.allocate(0).value();
  const uint64_t b = pool.allocate(0).value();
  ASSERT_TRUE(pool.claim(0, 200));
  pool.release(0, b);
  pool.set_idle(0, a, true);
  EXPECT_EQ(pool.allocate(0), 250u) << "its neighbour is needed";
  EXPECT_EQ(pool.allocate(0), b) << "a spare slab of the class";
  EXPECT_FALSE(pool.in_spare_slab(a));
  EXPECT_EQ(pool.loose_idle(0), 1u);
  EXPECT_EQ(pool.allocate(0), 100u);
}

TEST(SlabPool, TheFrameRightBehindIsTakenWhereItIsFreeAndItsSlabNeeded) {
  const std::array<uint64_t, 1> frames = {25};
  SlabPool pool(300, 100, frames);
  ASSERT_TRUE(pool.claim(0, 0));
  ASSERT_TRUE(pool.claim(0, 100));
  EXPECT_EQ(pool.allocate(0, 100), 125u);
  EXPECT_EQ(pool.allocate(0, 100), 25u) << "that one is taken: the lowest";
  EXPECT_EQ(pool.allocate(0, 175), 50u) << "a slab ends there";
  EXPECT_EQ(pool.allocate(0), 75u);
  pool.set_idle(0, 100, true);
  pool.set_idle(0, 125, true);
  ASSERT_TRUE(pool.claim(0, 200));
  EXPECT_EQ(pool.allocate(0, 125), 225u) << "in the slab of the one before nothing is needed";
}

TEST(SlabPool, ANewSlabFollowsThatOfTheFrameBefore) {
  const std::array<uint64_t, 1> frames = {100};
  SlabPool pool(500, 100, frames);
  ASSERT_TRUE(pool.claim(0, 300));
  EXPECT_EQ(pool.allocate(0, 300), 400u);
  EXPECT_EQ(pool.allocate(0, 400), 0u);
}

TEST(SlabPool, ClaimsWhatIsFreeAndNothingElse) {
  const std::array<uint64_t, 3> frames = {40, 20, 0};
  SlabPool pool(200, 100, frames);
  EXPECT_TRUE(pool.claim(1, 120));
  EXPECT_FALSE(pool.claim(1, 120));
  EXPECT_FALSE(pool.claim(1, 130)) << "no frame begins there";
  EXPECT_FALSE(pool.claim(0, 140)) << "the slab is another class's";
  EXPECT_FALSE(pool.claim(0, 80)) << "the rest of a slab";
  EXPECT_FALSE(pool.claim(0, 200));
  EXPECT_FALSE(pool.claim(2, 0)) << "there is no such class";
  EXPECT_EQ(pool.empty_slabs(), 1u);
  EXPECT_TRUE(pool.claim(0, 40));
  EXPECT_EQ(pool.allocate(0), 0u);
  EXPECT_TRUE(pool.check_integrity().ok());
  pool.release(1, 120);
  EXPECT_TRUE(pool.claim(0, 140));
}

// ---------------------------------------------------------------- slabs that come and go

TEST(SlabPool, AnAbsentSlabIsNeitherAllocatedNorCounted) {
  const std::array<uint64_t, 1> frames = {50};
  SlabPool pool(500, 100, frames);
  for (uint32_t slab : {1, 3, 4}) pool.close(slab);
  EXPECT_EQ(pool.take_departed(), (std::vector<uint32_t>{1, 3, 4})) << "they were empty";
  EXPECT_TRUE(pool.take_departed().empty());
  EXPECT_EQ(pool.slabs(), 2u);
  EXPECT_EQ(pool.capacity(), 5u);
  EXPECT_EQ(pool.empty_slabs(), 2u);
  EXPECT_EQ(pool.spare_slabs(), 2u);
  EXPECT_TRUE(pool.is_absent(3));
  EXPECT_FALSE(pool.is_absent(2));
  EXPECT_FALSE(pool.claim(0, 150));
  EXPECT_EQ(pool.check_integrity().message(), "");
  std::set<uint64_t> got;
  while (auto offset = pool.allocate(0, 50)) got.insert(*offset);
  EXPECT_EQ(got, (std::set<uint64_t>{0, 50, 200, 250}));
  pool.open(3);
  EXPECT_EQ(pool.slabs(), 3u);
  EXPECT_EQ(pool.spare_slabs(), 1u);
  EXPECT_EQ(pool.check_integrity().message(), "");
  EXPECT_EQ(pool.allocate(0), 300u);
  EXPECT_TRUE(pool.claim(0, 350));
  EXPECT_EQ(pool.check_integrity().message(), "");
}

TEST(SlabPool, AClosedSlabGoesWhenItIsEmpty) {
  const std::array<uint64_t, 1> frames = {50};
  SlabPool pool(200, 100, frames);
  for (uint64_t offset : {0, 50, 100}) ASSERT_TRUE(pool.claim(0, offset));
  pool.set_idle(0, 50, true);
  pool.close(0);
  EXPECT_TRUE(pool.is_closed(0));
  EXPECT_FALSE(pool.is_absent(0));
  EXPECT_FALSE(pool.is_empty(0));
  EXPECT_EQ(pool.slabs(), 2u) << "it is there until then";
  EXPECT_EQ(pool.check_integrity().message(), "");
  pool.release(0, 0);
  EXPECT_TRUE(pool.take_departed().empty()) << "what is idle is still there";
  EXPECT_EQ(pool.check_integrity().message(), "");
  pool.release(0, 50);
  EXPECT_EQ(pool.take_departed(), std::vector<uint32_t>{0});
  EXPECT_TRUE(pool.is_absent(0));
  EXPECT_FALSE(pool.is_closed(0));
  EXPECT_EQ(pool.slabs(), 1u);
  EXPECT_EQ(pool.spare_slabs(), 0u);
  EXPECT_EQ(pool.check_integrity().message(), "");
  pool.open(0);
  pool.release(0, 100);
  EXPECT_TRUE(pool.take_departed().empty()) << "these were not closed";
  EXPECT_EQ(pool.empty_slabs(), 2u);
}

TEST(SlabPoolDeathTest, WhatIsThereIsNotOpenedNorClosedTwice) {
  const std::array<uint64_t, 1> frames = {100};
  SlabPool pool(300, 100, frames);
  ASSERT_TRUE(pool.claim(0, 100));
  pool.close(0);
  pool.close(1);
  EXPECT_DEATH(pool.close(0), "slab=0");
  EXPECT_DEATH(pool.close(1), "slab=1");
  EXPECT_DEATH(pool.open(1), "slab=1 is there");
  EXPECT_DEATH(pool.open(2), "slab=2 is there");
}

TEST(SlabPool, SlabsComeAndGoAtRandom) {
  constexpr uint32_t kSlabs = 10;
  constexpr uint64_t kSlab = 100;
  const std::array<uint64_t, 2> frames = {100, 30};
  struct Slab {
    bool absent = false, closed = false;
    std::map<uint64_t, bool> out;  // frames by offset: idle
    size_t frame_class = 0;
  };
  SlabPool pool(kSlabs * kSlab, kSlab, frames);
  std::array<Slab, kSlabs> slabs;
  std::vector<uint32_t> departed;
  Random random(9);
  const auto settle = [&](uint32_t i) {
    if (!slabs[i].closed || !slabs[i].out.empty()) return;
    slabs[i] = {};
    slabs[i].absent = true;
    departed.push_back(i);
  };
  uint32_t went = 0;
  for (int step = 0; step < 20000; ++step) {
    const double r = random.unit();
    const auto i = static_cast<uint32_t>(random.below(kSlabs));
    Slab& slab = slabs[i];
    if (r < 0.4) {
      const auto c = static_cast<size_t>(random.below(2));
      bool room = false;
      for (const Slab& s : slabs) {
        const bool carved = !s.out.empty() && s.frame_class == c && s.out.size() < kSlab / frames[c];
        room |= !s.absent && (s.out.empty() || carved);
      }
      const auto offset = pool.allocate(c);
      ASSERT_EQ(offset.has_value(), room) << step;
      if (!offset) continue;
      Slab& taken = slabs[*offset / kSlab];
      ASSERT_FALSE(taken.absent) << step;
      ASSERT_TRUE(taken.out.emplace(*offset, false).second);
      taken.frame_class = c;
    } else if (r < 0.85 && !slab.out.empty()) {
      const auto it = std::next(slab.out.begin(), static_cast<ptrdiff_t>(random.below(slab.out.size())));
      if (random.unit() < 0.3) {
        pool.set_idle(slab.frame_class, it->first, it->second = !it->second);
      } else {
        pool.release(slab.frame_class, it->first);
        slab.out.erase(it);
        settle(i);
      }
    } else if (r > 0.92 && slab.absent) {
      pool.open(i);
      slab.absent = false;
    } else if (r > 0.96 && !slab.closed && !slab.absent) {
      pool.close(i);
      slab.closed = true;
      settle(i);
    }
    uint32_t there = 0, spare = 0, empty = 0;
    for (uint32_t n = 0; n < kSlabs; ++n) {
      const Slab& s = slabs[n];
      ASSERT_EQ(pool.is_absent(n), s.absent);
      ASSERT_EQ(pool.is_closed(n), s.closed);
      if (s.absent) continue;
      ++there;
      empty += s.out.empty() ? 1 : 0;
      spare += std::all_of(s.out.begin(), s.out.end(), [](const auto& f) { return f.second; }) ? 1 : 0;
    }
    ASSERT_EQ(pool.slabs(), there);
    ASSERT_EQ(pool.spare_slabs(), spare);
    ASSERT_EQ(pool.empty_slabs(), empty);
    ASSERT_EQ(pool.check_integrity().message(), "");
    went += static_cast<uint32_t>(departed.size());
    ASSERT_EQ(pool.take_departed(), std::exchange(departed, {}));
  }
  EXPECT_GT(went, 100u);
}

// ---------------------------------------------------------------- at random

// What the pool must agree with: the frames that are out, by offset.
struct PoolModel {
  static constexpr uint64_t kSlab = 640;
  static constexpr uint64_t kSlabs = 12;
  static constexpr std::array<uint64_t, 4> kSizes = {640, 100, 10, 0};
  struct Frame {
    size_t frame_class = 0;
    bool idle = false;
  };
  std::map<uint64_t, Frame> out;

  struct Sums {
    uint32_t used = 0, idle = 0, loose_free = 0, loose_idle = 0;
  };
  void check(const SlabPool& pool) const {
    std::array<Sums, 4> sums{};
    uint32_t spare = 0, empty = 0;
    for (uint64_t slab = 0; slab < kSlabs; ++slab) {
      uint32_t used = 0, idle = 0;
      size_t c = 0;
      for (auto it = out.lower_bound(slab * kSlab); it != out.end() && it->first < (slab + 1) * kSlab; ++it) {
        ASSERT_TRUE(used == 0 || it->second.frame_class == c) << "classes are mixed in slab " << slab;
        c = it->second.frame_class;
        ++used;
        idle += it->second.idle ? 1 : 0;
      }
      sums[c].used += used;
      sums[c].idle += idle;
      empty += used == 0 ? 1 : 0;
      ASSERT_EQ(pool.in_spare_slab(slab * kSlab), used == idle);
      if (used == idle) {
        ++spare;
        continue;
      }
      sums[c].loose_free += pool.frames_per_slab(c) - used;
      sums[c].loose_idle += idle;
    }
    ASSERT_EQ(pool.spare_slabs(), spare);
    ASSERT_EQ(pool.empty_slabs(), empty);
    for (size_t c = 0; c < 4; ++c) {
      ASSERT_EQ(pool.used_frames(c), sums[c].used);
      ASSERT_EQ(pool.idle_frames(c), sums[c].idle);
      ASSERT_EQ(pool.loose_free(c), sums[c].loose_free);
      ASSERT_EQ(pool.loose_idle(c), sums[c].loose_idle);
    }
    ASSERT_EQ(pool.check_integrity().message(), "");
  }

  // Whether a frame of the class could lie there.
  bool free_at(size_t c, uint64_t offset) const {
    if (kSizes[c] == 0 || offset % kSlab % kSizes[c] != 0 || offset % kSlab + kSizes[c] > kSlab) return false;
    if (offset + kSizes[c] > kSlabs * kSlab) return false;
    const uint64_t begin = offset / kSlab * kSlab;
    for (auto it = out.lower_bound(begin); it != out.end() && it->first < begin + kSlab; ++it) {
      if (it->second.frame_class != c || it->first == offset) return false;
    }
    return true;
  }
  bool room(size_t c) const {
    for (uint64_t slab = 0; slab < kSlabs; ++slab) {
      for (uint64_t at = 0; kSizes[c] > 0 && at + kSizes[c] <= kSlab; at += kSizes[c]) {
        if (free_at(c, slab * kSlab + at)) return true;
      }
    }
    return false;
  }
};

TEST(SlabPool, AgreesWithTheModelUnderRandomUse) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    SlabPool pool(PoolModel::kSlabs * PoolModel::kSlab, PoolModel::kSlab, PoolModel::kSizes);
    PoolModel model;
    Random random(seed);
    const auto any = [&] {
      return std::next(model.out.begin(), static_cast<ptrdiff_t>(random.below(model.out.size())));
    };
    for (int step = 0; step < 4000; ++step) {
      const double r = random.unit();
      const double grow = step / 500 % 2 == 0 ? 0.5 : 0.2;
      const auto c = static_cast<size_t>(random.below(3));
      if (r < grow) {
        std::optional<uint64_t> before;
        if (!model.out.empty() && random.unit() < 0.5) before = any()->first;
        const auto offset = pool.allocate(c, before);
        ASSERT_EQ(offset.has_value(), model.room(c));
        if (offset) {
          ASSERT_TRUE(model.free_at(c, *offset));
          model.out[*offset] = {c, false};
        }
      } else if (r < grow + 0.1) {
        const uint64_t offset = random.below(PoolModel::kSlabs + 1) * PoolModel::kSlab +
                                random.below(8) * (PoolModel::kSizes[c] + (random.unit() < 0.1 ? 1 : 0));
        const bool free = model.free_at(c, offset);
        ASSERT_EQ(pool.claim(c, offset), free);
        if (free) model.out[offset] = {c, false};
      } else if (!model.out.empty() && r < grow + 0.3) {
        auto it = any();
        it->second.idle = random.unit() < 0.7;
        pool.set_idle(it->second.frame_class, it->first, it->second.idle);
      } else if (!model.out.empty()) {
        auto it = any();
        pool.release(it->second.frame_class, it->first);
        model.out.erase(it);
      }
      ASSERT_NO_FATAL_FAILURE(model.check(pool)) << step;
    }
  }
}

// Frames that are taken, marked and given back by the run are those that one by one would be.
TEST(SlabPool, ARunIsWhatItsFramesAreOneByOne) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    SlabPool runs(PoolModel::kSlabs * PoolModel::kSlab, PoolModel::kSlab, PoolModel::kSizes);
    SlabPool single(PoolModel::kSlabs * PoolModel::kSlab, PoolModel::kSlab, PoolModel::kSizes);
    std::vector<std::pair<size_t, std::vector<uint64_t>>> held;
    Random random(seed);
    const auto any = [&] { return random.below(held.size()); };
    for (int step = 0; step < 4000; ++step) {
      const double r = random.unit();
      if (r < 0.4) {
        const auto c = static_cast<size_t>(random.below(3));
        std::vector<uint64_t> run(1 + random.below(12));
        std::optional<uint64_t> before;
        if (!held.empty() && random.unit() < 0.5) before = held[any()].second.back();
        std::vector<uint64_t> one_by_one;
        std::optional<uint64_t> last = before;
        while (one_by_one.size() < run.size() && (last = single.allocate(c, last)))
          one_by_one.push_back(*last);
        size_t n = 0;
        for (size_t more = 1; more > 0 && n < run.size(); n += more) {
          more = runs.allocate(c, n > 0 ? std::optional(run[n - 1]) : before, std::span(run).subspan(n));
        }
        run.resize(n);
        ASSERT_EQ(run, one_by_one);
        if (!run.empty()) held.emplace_back(c, std::move(run));
      } else if (!held.empty() && r < 0.6) {
        const auto& [c, run] = held[any()];
        const bool idle = random.below(2) == 0;
        runs.set_idle(c, run, idle);
        for (uint64_t offset : run) single.set_idle(c, offset, idle);
      } else if (!held.empty()) {
        const size_t i = any();
        const auto& [c, run] = held[i];
        runs.release(c, run);
        for (uint64_t offset : run) single.release(c, offset);
        held.erase(held.begin() + static_cast<ptrdiff_t>(i));
      }
      ASSERT_EQ(runs.check_integrity().message(), "");
      ASSERT_EQ(runs.spare_slabs(), single.spare_slabs());
      ASSERT_EQ(runs.empty_slabs(), single.empty_slabs());
      for (size_t c = 0; c < 3; ++c) {
        ASSERT_EQ(runs.loose_free(c), single.loose_free(c));
        ASSERT_EQ(runs.loose_idle(c), single.loose_idle(c));
      }
    }
  }
}

}  // namespace
}  // namespace kvasir
