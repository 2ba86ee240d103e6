// The size of the stage ring, worked by hand.
#include "cache/commit/stage_ring_size.h"

#include <gtest/gtest.h>

#include "cache/sequences/kv_cache.h"

namespace kvasir {
namespace {

// A token takes 8 bytes of each plane; a slot, one layer of a block, has 256 bytes, a block of 10 layers
// 2,560.
constexpr CacheGeometry kOneGroup = {16, 10, 10, 8};
constexpr CacheGeometry kFiveGroups = {16, 10, 2, 8};
constexpr uint64_t kSlot = 256;
constexpr uint64_t kBlockBytes = 2560;

constexpr RingUse kByChoice = {.stages_by_choice = true};
constexpr RingUse kAskedFor = {.asked_for_length = true};

uint64_t slots(const CacheGeometry& g, uint64_t device_blocks, uint64_t host_blocks, uint32_t tokens,
               RingUse use = {}) {
  const uint64_t bytes =
      stage_ring_bytes(g, device_blocks * kBlockBytes, host_blocks * kBlockBytes, tokens, use);
  EXPECT_EQ(bytes % kSlot, 0u);
  return bytes / kSlot;
}

// What is projected passes a ring also where there is no tier behind the device.
TEST(StageRingSize, ALayerOfTheLongestRequestThatIsProjected) {
  CacheGeometry g = kOneGroup;
  EXPECT_EQ(projection_ring_bytes(g, 1000 * kBlockBytes, 160), 0u) << "no X";
  g.x_bytes_per_token_layer = 4;
  EXPECT_EQ(projection_ring_bytes(g, 1000 * kBlockBytes, 160), 10 * kSlot);
  EXPECT_EQ(projection_ring_bytes(g, 1000 * kBlockBytes, 159), 10 * kSlot);
  EXPECT_EQ(projection_ring_bytes(g, 16 * 5 * kSlot, 1'000'000), 5 * kSlot) << "a sixteenth of the device";
  EXPECT_EQ(projection_ring_bytes(g, 0, 160), 0u);
}

// Parts of many histories pass one, with or without a tier behind the device.
TEST(StageRingSize, TwoLayersOfAFifthOfWhatTheDeviceHolds) {
  EXPECT_EQ(shared_ring_bytes(kOneGroup, 100 * kBlockBytes), 40 * kSlot);
  EXPECT_EQ(shared_ring_bytes(kFiveGroups, 100 * kBlockBytes), 40 * kSlot);
  constexpr CacheGeometry kFourLayers = {16, 4, 4, 8};
  EXPECT_EQ(shared_ring_bytes(kFourLayers, 160 * 4 * kSlot), 40 * kSlot) << "a sixteenth, and not 64 slots";
  EXPECT_EQ(shared_ring_bytes(kOneGroup, 9 * kBlockBytes), 4 * kSlot) << "at least four";
  EXPECT_EQ(shared_ring_bytes(kOneGroup, 2 * kBlockBytes + 3 * kSlot), 3 * kSlot) << "what two blocks leave";
  EXPECT_EQ(shared_ring_bytes(kOneGroup, kBlockBytes), 0u);
}

// Of a history at peers the leaves pass that part at its two ends, and those that a cell of the own host
// parts; beside them the next layer's are staged. A leaf has 16 blocks.
TEST(StageRingSize, TwoLayersOfTheLeavesThatPartBetweenPeersAndHere) {
  constexpr uint64_t kDevice = 100 * kBlockBytes;  // half of it: 500 slots
  for (const CacheGeometry& g : {kOneGroup, kFiveGroups}) {
    EXPECT_EQ(peers_ring_bytes(g, kDevice, 0), 2 * 2 * 16 * kSlot);
    EXPECT_EQ(peers_ring_bytes(g, kDevice, 3), 2 * (3 + 2) * 16 * kSlot);
    EXPECT_EQ(peers_ring_bytes(g, kDevice, 13), 2 * (13 + 2) * 16 * kSlot);
    EXPECT_EQ(peers_ring_bytes(g, kDevice, 14), 500 * kSlot) << "half of the device, and not 512";
    EXPECT_EQ(peers_ring_bytes(g, kDevice, UINT32_MAX), 500 * kSlot);
    EXPECT_EQ(peers_ring_bytes(g, 2 * kBlockBytes + 3 * kSlot, 0), 3 * kSlot) << "what two blocks leave";
    EXPECT_EQ(peers_ring_bytes(g, kBlockBytes, 0), 0u);
  }
  constexpr CacheGeometry kLongBlocks = {64, 10, 2,
                                         8};  // four to a leaf; a slot is as long as four of those above
  EXPECT_EQ(peers_ring_bytes(kLongBlocks, kDevice, 0), 2 * 2 * 4 * 4 * kSlot);
}

TEST(StageRingSize, NothingWithoutAHostTier) {
  EXPECT_EQ(slots(kOneGroup, 100, 0, 100'000), 0u);
  EXPECT_EQ(stage_ring_bytes(kOneGroup, 100 * kBlockBytes, kBlockBytes - 1, 100'000), 0u);
}

TEST(StageRingSize, TwoLayersOfTheLongestRequestThatTheHostCanHold) {
  EXPECT_EQ(slots(kOneGroup, 20, 50, 100'000), 100u);  // of 20 blocks x 10 layers: half, exactly
  EXPECT_EQ(slots(kOneGroup, 40, 50, 100'000, kAskedFor), 100u);
}

TEST(StageRingSize, NoRequestIsLongerThanTheModelAllows) {
  EXPECT_EQ(slots(kOneGroup, 20, 50, 40 * 16), 80u);
  EXPECT_EQ(slots(kOneGroup, 20, 50, 39 * 16 + 1), 80u);
}

TEST(StageRingSize, AtMostHalfOfTheDevice) {
  EXPECT_EQ(slots(kOneGroup, 10, 500, 100'000), 50u);
}

TEST(StageRingSize, FourSlotsWhereNothingStreams) {
  EXPECT_EQ(slots(kOneGroup, 20, 50, 19 * 16), 4u);
  // With one layer group the host alone has to hold what streams.
  EXPECT_EQ(slots(kOneGroup, 20, 10, 100'000), 4u);
}

TEST(StageRingSize, WithLayerGroupsTheTiersAddUp) {
  // 100 cells on the device and 50 on the host: a request of 25 blocks, 125 cells, keeps 3 of its 5 groups on
  // the device (75 cells), which has room beside them for the two blocks that change (10). Of 26 it would
  // have to keep 4 groups (104).
  EXPECT_EQ(slots(kFiveGroups, 20, 10, 100'000, kAskedFor), 50u);
}

TEST(StageRingSize, ASmallDeviceKeepsTheTwoBlocksWithoutWhichNothingStreams) {
  EXPECT_EQ(slots(kOneGroup, 4, 50, 100'000), 20u);
  EXPECT_EQ(slots(kOneGroup, 3, 50, 100'000), 10u);
  EXPECT_EQ(stage_ring_bytes(kOneGroup, 2 * kBlockBytes + 3 * kSlot, 50 * kBlockBytes, 100'000), 3 * kSlot);
  EXPECT_EQ(slots(kOneGroup, 2, 50, 100'000), 0u);
  EXPECT_EQ(stage_ring_bytes(kOneGroup, kSlot, 50 * kBlockBytes, 100'000), 0u);
  EXPECT_EQ(stage_ring_bytes(kOneGroup, 0, 50 * kBlockBytes, 100'000), 0u);
}

TEST(StageRingSize, MoreThanASixteenthOnlyForTwiceTheLengthOrIfAskedFor) {
  // With four slots the device has 19 whole blocks; so 38 are twice as many. A sixteenth of 200 slots are 12,
  // which pass no more blocks than there are on the device.
  EXPECT_EQ(slots(kOneGroup, 20, 50, 38 * 16), 76u);
  EXPECT_EQ(slots(kOneGroup, 20, 50, 37 * 16), 4u);
  EXPECT_EQ(slots(kOneGroup, 20, 50, 37 * 16, kAskedFor), 74u);
  EXPECT_EQ(slots(kOneGroup, 20, 50, 20 * 16, kAskedFor), 40u);
  // With 40 layers a sixteenth of 160 blocks are 400 slots, and 300 blocks pass them, a layer at a time.
  constexpr CacheGeometry kFortyLayers = {16, 40, 40, 8};
  constexpr uint64_t kBlock = 4 * kBlockBytes;
  EXPECT_EQ(stage_ring_bytes(kFortyLayers, 160 * kBlock, 500 * kBlock, 300 * 16), 400 * kSlot);
  EXPECT_EQ(stage_ring_bytes(kFortyLayers, 160 * kBlock, 500 * kBlock, 300 * 16, kAskedFor), 600 * kSlot);
}

// For a policy that stages what the device could hold.
TEST(StageRingSize, AThirtySecondOfTheDeviceThoughNoneStreams) {
  // 19 blocks fit on the device, which has 20: nothing streams. Two layers of 19 are 38 slots, a 32nd of 200
  // are 6.
  EXPECT_EQ(slots(kOneGroup, 20, 50, 19 * 16, kByChoice), 6u);
  EXPECT_EQ(slots(kOneGroup, 20, 50, 19 * 16), 4u);
  // The host holds none that the device does not. A 32nd of 640 blocks of ten layers; two layers of 64 are
  // less.
  EXPECT_EQ(slots(kOneGroup, 640, 10, 500 * 16, kByChoice), 200u);
  EXPECT_EQ(slots(kOneGroup, 640, 10, 64 * 16, kByChoice), 128u);
}

TEST(StageRingSize, StagingByChoiceHasTheSameBounds) {
  EXPECT_EQ(slots(kOneGroup, 20, 0, 100'000, kByChoice), 0u) << "there is nowhere to stage from";
  EXPECT_EQ(slots(kOneGroup, 20, 50, 16, kByChoice), 4u) << "at least 4, though a block needs two";
  // Half of ten blocks of ten layers; the longest of 500 on the host would need 1,000.
  EXPECT_EQ(slots(kOneGroup, 10, 500, 100'000, kByChoice), 50u);
  // Two of the three blocks are kept for frames.
  EXPECT_EQ(slots(kOneGroup, 3, 50, 100'000, kByChoice), 10u);
  EXPECT_EQ(slots(kOneGroup, 2, 50, 100'000, kByChoice), 0u);
}

TEST(StageRingSize, WhereSomethingStreamsTheRingIsTheSameEitherWay) {
  EXPECT_EQ(slots(kOneGroup, 20, 50, 100'000, kByChoice), slots(kOneGroup, 20, 50, 100'000));
  EXPECT_EQ(slots(kFiveGroups, 20, 50, 100'000, kByChoice), slots(kFiveGroups, 20, 50, 100'000));
}

TEST(StageRingSize, WhatItPassesIsWhatTheCacheCounts) {
  CacheOptions cache;
  cache.geometry = kOneGroup;
  cache.stage_bytes = stage_ring_bytes(kOneGroup, 40 * kBlockBytes, 80 * kBlockBytes, 100'000);
  EXPECT_EQ(cache.stage_blocks(), 160u);
}

}  // namespace
}  // namespace kvasir
