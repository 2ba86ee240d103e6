// Plans of the Orca policy, worked by hand. Blocks have 16 tokens; a sequence ends 100 tokens after its
// prompt at the latest.
#include <gtest/gtest.h>

#include "fakes/views.h"
#include "sched/plans.h"

namespace kvasir::test {
namespace {

std::string orca_plan(const View& view) {
  return plan_of("orca", view);
}

// What the admission promised is what is left to it.
SeqView promised(SeqView seq, View& view) {
  seq.promised_cells[0] = (view.geometry.blocks_for(seq.max_total_tokens) - seq.blocks) * kViewGroups;
  view.device.promised[0] += seq.promised_cells[0];
  return seq;
}

TEST(OrcaPolicy, ReservesForTheGreatestLength) {
  View view = make_view(50, 18);
  view.waiting = {waiting_seq(1, 40), waiting_seq(2, 40), waiting_seq(3, 1)};
  EXPECT_EQ(orca_plan(view),
            "promise 1 18 cells on device\npromise 2 18 cells on device\n"
            "prefill 1 [0, 40) samples\nprefill 2 [0, 40) samples\n")
      << "140 tokens are nine blocks";
  view.device.spare_slabs = 17 * kViewGroups;
  EXPECT_EQ(orca_plan(view), "promise 1 18 cells on device\nprefill 1 [0, 40) samples\n")
      << "eight blocks are not nine, and 3, which needs seven, does not overtake";
}

TEST(OrcaPolicy, PromptsAndDecodesShareAStepWithoutABudget) {
  View view = make_view(60, 37);
  view.limits.max_num_batched_tokens = 64;
  view.running = {promised(decoding_seq(2, 20, 30), view), promised(decoding_seq(1, 20, 33), view)};
  view.waiting = {waiting_seq(3, 200), waiting_seq(4, 5)};
  EXPECT_EQ(orca_plan(view),
            "promise 3 38 cells on device\n"
            "decode 1 [32, 33) samples\ndecode 2 [29, 30) samples\nprefill 3 [0, 200) samples\n")
      << "12 of the 37 free blocks are promised, 3 reserves 19, and of the 6 that are left 4 needs 7";
  view.device.spare_slabs = 38 * kViewGroups;
  EXPECT_EQ(orca_plan(view),
            "promise 3 38 cells on device\npromise 4 14 cells on device\n"
            "decode 1 [32, 33) samples\ndecode 2 [29, 30) samples\n"
            "prefill 3 [0, 200) samples\nprefill 4 [0, 5) samples\n");
}

TEST(OrcaPolicy, ADecodeHasItsBlockFromTheReservation) {
  View view = make_view(20, 6);
  view.running = {promised(decoding_seq(1, 20, 33), view)};
  ASSERT_EQ(view.device.promised[0], 6 * kViewGroups) << "eight blocks are reserved, two are used";
  view.waiting = {waiting_seq(2, 1)};
  EXPECT_EQ(orca_plan(view), "decode 1 [32, 33) samples\n") << "what is free is all reserved";
}

TEST(OrcaPolicy, TheBatchHasASize) {
  View view = make_view(50, 50);
  view.limits.max_num_seqs = 2;
  view.running = {promised(decoding_seq(1, 20, 30), view)};
  view.waiting = {waiting_seq(2, 5), waiting_seq(3, 5)};
  EXPECT_EQ(orca_plan(view),
            "promise 2 14 cells on device\ndecode 1 [29, 30) samples\nprefill 2 [0, 5) samples\n");
}

TEST(OrcaPolicy, APromptThatWasCutShortGoesOn) {
  View view = make_view(50, 20);
  view.limits.max_prefill_beside_decodes = 16;
  view.running = {promised(decoding_seq(1, 20, 30), view), promised(running_seq(2, 60, 60, 40), view)};
  EXPECT_EQ(orca_plan(view), "decode 1 [29, 30) samples\nprefill 2 [40, 56)\n");
}

TEST(OrcaPolicy, ARequestThatMayFillTheDeviceRunsAlone) {
  View view = make_view(8, 8);
  view.waiting = {waiting_seq(1, 20), waiting_seq(2, 1)};  // 120 tokens are the eight blocks
  EXPECT_EQ(orca_plan(view), "promise 1 16 cells on device\nprefill 1 [0, 20) samples\n");
}

TEST(OrcaPolicy, ARequestLargerThanTheDeviceStreams) {
  View view = make_view(6, 6);
  set_host(view, 20, 20);
  set_ring(view, 13);
  view.waiting = {waiting_seq(1, 100)};
  EXPECT_EQ(orca_plan(view),
            "add 1 [0, 96) kv host x2 after_layer_writes\npromise 1 24 cells on host\n"
            "prefill 1 [0, 100) samples x2 keeps kv x0 x x0\n");
  view.waiting.clear();
  view.running = {streaming_seq(1, 100, 121, 120)};
  EXPECT_EQ(orca_plan(view),
            "stage 1 [0, 120) kv device x2 before_layer\n"
            "decode 1 [120, 121) samples x2 keeps kv x0 x x0\n");
}

TEST(OrcaPolicy, NoneIsPreemptedUnlessNothingElseCanHappen) {
  // Their reservations are lost, as after a deferral: 1 cannot go on.
  View view = make_view(8, 0);
  view.running = {decoding_seq(1, 20, 33), decoding_seq(2, 20, 30)};
  EXPECT_EQ(orca_plan(view), "decode 2 [29, 30) samples\n");
  view.running[1] = decoding_seq(2, 20, 33);
  EXPECT_EQ(orca_plan(view), "preempt 2\ndrop_all 2 kv device\n");
}

}  // namespace
}  // namespace kvasir::test
