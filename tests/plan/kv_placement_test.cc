// Where a sequence can live: against the rule in its plainest form.
#include "plan/kv_placement.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvasir {
namespace {

TEST(KvPlacement, WhatFitsOnTheDeviceStaysThere) {
  const CellCapacity c{2, 10, 100, 8};
  const KvPlacement r = KvPlacement::of(5, c);
  EXPECT_TRUE(r.fits);
  EXPECT_FALSE(r.streams);
  EXPECT_EQ(r.kept_groups, 2u);
}

TEST(KvPlacement, ALongerOneStreamsAndKeepsWhatTheHostCannotTake) {
  // Ten blocks of four groups: 40 cells.
  EXPECT_TRUE(KvPlacement::of(10, {4, 30, 40, 10}).streams);
  EXPECT_EQ(KvPlacement::of(10, {4, 30, 40, 10}).kept_groups, 0u);
  EXPECT_EQ(KvPlacement::of(10, {4, 30, 39, 10}).kept_groups, 1u);
  EXPECT_EQ(KvPlacement::of(10, {4, 30, 30, 10}).kept_groups, 1u);
  EXPECT_EQ(KvPlacement::of(10, {4, 30, 29, 10}).kept_groups, 2u);
  EXPECT_FALSE(KvPlacement::of(10, {4, 27, 29, 10}).fits) << "no room for the block at its end";
  EXPECT_FALSE(KvPlacement::of(10, {4, 30, 40, 9}).fits) << "a layer of it does not pass through the ring";
  EXPECT_FALSE(KvPlacement::of(10, {4, 30, 0, 10}).fits);
  EXPECT_FALSE(KvPlacement::of(10, {4, 30, 40, 0}).streams);
}

// The fewest groups that have to stay on the device so that the host takes the others.
KvPlacement plainly(uint32_t blocks, const CellCapacity& c) {
  if (blocks * c.groups <= c.device_cells) return {true, false, c.groups};
  if (blocks > c.stage_blocks) return {};
  for (uint32_t kept = 0; kept < c.groups; ++kept) {
    if (blocks * (c.groups - kept) > c.slower_cells) continue;
    if (blocks * kept + 2 * c.groups > c.device_cells) return {};
    return {true, true, kept};
  }
  return {};
}

TEST(KvPlacement, IsThePlainRuleAndTheLongestThatFitsIsTheLongest) {
  for (uint32_t groups = 1; groups <= 4; ++groups) {
    for (uint32_t device = 0; device <= 20; ++device) {
      for (uint32_t host = 0; host <= 40; ++host) {
        for (uint32_t stage = 0; stage <= 16; stage += 2) {
          const CellCapacity c{groups, device, host, stage};
          uint32_t longest = 0;
          for (uint32_t blocks = 1; blocks <= 62; ++blocks) {
            const KvPlacement is = KvPlacement::of(blocks, c);
            const KvPlacement should = plainly(blocks, c);
            ASSERT_EQ(is.fits, should.fits) << blocks << " " << groups << " " << device << " " << host;
            ASSERT_EQ(is.streams, should.streams);
            ASSERT_EQ(is.kept_groups, should.kept_groups);
            if (should.fits) {
              ASSERT_EQ(longest + 1, blocks) << "a shorter one did not fit";
              longest = blocks;
            }
          }
          ASSERT_EQ(KvPlacement::longest(c), longest)
              << groups << " " << device << " " << host << " " << stage;
        }
      }
    }
  }
  EXPECT_EQ(KvPlacement::longest({}), 0u);
}

// ---------------------------------------------------------------- with cells of peers

// Ten blocks of four groups, 40 cells; a leaf has four blocks. A device of 30 cells holds seven blocks, of
// which two are for what is being written: at least five go, or eight with whole leaves.
TEST(KvPlacement, WhatIsBorrowedTakesTheOldestBlocksInEveryLayer) {
  struct Case {
    CellCapacity c;
    bool streams;
    uint32_t away;
    const char* why;
  };
  for (const Case& k : {
           Case{{4, 30, 0, 8, 40, 4}, true, 8, "two whole leaves"},
           Case{{4, 30, 0, 8, 32, 4}, true, 8, "they have 32 cells"},
           Case{{4, 30, 0, 8, 31, 4}, true, 5, "peers lend no two leaves: the second is staged"},
           Case{{4, 30, 0, 8, 20, 4}, true, 5, "five blocks have 20 cells"},
           Case{{4, 30, 0, 8, 19, 4}, false, 0, "one too few"},
           Case{{4, 30, 0, 7, 40, 4}, false, 0, "of the leaves that part at both ends not all pass"},
           Case{{4, 30, 1, 8, 40, 4}, false, 0, "a cell of its own parts one leaf more"},
           Case{{4, 30, 1, 10, 40, 4}, true, 8, "the ring passes all of it"},
           Case{{4, 30, 10, 10, 22, 4}, true, 8, "some on the own host, the rest there"},
           Case{{4, 30, 10, 10, 21, 4}, true, 5, "one cell too few for whole leaves"},
           Case{{4, 30, 40, 10, 0, 4}, true, 10, "nothing borrowed: by layer groups, all blocks alike"},
           Case{{4, 30, 40, 9, 0, 4}, false, 0, "then leaves are of no use"},
           Case{{4, 30, 40, 10, 0, 4, true}, true, 8, "nothing borrowed yet: the rule is the same"},
           Case{{4, 30, 20, 10, 0, 4, true}, true, 5, "of its own it has room for five"},
           Case{{4, 30, 0, 10, 0, 4}, false, 0, "nor is there anything"},
           Case{{4, 8, 0, 8, 40, 4}, true, 10, "room for a block that ends and one that begins"},
           Case{{4, 7, 0, 8, 40, 4}, false, 0, "none for that"},
       }) {
    const KvPlacement r = KvPlacement::of(10, k.c);
    EXPECT_EQ(r.fits, k.streams) << k.why;
    EXPECT_EQ(r.streams, k.streams) << k.why;
    EXPECT_EQ(r.kept_groups, 0u) << k.why;
    EXPECT_EQ(r.away_blocks, k.away) << k.why;
  }
  // A short ring is enough for any length.
  EXPECT_TRUE(KvPlacement::of(10000, {1, 2, 0, 8, 10000, 4}).streams);
  EXPECT_FALSE(KvPlacement::of(10001, {1, 2, 0, 8, 10000, 4}).fits);
  EXPECT_EQ(KvPlacement::longest({1, 2, 0, 8, 10000, 4}), 10000u);
}

TEST(KvPlacement, TheLongestThatFitsIsTheLongestWithBorrowedCellsToo) {
  uint32_t streaming = 0;
  for (uint32_t groups = 1; groups <= 3; ++groups) {
    for (uint32_t device = 0; device <= 14; device += 2) {
      for (uint32_t host = 0; host <= 6; ++host) {
        for (uint32_t stage = 0; stage <= 20; stage += 4) {
          for (uint32_t borrowed : {0u, 1u, 9u, 40u, 71u}) {
            const CellCapacity c{groups, device, host, stage, borrowed, 4};
            uint32_t longest = 0;
            for (uint32_t blocks = 1; blocks <= 92; ++blocks) {
              if (!KvPlacement::of(blocks, c).fits) continue;
              ASSERT_EQ(longest + 1, blocks) << "a shorter one did not fit";
              longest = blocks;
              streaming += KvPlacement::of(blocks, c).streams ? 1 : 0;
            }
            ASSERT_EQ(KvPlacement::longest(c), longest)
                << groups << " " << device << " " << host << " " << stage << " " << borrowed;
          }
        }
      }
    }
  }
  EXPECT_GT(streaming, 1000u);
}

// A device of 20 blocks of four groups: two blocks are for what is being written, 18 for what stays.
TEST(KvPlacement, TheDeviceIsFilledBeforePeersAre) {
  const CellCapacity c = {4, 80, 0, 8, 400, 4};
  EXPECT_EQ(KvPlacement::of(20, c).away_blocks, 0u) << "it fits";
  EXPECT_EQ(KvPlacement::of(21, c).away_blocks, 4u) << "three blocks, a leaf";
  EXPECT_EQ(KvPlacement::of(22, c).away_blocks, 4u);
  EXPECT_EQ(KvPlacement::of(23, c).away_blocks, 8u);
  EXPECT_EQ(KvPlacement::of(30, c).away_blocks, 12u);
  EXPECT_EQ(KvPlacement::of(31, c).away_blocks, 16u);
  EXPECT_EQ(KvPlacement::of(118, c).away_blocks, 100u) << "all that peers lend";
  EXPECT_FALSE(KvPlacement::of(119, c).fits);
  // What the device holds of 30 blocks, twelve of them away, as they come.
  const KvPlacement r = KvPlacement::of(30, c);
  EXPECT_EQ(r.device_cells(5, 4), 0u);
  EXPECT_EQ(r.device_cells(12, 4), 0u);
  EXPECT_EQ(r.device_cells(13, 4), 4u);
  EXPECT_EQ(r.device_cells(30, 4), 72u);
  EXPECT_EQ(KvPlacement::of(20, c).device_cells(7, 4), 28u) << "what does not stream is all there";
  // By layer groups: one of four stays of every block.
  const KvPlacement groups = KvPlacement::of(30, {4, 80, 90, 30});
  EXPECT_EQ(groups.kept_groups, 1u);
  EXPECT_EQ(groups.away_blocks, 30u);
  EXPECT_EQ(groups.device_cells(30, 4), 30u);
}

// What stays leaves the room that a streaming sequence needs, and no more than a leaf of room is left unused.
TEST(KvPlacement, WhatStaysHasItsRoom) {
  uint32_t kept = 0;
  for (uint32_t groups = 1; groups <= 5; ++groups) {
    for (uint32_t device = 4; device <= 120; device += 4) {
      for (uint32_t blocks = device / groups + 1; blocks <= 60; ++blocks) {
        const KvPlacement r = KvPlacement::of(blocks, {groups, device, 0, 8, 1000, 4});
        ASSERT_EQ(r.fits, 2 * groups <= device) << groups << " " << device << " " << blocks;
        if (!r.fits) continue;
        ASSERT_EQ(r.kept_groups, 0u);
        ASSERT_LE(r.away_blocks, blocks);
        ASSERT_TRUE(r.away_blocks % 4 == 0 || r.away_blocks == blocks);
        const uint32_t used = r.device_cells(blocks, groups) + 2 * groups;
        ASSERT_LE(used, device);
        if (r.away_blocks < blocks) {
          ASSERT_GT(used + 4 * groups, device - device % groups);
        }
        kept += r.away_blocks < blocks ? 1 : 0;
      }
    }
  }
  EXPECT_GT(kept, 100u);
}

TEST(KvPlacement, KeptGroupsAreSpreadEvenly) {
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
