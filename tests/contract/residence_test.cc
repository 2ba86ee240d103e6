// Where a sequence can live: against the rule in its plainest form.
#include "contract/residence.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvasir {
namespace {

TEST(Residence, WhatFitsOnTheDeviceStaysThere) {
  const CellCapacity c{2, 10, 100, 8};
  const Residence r = Residence::of(5, c);
  EXPECT_TRUE(r.fits);
  EXPECT_FALSE(r.streams);
  EXPECT_EQ(r.kept_groups, 2u);
}

TEST(Residence, ALongerOneStreamsAndKeepsWhatTheHostCannotTake) {
  // Ten blocks of four groups: 40 cells.
  EXPECT_TRUE(Residence::of(10, {4, 30, 40, 10}).streams);
  EXPECT_EQ(Residence::of(10, {4, 30, 40, 10}).kept_groups, 0u);
  EXPECT_EQ(Residence::of(10, {4, 30, 39, 10}).kept_groups, 1u);
  EXPECT_EQ(Residence::of(10, {4, 30, 30, 10}).kept_groups, 1u);
  EXPECT_EQ(Residence::of(10, {4, 30, 29, 10}).kept_groups, 2u);
  EXPECT_FALSE(Residence::of(10, {4, 27, 29, 10}).fits) << "no room for the block at its end";
  EXPECT_FALSE(Residence::of(10, {4, 30, 40, 9}).fits) << "a layer of it does not pass through the ring";
  EXPECT_FALSE(Residence::of(10, {4, 30, 0, 10}).fits);
  EXPECT_FALSE(Residence::of(10, {4, 30, 40, 0}).streams);
}

// The fewest groups that have to stay on the device so that the host takes the others.
Residence plainly(uint32_t blocks, const CellCapacity& c) {
  if (blocks * c.groups <= c.device_cells) return {true, false, c.groups};
  if (blocks > c.stage_blocks) return {};
  for (uint32_t kept = 0; kept < c.groups; ++kept) {
    if (blocks * (c.groups - kept) > c.slower_cells) continue;
    if (blocks * kept + 2 * c.groups > c.device_cells) return {};
    return {true, true, kept};
  }
  return {};
}

TEST(Residence, IsThePlainRuleAndTheLongestThatFitsIsTheLongest) {
  for (uint32_t groups = 1; groups <= 4; ++groups) {
    for (uint32_t device = 0; device <= 20; ++device) {
      for (uint32_t host = 0; host <= 40; ++host) {
        for (uint32_t stage = 0; stage <= 16; stage += 2) {
          const CellCapacity c{groups, device, host, stage};
          uint32_t longest = 0;
          for (uint32_t blocks = 1; blocks <= 62; ++blocks) {
            const Residence is = Residence::of(blocks, c);
            const Residence should = plainly(blocks, c);
            ASSERT_EQ(is.fits, should.fits) << blocks << " " << groups << " " << device << " " << host;
            ASSERT_EQ(is.streams, should.streams);
            ASSERT_EQ(is.kept_groups, should.kept_groups);
            if (should.fits) {
              ASSERT_EQ(longest + 1, blocks) << "a shorter one did not fit";
              longest = blocks;
            }
          }
          ASSERT_EQ(Residence::longest(c), longest) << groups << " " << device << " " << host << " " << stage;
        }
      }
    }
  }
  EXPECT_EQ(Residence::longest({}), 0u);
}

TEST(Residence, KeptGroupsAreSpreadEvenly) {
  const auto list = [](uint32_t count, uint32_t groups) {
    std::vector<uint32_t> out;
    spread_groups(count, groups).for_each([&](uint32_t g) { out.push_back(g); });
    return out;
  };
  EXPECT_EQ(list(0, 4), (std::vector<uint32_t>{}));
  EXPECT_EQ(list(2, 4), (std::vector<uint32_t>{0, 2}));
  EXPECT_EQ(list(3, 8), (std::vector<uint32_t>{0, 2, 5}));
  EXPECT_EQ(list(4, 4), (std::vector<uint32_t>{0, 1, 2, 3}));
}

}  // namespace
}  // namespace kvasir
