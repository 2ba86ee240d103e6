// The builder's arithmetic where there is a host tier: sequences that are swapped out, and those that stream.
// Blocks have 16 tokens, and two cells.
#include <gtest/gtest.h>

#include "fakes/plan_checks.h"
#include "fakes/views.h"
#include "plan/plan_builder.h"
#include "plan/plan_checker.h"

namespace kvasir::test {
namespace {

// ---------------------------------------------------------------- out and back

TEST(PlanBuilderSwap, APreemptedSequenceKeepsItsCellsOnTheHost) {
  View view = make_view(10, 4);
  set_host(view, 6, 4);
  view.running = {decoding_seq(1, 20, 40)};
  PlanBuilder b(view);
  ASSERT_TRUE(b.preempt_and_offload(view.running[0]));
  EXPECT_TRUE(b.preempted(SeqId{1}));
  EXPECT_EQ(b.running_seqs(), 0u);
  EXPECT_EQ(b.available_blocks(), 4) << "what leaves is still read";
  EXPECT_EQ(b.coming_blocks(), 3);
  EXPECT_EQ(checked(view, b),
            "preempt 1\nadd 1 [0, 39) kv host x2 now\ndrop 1 [0, 39) kv device x2 when_ready\n");
}

TEST(PlanBuilderSwap, WithoutRoomOnTheHostNothingIsPlanned) {
  View view = make_view(10, 4);
  view.running = {decoding_seq(1, 20, 40)};
  for (uint32_t free : {0u, 2u}) {
    set_host(view, 6, free);
    PlanBuilder b(view);
    EXPECT_FALSE(b.preempt_and_offload(view.running[0]));
    EXPECT_FALSE(b.preempted(SeqId{1}));
    EXPECT_EQ(b.running_seqs(), 1u);
    EXPECT_TRUE(b.take().preemptions.empty());
  }
  // Two of its blocks are there already, so that one is enough.
  view.running[0].cells[0][static_cast<size_t>(Tier::kHost)] = 4;
  PlanBuilder b(view);
  EXPECT_TRUE(b.preempt_and_offload(view.running[0]));
}

TEST(PlanBuilderSwap, TheRoomIsTakenOnce) {
  View view = make_view(10, 1);
  set_host(view, 6, 5);
  view.running = {decoding_seq(1, 20, 40), decoding_seq(2, 20, 40)};
  PlanBuilder b(view);
  EXPECT_TRUE(b.preempt_and_offload(view.running[1]));
  EXPECT_FALSE(b.preempt_and_offload(view.running[0]));
  EXPECT_TRUE(check_plan(view, b.take()).ok());
}

TEST(PlanBuilderSwap, ASwappedOutSequenceComesBackAndGoesOn) {
  View view = make_view(10, 5);
  set_host(view, 6, 3);
  view.waiting = {swapped_seq(1, 20, 40, 39)};
  PlanBuilder b(view);
  EXPECT_FALSE(b.admit(view.waiting[0], {3})) << "of five blocks it takes three";
  ASSERT_TRUE(b.admit(view.waiting[0], {2}));
  EXPECT_EQ(b.available_blocks(), 2);
  EXPECT_EQ(b.running_seqs(), 1u);
  ASSERT_TRUE(b.decode(view.waiting[0])) << "nothing of it passes through the ring: there is none";
  EXPECT_EQ(checked(view, b),
            "add 1 [0, 39) kv device x2 before_layer\n"
            "decode 1 [39, 40) samples\n");
}

TEST(PlanBuilderSwap, WhatItStillHasToComputeIsPromisedBesideWhatComesBack) {
  View view = make_view(10, 7);
  set_host(view, 6, 3);
  view.waiting = {swapped_seq(1, 90, 90, 39)};  // six blocks in the end, three of them on the host
  PlanBuilder b(view);
  ASSERT_TRUE(b.admit(view.waiting[0]));
  EXPECT_EQ(b.available_blocks(), 1);
  EXPECT_EQ(b.prefill(view.waiting[0], 20), 20u);
  EXPECT_EQ(b.available_blocks(), 1) << "its rows draw on the promise";
  EXPECT_EQ(checked(view, b),
            "add 1 [0, 39) kv device x2 before_layer\n"
            "promise 1 12 cells on device\n"
            "prefill 1 [39, 59)\n");
}

TEST(PlanBuilderSwap, WhatIsStillLeavingIsHeldBack) {
  // Everything is on the device still, so that coming back costs nothing.
  View view = make_view(10, 0);
  set_host(view, 6, 3);
  SeqView s = decoding_seq(1, 20, 40);
  s.leaving_cells = 6;
  set_cells(s, Tier::kHost, 6);
  view.waiting = {s};
  PlanBuilder b(view);
  ASSERT_TRUE(b.admit(view.waiting[0]));
  ASSERT_TRUE(b.decode(view.waiting[0]));
  EXPECT_EQ(checked(view, b), "add 1 [0, 39) kv device x2 before_layer\ndecode 1 [39, 40) samples\n");
}

TEST(PlanBuilderSwap, AWaitingSequenceGivesUpItsCellsOnEveryTier) {
  View view = make_view(10, 0);
  set_host(view, 6, 3);
  SeqView s = decoding_seq(1, 20, 40);
  set_cells(s, Tier::kHost, 4);
  view.waiting = {s, waiting_seq(2, 48)};
  PlanBuilder b(view);
  EXPECT_FALSE(b.admit(view.waiting[1]));
  b.drop_waiting(view.waiting[0]);
  EXPECT_EQ(b.available_blocks(), 3);
  ASSERT_TRUE(b.admit(view.waiting[1]));
  EXPECT_EQ(b.prefill(view.waiting[1], 48), 48u);
  EXPECT_EQ(checked(view, b),
            "drop_all 1 kv device\ndrop_all 1 kv host\n"
            "promise 2 6 cells on device\nprefill 2 [0, 48) samples\n");
}

// ---------------------------------------------------------------- copies by themselves

TEST(PlanBuilderCopies, AreOfFullBlocksAndTakeRoomOnTheirTier) {
  View view = make_view(10, 4);
  set_host(view, 6, 2);
  view.running = {decoding_seq(1, 20, 40)};
  PlanBuilder b(view);
  const LayerSet all = LayerSet::all(2);
  EXPECT_TRUE(b.add_copies(view.running[0], {0, 39}, all, Tier::kHost, Trigger::kBackground));
  EXPECT_FALSE(b.add_copies(view.running[0], {0, 16}, LayerSet::all(1), Tier::kHost, Trigger::kNow))
      << "the host is full";
  EXPECT_TRUE(b.add_copies(view.running[0], {32, 39}, all, Tier::kHost, Trigger::kNow))
      << "of no full block, which is nothing";
  b.release(view.running[0], {0, 32}, LayerSet::all(1), Tier::kDevice);
  EXPECT_EQ(b.coming_blocks(), 1);
  EXPECT_EQ(b.available_blocks(), 4);
  ASSERT_TRUE(b.decode(view.running[0]));
  EXPECT_EQ(checked(view, b),
            "add 1 [0, 32) kv host x2 background\ndrop 1 [0, 32) kv device x1 when_ready\n"
            "decode 1 [39, 40) samples\n");
}

TEST(PlanBuilderCopies, APreemptionEndsPromisesOnce) {
  View view = make_view(10, 4);
  set_host(view, 6, 1);
  view.host.promised[0] = 2;
  SeqView s = decoding_seq(1, 20, 40);
  s.promised_cells[static_cast<size_t>(Tier::kHost)] = 2;
  view.running = {s};
  PlanBuilder b(view);
  b.preempt_and_keep(view.running[0]);
  EXPECT_TRUE(b.add_copies(view.running[0], {0, 16}, LayerSet::all(2), Tier::kHost, Trigger::kBackground));
  EXPECT_FALSE(b.add_copies(view.running[0], {16, 32}, LayerSet::all(1), Tier::kHost, Trigger::kBackground));
  EXPECT_EQ(checked(view, b), "preempt 1\nadd 1 [0, 16) kv host x2 background\n");
}

// ---------------------------------------------------------------- streaming

// Six blocks on the device, twenty on the host. A request of 200 tokens (13 blocks) streams.
View streaming_view(uint32_t ring) {
  View view = make_view(6, 6);
  set_host(view, 20, 20);
  set_ring(view, ring);
  return view;
}

TEST(PlanBuilderStreaming, ALongRequestTakesRoomOnTheHostAndItsFullBlocksGoThere) {
  View view = streaming_view(13);
  view.waiting = {waiting_seq(1, 100)};
  PlanBuilder b(view);
  const KvPlacement where = b.kv_placement(view.waiting[0]);
  EXPECT_TRUE(where.streams);
  EXPECT_EQ(where.kept_groups, 0u);
  EXPECT_FALSE(b.admit(view.waiting[0], {5})) << "two blocks are asked for";
  ASSERT_TRUE(b.admit(view.waiting[0], {4}));
  EXPECT_EQ(b.available_blocks(), 6) << "asked for, not kept";
  EXPECT_EQ(b.prefill(view.waiting[0], 1000), 100u);
  EXPECT_EQ(b.available_blocks(), 5);
  EXPECT_EQ(checked(view, b),
            "add 1 [0, 96) kv host x2 after_layer_writes\n"
            "promise 1 24 cells on host\n"
            "prefill 1 [0, 100) samples x2 keeps kv x0 x x0\n");
}

TEST(PlanBuilderStreaming, WithoutARingItCannotBe) {
  View view = streaming_view(12);
  view.waiting = {waiting_seq(1, 100)};
  PlanBuilder b(view);
  EXPECT_FALSE(b.kv_placement(view.waiting[0]).fits);
}

TEST(PlanBuilderStreaming, TheHostHasRoomForAllThatItCanBecome) {
  View view = streaming_view(13);
  set_host(view, 20, 11);  // twelve blocks are needed
  view.waiting = {waiting_seq(1, 100)};
  PlanBuilder b(view);
  EXPECT_FALSE(b.admit(view.waiting[0]));
}

TEST(PlanBuilderStreaming, GroupsThatTheHostCannotTakeStayOnTheDevice) {
  // 13 blocks are 26 cells; the host has 20, so that one of the two groups is kept.
  View view = make_view(12, 12);
  set_host(view, 10, 10);
  set_ring(view, 13);
  view.waiting = {waiting_seq(1, 100)};
  PlanBuilder b(view);
  EXPECT_EQ(b.kv_placement(view.waiting[0]).kept_groups, 1u);
  ASSERT_TRUE(b.admit(view.waiting[0]));
  EXPECT_EQ(b.prefill(view.waiting[0], 40), 40u);
  EXPECT_EQ(b.available_blocks(), 10) << "two cells of full blocks and two of the last one";
  EXPECT_EQ(checked(view, b),
            "add 1 [0, 32) kv host x1 after_layer_writes\n"
            "promise 1 12 cells on host\n"
            "prefill 1 [0, 40) x2 keeps kv x1 x x0\n");
}

TEST(PlanBuilderStreaming, ADecodeIsStaged) {
  View view = streaming_view(13);
  view.running = {streaming_seq(1, 100, 121, 120)};
  PlanBuilder b(view);
  EXPECT_TRUE(b.can_run(view.running[0]));
  ASSERT_TRUE(b.decode(view.running[0]));
  EXPECT_EQ(b.available_blocks(), 6) << "it goes on in the block that it has";
  EXPECT_EQ(checked(view, b),
            "stage 1 [0, 120) kv device x2 before_layer\ndecode 1 [120, 121) samples x2 keeps kv x0 x x0\n");
}

TEST(PlanBuilderStreaming, OnlyTheGroupsThatAreNotThereAreStaged) {
  View view = streaming_view(13);
  SeqView s = streaming_seq(1, 100, 121, 120);
  s.device_groups.add(1);
  set_cells(s, Tier::kDevice, 8 + 1);
  view.running = {s};
  PlanBuilder b(view);
  ASSERT_TRUE(b.decode(view.running[0], {.kv = LayerSet::all(2)}));
  EXPECT_EQ(b.take().copies[0].layers, LayerSet::all(1));
}

TEST(PlanBuilderStreaming, ABlockThatWasFilledTokenByTokenLeavesTheDevice) {
  View view = streaming_view(13);
  SeqView s = streaming_seq(1, 100, 129, 128);  // its eighth block is full and still on the device
  set_cells(s, Tier::kHost, 14);
  set_cells(s, Tier::kDevice, 2);
  s.resident_blocks = 1;
  view.running = {s};
  PlanBuilder b(view);
  ASSERT_TRUE(b.decode(view.running[0]));
  EXPECT_EQ(b.available_blocks(), 5) << "its ninth block";
  EXPECT_EQ(b.coming_blocks(), 1);
  EXPECT_EQ(checked(view, b),
            "stage 1 [0, 128) kv device x2 before_layer\n"
            "add 1 [0, 128) kv host x2 background\n"
            "drop 1 [0, 128) kv device x2 when_ready\n"
            "decode 1 [128, 129) samples x2 keeps kv x0 x x0\n");
}

TEST(PlanBuilderStreaming, TheRingIsSharedByAllOfAStep) {
  View view = streaming_view(13);
  view.running = {streaming_seq(1, 100, 120, 100), streaming_seq(2, 100, 120, 40),
                  streaming_seq(3, 100, 121, 120)};
  PlanBuilder b(view);
  EXPECT_EQ(b.prefill(view.running[0], 1000), 20u);  // stages six blocks, fills none anew
  EXPECT_TRUE(b.can_run(view.running[2])) << "seven slots, for seven blocks";
  EXPECT_EQ(b.prefill(view.running[1], 1000), 80u);  // stages two, and four new ones pass
  EXPECT_FALSE(b.can_run(view.running[2]));
  EXPECT_FALSE(b.decode(view.running[2]));
  EXPECT_TRUE(check_plan(view, b.take()).ok());
}

TEST(PlanBuilderStreaming, AChunkEndsWhereTheRingEnds) {
  View view = streaming_view(13);
  view.running = {streaming_seq(1, 100, 130, 112), streaming_seq(2, 100, 100, 32)};
  PlanBuilder b(view);
  // Seven blocks of history, and one that these rows fill: five slots are left.
  EXPECT_EQ(b.prefill(view.running[0], 1000), 18u);
  // Two of history, three new full ones, and a last one that is one token short of full.
  EXPECT_EQ(b.prefill(view.running[1], 1000), 3u * 16 + 15);
  EXPECT_TRUE(check_plan(view, b.take()).ok());
}

TEST(PlanBuilderStreaming, APreemptedOneComesBackWithItsLastBlockAlone) {
  View view = streaming_view(13);
  set_host(view, 20, 12);
  view.waiting = {swapped_seq(1, 100, 121, 120)};
  PlanBuilder b(view);
  ASSERT_TRUE(b.admit(view.waiting[0]));
  ASSERT_TRUE(b.decode(view.waiting[0]));
  EXPECT_EQ(b.available_blocks(), 5);
  EXPECT_EQ(checked(view, b),
            "add 1 [112, 120) kv device x2 before_layer\n"
            "stage 1 [0, 120) kv device x2 before_layer\n"
            "promise 1 8 cells on host\n"
            "decode 1 [120, 121) samples x2 keeps kv x0 x x0\n");
}

TEST(PlanBuilderStreaming, OneThatEndsWithAFullBlockHasNothingToBringBack) {
  View view = streaming_view(13);
  SeqView s = streaming_seq(1, 100, 113, 112);
  s.leaving_cells = 2;  // on their way to the host, which has them in a moment
  set_cells(s, Tier::kDevice, 2);
  s.resident_blocks = 1;
  view.waiting = {s};
  PlanBuilder b(view);
  ASSERT_TRUE(b.admit(view.waiting[0]));
  ASSERT_TRUE(b.decode(view.waiting[0]));
  EXPECT_EQ(checked(view, b),
            "stage 1 [0, 112) kv device x2 before_layer\n"
            "promise 1 10 cells on host\n"
            "decode 1 [112, 113) samples x2 keeps kv x0 x x0\n");
}

// ---------------------------------------------------------------- where rows stay, and when they wait

TEST(PlanBuilderKeep, APolicyMayKeepAnySetOfGroups) {
  View view = make_view(10, 0);
  view.geometry = {kViewBlock, 6, 2, 8};  // three groups
  view.device.spare_slabs = 12;
  set_host(view, 10, 10);
  set_ring(view, 4);
  view.waiting = {waiting_seq(1, 40)};
  LayerSet keep;
  keep.add(0);
  keep.add(2);
  PlanBuilder b(view);
  EXPECT_EQ(b.prefill(view.waiting[0], 1000, {.kv = keep}), 40u);
  EXPECT_EQ(b.available_blocks(), (12 - 2 * 2 - 3) / 3);
  const StepPlan plan = b.take();
  EXPECT_EQ(to_string(plan),
            "add 1 [0, 32) kv host x1 after_layer_writes\nprefill 1 [0, 40) samples x3 keeps kv x2 x x0\n");
  EXPECT_TRUE(plan.copies[0].layers.contains(1));
  EXPECT_EQ(plan.rows[0].writes.kv, keep);
  EXPECT_TRUE(check_plan(view, plan).ok());
}

TEST(PlanBuilderStall, PrefillBesideDecodesEndsAtTheBound) {
  View view = make_view(50, 40);
  view.limits.max_prefill_beside_decodes = 24;
  view.running = {running_seq(1, 100, 100, 40), running_seq(2, 100, 100, 40), decoding_seq(3, 20, 30)};
  PlanBuilder b(view);
  EXPECT_EQ(b.prefill(view.running[0], 16), 16u);
  EXPECT_EQ(b.prefill(view.running[1], 1000), 8u);
  EXPECT_TRUE(b.decode(view.running[2]));
  EXPECT_TRUE(check_plan(view, b.take()).ok());
  view.waiting = {waiting_seq(4, 100)};
  PlanBuilder c(view);
  ASSERT_TRUE(c.admit(view.waiting[0]));
  EXPECT_EQ(c.prefill(view.waiting[0], 1000), 24u);
  EXPECT_EQ(c.prefill(view.running[0], 1000), 0u);
  view.running.pop_back();
  PlanBuilder d(view);
  EXPECT_EQ(d.prefill(view.running[0], 1000), 60u) << "none decodes";
}

TEST(PlanBuilderStall, ASequenceThatWaitsForATransferHasNoRows) {
  for (bool stalled : {true, false}) {
    View view = make_view(10, 10);
    view.running = {decoding_seq(1, 20, 30), running_seq(2, 50, 50, 20)};
    for (SeqView& s : view.running) (stalled ? s.stalled : s.tail_busy) = true;
    PlanBuilder b(view);
    EXPECT_FALSE(b.can_run(view.running[0]));
    EXPECT_FALSE(b.decode(view.running[0]));
    EXPECT_EQ(b.prefill(view.running[1], 10), 0u);
    EXPECT_EQ(b.available_blocks(), 10);
    EXPECT_TRUE(b.take().rows.empty());
  }
}

}  // namespace
}  // namespace kvasir::test
