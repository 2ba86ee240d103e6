// The pool against a list of intervals.
#include "cache/slab_pool.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <set>
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

// What the pool must agree with: the frames that are out, by offset.
struct PoolModel {
  static constexpr uint64_t kSlab = 640;
  std::map<uint64_t, size_t> out;  // offset -> class

  // Frames of a class that are out in a slab; `other`: of any other class.
  uint32_t in_slab(uint64_t slab, size_t frame_class, bool other) const {
    uint32_t n = 0;
    for (auto it = out.lower_bound(slab * kSlab); it != out.end() && it->first < (slab + 1) * kSlab; ++it) {
      if ((it->second == frame_class) != other) ++n;
    }
    return n;
  }
};

TEST(SlabPool, AgreesWithTheModelUnderRandomUse) {
  const std::array<uint64_t, 3> sizes = {640, 100, 10};
  for (uint64_t seed = 0; seed < 4; ++seed) {
    SlabPool pool(12 * PoolModel::kSlab, PoolModel::kSlab, sizes);
    PoolModel model;
    Random random(seed);
    for (int step = 0; step < 4000; ++step) {
      const bool grow = random.unit() < (step / 500 % 2 == 0 ? 0.7 : 0.3);
      if (grow) {
        const auto c = static_cast<size_t>(random.below(3));
        bool room = false;
        uint32_t free = 0;
        for (uint64_t slab = 0; slab < 12; ++slab) {
          if (model.in_slab(slab, c, true) > 0) continue;
          const uint32_t mine = model.in_slab(slab, c, false);
          if (mine > 0) free += pool.frames_per_slab(c) - mine;
          if (mine < pool.frames_per_slab(c)) room = true;
        }
        ASSERT_EQ(pool.free_frames(c), free);
        const auto offset = pool.allocate(c);
        ASSERT_EQ(offset.has_value(), room);
        if (!offset) continue;
        auto next = model.out.lower_bound(*offset);
        ASSERT_LE(*offset + sizes[c], 12 * PoolModel::kSlab);
        ASSERT_TRUE(next == model.out.end() || next->first >= *offset + sizes[c]);
        if (next != model.out.begin()) {
          --next;
          ASSERT_LE(next->first + sizes[next->second], *offset);
        }
        model.out[*offset] = c;
      } else if (!model.out.empty()) {
        auto it = std::next(model.out.begin(), static_cast<ptrdiff_t>(random.below(model.out.size())));
        pool.release(it->second, it->first);
        model.out.erase(it);
      }
      ASSERT_TRUE(pool.check_integrity().ok());
    }
  }
}

}  // namespace
}  // namespace kvasir
