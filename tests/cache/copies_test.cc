// Copies that are added and given up, one rule at a time.
#include <gmock/gmock.h>

#include "cache/copies_fixture.h"

namespace kvasir::test {
namespace {

using testing::IsEmpty;

// ---------------------------------------------------------------- adding

TEST_F(CopiesTest, OneTransferForEachLayerGroupMovesRunsOfFullBlocks) {
  computed(kA, 40);
  const std::vector<Transfer> transfers = add(kA, {0, 40}, Tier::kHost);
  ASSERT_EQ(transfers.size(), 2u);
  const BlockTable& frames = *cache_.table(kA);
  uint64_t next = transfers[0].segments[0].to.offset;
  for (uint32_t g = 0; g < 2; ++g) {
    ASSERT_EQ(transfers[g].segments.size(), 2u) << "two full blocks";
    EXPECT_EQ(transfers[g].bytes(), 2u * 512);
    EXPECT_EQ(transfers[g].priority, TransferPriority::kOffload);
    EXPECT_THAT(transfers[g].after, IsEmpty());
    for (uint32_t i = 0; i < 2; ++i) {
      const Segment& s = transfers[g].segments[i];
      EXPECT_EQ(s.from, (MemoryAddress{frames[i * 2 + g].k, Tier::kDevice}));
      EXPECT_EQ(s.to.tier, Tier::kHost);
      if (g == 0) {
        EXPECT_EQ(s.to.offset, next) << "an extent grows with the tokens";
        next += 512;
      }
    }
  }
  SequenceCells s = cache_.summary(kA);
  EXPECT_EQ(s.cells[0][kHost], 4u);
  EXPECT_EQ(s.cells[0][kDevice], 6u);
  EXPECT_EQ(s.own_cells[0][kHost], 0u) << "transfers use them";
  EXPECT_EQ(s.transfers, 2u);
  EXPECT_EQ(cache_.transfers_in_flight(), 2u);
  EXPECT_EQ(available(Tier::kHost), 12);
  EXPECT_THAT(add(kA, {0, 40}, Tier::kHost), IsEmpty()) << "they are on their way";

  finish(transfers);
  s = cache_.summary(kA);
  EXPECT_EQ(s.own_cells[0][kHost], 4u);
  EXPECT_EQ(s.own_cells[0][kDevice], 6u);
  EXPECT_EQ(s.transfers, 0u);
  EXPECT_TRUE(s.tail_resident);
  EXPECT_THAT(add(kA, {0, 40}, Tier::kHost), IsEmpty()) << "they are there";
}

TEST_F(CopiesTest, ARectangleNamesSomeBlocksAndSomeGroups) {
  computed(kA, 60);
  const std::vector<Transfer> transfers =
      add(kA, {16, 32}, Tier::kHost, false, group(1), Trigger::kBackground);
  ASSERT_EQ(transfers.size(), 1u);
  ASSERT_EQ(transfers[0].segments.size(), 1u);
  EXPECT_EQ(transfers[0].segments[0].from.offset, (*cache_.table(kA))[1 * 2 + 1].k);
  EXPECT_EQ(transfers[0].priority, TransferPriority::kOffload);
  EXPECT_EQ(cells(kA, kHost), 1u);
  finish(transfers);
}

TEST_F(CopiesTest, CopiesDrawOnThePromise) {
  computed(kA, 40);
  cache_.promise({kA, 6, Tier::kHost});
  EXPECT_EQ(available(Tier::kHost), 10);
  const std::vector<Transfer> transfers = add(kA, {0, 32}, Tier::kHost);
  EXPECT_EQ(cache_.summary(kA).promised_cells[kHost], 2u);
  EXPECT_EQ(available(Tier::kHost), 10);
  finish(transfers);
}

// ---------------------------------------------------------------- leaving

TEST_F(CopiesTest, WhatIsCleanIsEvictedForNothing) {
  computed(kA, 40);
  finish(add(kA, {0, 32}, Tier::kHost));
  EXPECT_EQ(available(Tier::kDevice), 10);
  leave(kA, {0, 32}, Tier::kDevice);
  EXPECT_EQ(available(Tier::kDevice), 14) << "at once";
  const SequenceCells s = cache_.summary(kA);
  EXPECT_EQ(s.cells[0][kDevice], 2u);
  EXPECT_EQ(s.leaving_cells, 0u);
  EXPECT_EQ(s.resident_blocks, 1u);
  EXPECT_TRUE(s.device_groups.empty());
  EXPECT_TRUE(s.tail_resident);
  EXPECT_EQ(s.ready_tokens, 40u);
  const BlockTable& frames = *cache_.table(kA);
  EXPECT_FALSE(frames[0].present());
  EXPECT_TRUE(frames[4].present());
}

TEST_F(CopiesTest, ItLeavesGroupByGroupAsTheOtherCopyIsReady) {
  computed(kA, 40);
  const std::vector<Transfer> transfers = add(kA, {0, 32}, Tier::kHost);
  leave(kA, {0, 40}, Tier::kDevice);
  EXPECT_EQ(cache_.summary(kA).leaving_cells, 4u) << "of the last block there is no other copy";
  EXPECT_EQ(coming(), 4);
  EXPECT_EQ(available(Tier::kDevice), 10);
  finish(transfers[1]);
  EXPECT_EQ(cache_.summary(kA).leaving_cells, 2u);
  EXPECT_EQ(cells(kA, kDevice), 4u);
  EXPECT_EQ(available(Tier::kDevice), 12);
  EXPECT_EQ(cache_.summary(kA).device_groups, group(0));
  finish(transfers[0]);
  EXPECT_EQ(cells(kA, kDevice), 2u);
  EXPECT_EQ(available(Tier::kDevice), 14);
  EXPECT_EQ(coming(), 0);
}

TEST_F(CopiesTest, WhatLeavesIsStillReadByTheStepsInFlight) {
  computed(kA, 40);
  finish(add(kA, {0, 32}, Tier::kHost));
  cache_.append_token(kA, 7);
  submit(1, kA, 41);
  const auto table = cache_.table(kA);
  leave(kA, {0, 32}, Tier::kDevice);
  EXPECT_EQ(available(Tier::kDevice), 10);
  EXPECT_EQ(coming(), 4);
  EXPECT_TRUE((*table)[0].present()) << "the step keeps the table that it was given";
  end(1);
  EXPECT_EQ(available(Tier::kDevice), 14);
}

TEST_F(CopiesTest, WhatIsLeavingCanBeHeldBack) {
  computed(kA, 40);
  const std::vector<Transfer> transfers = add(kA, {0, 32}, Tier::kHost);
  leave(kA, {0, 32}, Tier::kDevice);
  EXPECT_THAT(add(kA, {0, 32}, Tier::kDevice), IsEmpty());
  EXPECT_EQ(cache_.summary(kA).leaving_cells, 0u);
  finish(transfers);
  EXPECT_EQ(cells(kA, kDevice), 6u);
  EXPECT_EQ(cells(kA, kHost), 4u);
}

TEST_F(CopiesTest, TheHostsCopyIsGivenUpWhereTheDeviceHasOne) {
  computed(kA, 40);
  finish(add(kA, {0, 32}, Tier::kHost));
  leave(kA, {0, 16}, Tier::kDevice);
  leave(kA, {0, 40}, Tier::kHost);
  EXPECT_EQ(cells(kA, kHost), 2u) << "the first block is nowhere else";
  EXPECT_EQ(available(Tier::kHost), 14);
}

TEST_F(CopiesTest, ASharedBlockStaysForItsOtherOwner) {
  computed(kA, 40);
  cache_.add_sequence(kB, tokens(40), "");
  cache_.adopt(kB, 32);
  EXPECT_EQ(cache_.summary(kB).own_cells[0][kDevice], 0u);
  finish(add(kA, {0, 32}, Tier::kHost));
  leave(kA, {0, 32}, Tier::kDevice);
  EXPECT_EQ(cells(kA, kDevice), 2u);
  EXPECT_EQ(available(Tier::kDevice), 10) << "B has them still";
  EXPECT_EQ(cache_.summary(kB).own_cells[0][kDevice], 4u) << "and alone";
  EXPECT_FALSE((*cache_.table(kA))[0].present() && cache_.summary(kA).resident_blocks == 3);
  cache_.add_sequence(kC, tokens(40), "");
  EXPECT_EQ(cached(kC), 32u) << "they can be found still";

  // B's copy is one that A can have back for nothing.
  EXPECT_THAT(add(kA, {0, 32}, Tier::kDevice), IsEmpty());
  EXPECT_EQ(cells(kA, kDevice), 6u);
  EXPECT_EQ(available(Tier::kDevice), 10);
  cache_.remove_sequence(kA);
  EXPECT_EQ(available(Tier::kHost), 16);
  EXPECT_EQ(cells(kB, kDevice), 4u);
}

// ---------------------------------------------------------------- tails

TEST_F(CopiesTest, ATailThatHasGrownSinceIsNoCopyAndIsCopiedAgain) {
  computed(kA, 40);
  std::vector<Transfer> transfers = add(kA, {0, 40}, Tier::kHost, /*tail=*/true);
  ASSERT_EQ(transfers.size(), 2u);
  EXPECT_EQ(transfers[0].segments.size(), 3u);
  EXPECT_TRUE(cache_.summary(kA).tail_busy) << "its bytes are being read";
  finish(transfers);
  EXPECT_FALSE(cache_.summary(kA).tail_busy);

  for (Token t = 40; t < 44; ++t) cache_.append_token(kA, t);
  submit(1, kA, 44);
  EXPECT_EQ(cells(kA, kHost), 4u) << "the host has the last block as it was: not all of it";
  EXPECT_EQ(available(Tier::kHost), 12);
  end(1);
  leave(kA, {0, 44}, Tier::kDevice);
  EXPECT_EQ(cells(kA, kDevice), 2u);
  EXPECT_TRUE(cache_.summary(kA).tail_resident);

  transfers = add(kA, {0, 44}, Tier::kHost, /*tail=*/true);
  ASSERT_EQ(transfers.size(), 2u);
  ASSERT_EQ(transfers[0].segments.size(), 1u);
  leave(kA, {0, 44}, Tier::kDevice);
  EXPECT_EQ(cache_.summary(kA).leaving_cells, 2u);
  finish(transfers);
  EXPECT_EQ(cells(kA, kDevice), 0u);
  EXPECT_FALSE(cache_.summary(kA).tail_resident);
  EXPECT_EQ(cells(kA, kHost), 6u);
}

TEST_F(CopiesTest, ABlockThatFillsUpAfterItsTailWasCopiedIsCopiedAgain) {
  computed(kA, 40);
  finish(add(kA, {0, 40}, Tier::kHost, /*tail=*/true));
  for (Token t = 40; t < 50; ++t) cache_.append_token(kA, t);
  submit(1, kA, 50);
  end(1);
  const std::vector<Transfer> transfers = add(kA, {0, 48}, Tier::kHost);
  ASSERT_EQ(transfers.size(), 2u);
  EXPECT_EQ(transfers[1].segments.size(), 1u);
  finish(transfers);
  leave(kA, {0, 48}, Tier::kDevice);
  EXPECT_EQ(cells(kA, kDevice), 2u);
}

TEST_F(CopiesTest, WithoutItsTailASequenceCanComeBackInPart) {
  computed(kA, 40);
  offload(kA);
  EXPECT_EQ(available(Tier::kDevice), 16);
  const std::vector<Transfer> transfers =
      add(kA, {32, 40}, Tier::kDevice, /*tail=*/true, LayerSet::all(2), Trigger::kBeforeLayer);
  ASSERT_EQ(transfers.size(), 2u);
  EXPECT_EQ(transfers[0].priority, TransferPriority::kNeededNow);
  SequenceCells s = cache_.summary(kA);
  EXPECT_TRUE(s.tail_resident);
  EXPECT_FALSE(s.tail_busy) << "it is being filled, which rows wait for";
  EXPECT_EQ(cache_.holdings(kA).filling, 2u);
  finish(transfers);
  s = cache_.summary(kA);
  EXPECT_EQ(s.resident_blocks, 1u);
  EXPECT_EQ(s.cells[0][kHost], 6u) << "the host keeps its copies until they are given up";
  EXPECT_EQ(cache_.holdings(kA).filling, 0u);
}

}  // namespace
}  // namespace kvasir::test
