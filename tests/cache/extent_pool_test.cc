// The host's pool against a naive model, and the growth of extents.
#include "cache/tiers/extent_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/random.h"

namespace kvasir {
namespace {

TEST(ExtentPool, HandsOutAllThereIsAndNoMore) {
  ExtentPool pool(1050, 100);
  EXPECT_EQ(pool.units(), 10u);
  std::set<uint64_t> got;
  while (auto offset = pool.allocate(std::nullopt)) got.insert(*offset);
  EXPECT_EQ(got.size(), 10u);
  EXPECT_EQ(*got.rbegin(), 900u);
  EXPECT_EQ(pool.free_units(), 0u);
  EXPECT_EQ(pool.free_extents(), 0u);
  for (uint64_t offset : got) pool.release(offset);
  EXPECT_EQ(pool.free_extents(), 1u);
  EXPECT_TRUE(pool.check_integrity().ok());
}

TEST(ExtentPool, AnExtentGrowsWhileThereIsRoomBehindIt) {
  ExtentPool pool(1000, 100);
  const uint64_t a = pool.allocate(std::nullopt).value();
  const uint64_t b = pool.allocate(std::nullopt).value();
  ASSERT_EQ(b, a + 100);
  EXPECT_EQ(pool.allocate(b), b + 100);
  EXPECT_EQ(pool.allocate(b + 100), b + 200);
  // Behind `a` there is none: the largest free run begins anew.
  EXPECT_EQ(pool.allocate(a), b + 300);
  pool.release(b);
  EXPECT_EQ(pool.free_extents(), 2u);
  EXPECT_EQ(pool.allocate(std::nullopt), b + 400) << "a hole of one is left for a request of one";
  EXPECT_EQ(pool.allocate(a), b) << "unless it is right behind";
}

TEST(ExtentPool, AMemoryOfNothingHasNothing) {
  ExtentPool pool(99, 100);
  EXPECT_EQ(pool.units(), 0u);
  EXPECT_FALSE(pool.allocate(std::nullopt).has_value());
  EXPECT_TRUE(pool.check_integrity().ok());
}

TEST(ExtentPoolDeathTest, RefusesWhatItDidNotGive) {
  ExtentPool pool(1000, 100);
  const uint64_t offset = pool.allocate(std::nullopt).value();
  EXPECT_DEATH(pool.release(offset + 1), "offset");
  EXPECT_DEATH(pool.release(offset + 100), "not allocated");
  EXPECT_DEATH(pool.release(1000), "offset");
  pool.release(offset);
  EXPECT_DEATH(pool.release(offset), "not allocated");
}

// What the pool must agree with: which units are out.
struct UnitModel {
  std::vector<bool> out;

  // Lengths and first units of the free runs.
  std::vector<std::pair<uint32_t, uint32_t>> runs() const {
    std::vector<std::pair<uint32_t, uint32_t>> found;
    for (uint32_t i = 0; i < out.size(); ++i) {
      if (out[i]) continue;
      if (i > 0 && !out[i - 1]) {
        ++found.back().first;
      } else {
        found.emplace_back(1, i);
      }
    }
    return found;
  }
};

TEST(ExtentPool, AgreesWithAListOfUnits) {
  constexpr uint32_t kUnits = 40;
  constexpr uint64_t kBytes = 96;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Random random(seed);
    ExtentPool pool(kUnits * kBytes + seed % kBytes, kBytes);
    UnitModel model{std::vector<bool>(kUnits, false)};
    std::vector<uint32_t> held;
    for (int i = 0; i < 2000; ++i) {
      const auto runs = model.runs();
      if (held.empty() || random.unit() < 0.52) {
        std::optional<uint64_t> near;
        if (!held.empty() && random.unit() < 0.7) near = held[random.below(held.size())] * kBytes;
        const auto offset = pool.allocate(near);
        ASSERT_EQ(offset.has_value(), !runs.empty());
        if (!offset) continue;
        const auto unit = static_cast<uint32_t>(*offset / kBytes);
        ASSERT_EQ(*offset % kBytes, 0u);
        ASSERT_FALSE(model.out[unit]);
        const uint32_t behind = near ? static_cast<uint32_t>(*near / kBytes) + 1 : kUnits;
        if (behind < kUnits && !model.out[behind]) {
          ASSERT_EQ(unit, behind);
        } else {
          const uint32_t longest = std::max_element(runs.begin(), runs.end())->first;
          ASSERT_TRUE(std::find(runs.begin(), runs.end(), std::pair(longest, unit)) != runs.end())
              << "it begins a run of the greatest length";
        }
        model.out[unit] = true;
        held.push_back(unit);
      } else {
        const size_t which = random.below(held.size());
        pool.release(held[which] * kBytes);
        model.out[held[which]] = false;
        held.erase(held.begin() + static_cast<ptrdiff_t>(which));
      }
      ASSERT_EQ(pool.free_units(), kUnits - held.size());
      ASSERT_EQ(pool.free_extents(), model.runs().size());
      ASSERT_EQ(pool.check_integrity().message(), "");
    }
  }
}

}  // namespace
}  // namespace kvasir
