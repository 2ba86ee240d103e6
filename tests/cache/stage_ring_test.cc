// The ring's slots go round, within a step and from one to the next.
#include "cache/commit/stage_ring.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

const CacheGeometry kGeometry{16, 4, 2, 8};  // 128 bytes for a plane of one layer

const auto kNoneInFlight = [](TransferId) { return false; };
const auto kAllInFlight = [](TransferId id) { return id != TransferId{}; };

TEST(StageRing, SlotsLieOneBehindTheOtherFromTheOffsetOn) {
  StageRing ring(kGeometry, 10'000, 3);
  EXPECT_EQ(ring.slots(), 3u);
  ring.begin_step(kNoneInFlight);
  for (uint32_t i = 0; i < 3; ++i) {
    const StageRing::Slots slot = ring.take(0, 1);
    EXPECT_EQ(slot.count, 1u);
    EXPECT_EQ(slot.at, (KvPlanes{10'000 + i * 256, 10'128 + i * 256}));
    EXPECT_EQ(slot.free_from, kStepBegins);
    EXPECT_EQ(slot.after, TransferId{});
  }
}

TEST(StageRing, ALaterLayerHasASlotWhenTheOneBeforeHasAttended) {
  StageRing ring(kGeometry, 0, 3);
  ring.begin_step(kAllInFlight);
  for (int i = 0; i < 2; ++i) ring.take(0, 1);
  EXPECT_EQ(ring.take(1, 1).free_from, kStepBegins) << "the third is fresh";
  EXPECT_EQ(ring.take(1, 1).free_from, layer_attended(0));
  EXPECT_EQ(ring.take(2, 1).free_from, layer_attended(0));
  EXPECT_EQ(ring.take(2, 1).free_from, layer_attended(1));
  EXPECT_EQ(ring.take(3, 1).free_from, layer_attended(1));
}

TEST(StageRing, TheNextStepGoesOnBehindTheLastAndWaitsForItsTransfersOnly) {
  StageRing ring(kGeometry, 0, 3);
  ring.begin_step(kAllInFlight);
  const StageRing::Slots a = ring.take(0, 1);
  const StageRing::Slots b = ring.take(1, 1);
  ring.set_transfer(a, TransferId{7});
  ring.set_transfer(b, TransferId{8});
  ring.begin_step(kAllInFlight);
  EXPECT_EQ(ring.take(0, 1).at.k, 2 * 256u);
  const StageRing::Slots again = ring.take(0, 1);
  EXPECT_EQ(again.at.k, 0u);
  EXPECT_EQ(again.free_from, kStepBegins) << "the step before has ended by then";
  EXPECT_EQ(again.after, TransferId{7}) << "but its transfer may not have";
  ring.set_transfer(again, TransferId{9});
  EXPECT_EQ(ring.take(1, 1).after, TransferId{8});
}

TEST(StageRing, SlotsThatWaitForTheSameAreTakenTogether) {
  StageRing ring(kGeometry, 0, 5);
  ring.begin_step(kNoneInFlight);
  const StageRing::Slots a = ring.take(0, 2);
  EXPECT_EQ(a.count, 2u);
  EXPECT_EQ(a.slot(1), (KvPlanes{256, 384}));
  ring.set_transfer(a, TransferId{7});
  EXPECT_EQ(ring.take(0, 9).count, 3u) << "no further than the ring's end";
  EXPECT_EQ(ring.take(1, 9).count, 2u) << "the others were not part of the transfer";
  EXPECT_EQ(ring.take(1, 1).after, TransferId{});
  // What has ended is nothing to wait for, and then they are all alike.
  ring.begin_step(kNoneInFlight);
  EXPECT_EQ(ring.take(0, 9).count, 2u);
  const StageRing::Slots all = ring.take(1, 9);
  EXPECT_EQ(all.at.k, 0u);
  EXPECT_EQ(all.count, 3u);
}

TEST(StageRing, RowsWithoutATransferLeaveTheOneThatIsInFlight) {
  StageRing ring(kGeometry, 0, 1);
  ring.begin_step(kNoneInFlight);
  ring.set_transfer(ring.take(0, 1), TransferId{7});
  ring.begin_step(kAllInFlight);
  ring.take(0, 1);
  EXPECT_EQ(ring.take(1, 1).after, TransferId{7});
}

TEST(StageRingDeathTest, WhatALayerNeedsAtATimeMustFit) {
  StageRing ring(kGeometry, 0, 2);
  ring.begin_step(kAllInFlight);
  ring.take(0, 1);
  ring.take(0, 1);
  EXPECT_DEATH(ring.take(0, 1), "layer=0: the ring of 2 slots is taken");
  StageRing none(kGeometry, 0, 0);
  EXPECT_DEATH(none.take(1, 1), "layer=1: there is no stage ring");
}

}  // namespace
}  // namespace kvasir
