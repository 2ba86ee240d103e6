// The ring's slots go round, within a step and from one to the next.
#include "cache/stage_ring.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

const CacheGeometry kGeometry{16, 4, 2, 8};  // 128 bytes for a plane of one layer

TEST(StageRing, SlotsLieOneBehindTheOtherFromTheOffsetOn) {
  StageRing ring(kGeometry, 10'000, 3);
  EXPECT_EQ(ring.slots(), 3u);
  ring.begin_step();
  for (uint32_t i = 0; i < 3; ++i) {
    const StageRing::Slot slot = ring.take(0);
    EXPECT_EQ(slot.index, i);
    EXPECT_EQ(slot.at, (KvPlanes{10'000 + i * 256, 10'128 + i * 256}));
    EXPECT_EQ(slot.free_from, kStepBegins);
    EXPECT_EQ(slot.after, TransferId{});
  }
}

TEST(StageRing, ALaterLayerHasASlotWhenTheOneBeforeHasAttended) {
  StageRing ring(kGeometry, 0, 3);
  ring.begin_step();
  for (int i = 0; i < 2; ++i) ring.take(0);
  EXPECT_EQ(ring.take(1).free_from, kStepBegins) << "the third is fresh";
  EXPECT_EQ(ring.take(1).free_from, layer_attended(0));
  EXPECT_EQ(ring.take(2).free_from, layer_attended(0));
  EXPECT_EQ(ring.take(2).free_from, layer_attended(1));
  EXPECT_EQ(ring.take(3).free_from, layer_attended(1));
}

TEST(StageRing, TheNextStepGoesOnBehindTheLastAndWaitsForItsTransfersOnly) {
  StageRing ring(kGeometry, 0, 3);
  ring.begin_step();
  const StageRing::Slot a = ring.take(0);
  const StageRing::Slot b = ring.take(1);
  ring.set_transfer(a, TransferId{7});
  ring.set_transfer(b, TransferId{8});
  ring.begin_step();
  EXPECT_EQ(ring.take(0).index, 2u);
  const StageRing::Slot again = ring.take(0);
  EXPECT_EQ(again.index, 0u);
  EXPECT_EQ(again.free_from, kStepBegins) << "the step before has ended by then";
  EXPECT_EQ(again.after, TransferId{7}) << "but its transfer may not have";
  ring.set_transfer(again, TransferId{9});
  EXPECT_EQ(ring.take(1).after, TransferId{8});
}

TEST(StageRingDeathTest, WhatALayerNeedsAtATimeMustFit) {
  StageRing ring(kGeometry, 0, 2);
  ring.begin_step();
  ring.take(0);
  ring.take(0);
  EXPECT_DEATH(ring.take(0), "layer=0: the ring of 2 slots is taken");
  StageRing none(kGeometry, 0, 0);
  EXPECT_DEATH(none.take(1), "layer=1: there is no stage ring");
}

}  // namespace
}  // namespace kvasir
