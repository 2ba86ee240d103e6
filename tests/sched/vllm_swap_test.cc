// Plans of the vLLM policy that preempts by swapping, worked by hand. Blocks have 16 tokens.
#include <gtest/gtest.h>

#include "fakes/views.h"
#include "sched/plans.h"

namespace kvasir::test {
namespace {

std::string swap_plan(const View& view) {
  return plan_of("vllm-swap", view);
}

TEST(VllmSwapPolicy, AdmitsAsVllmDoesWhileNoneIsSwappedOut) {
  View view = make_view(50, 50);
  set_host(view, 50, 50);
  view.limits.max_num_batched_tokens = 100;
  view.running = {decoding_seq(4, 20, 30)};
  view.waiting = {waiting_seq(1, 40), waiting_seq(2, 60), waiting_seq(3, 1)};
  EXPECT_EQ(swap_plan(view),
            "promise 1 6 cells on device\npromise 2 8 cells on device\n"
            "prefill 1 [0, 40) samples\nprefill 2 [0, 60) samples\n");
}

// One sequence goes out and comes back, step by step.
TEST(VllmSwapPolicy, ASequenceGoesOutWaitsAndComesBackBeforeAnyPrompt) {
  // 1 and 2 need a block each, and none is free: 3 gives up its two, which have to be copied first.
  View view = make_view(20, 0);
  set_host(view, 10, 10);
  view.running = {decoding_seq(1, 20, 33), decoding_seq(2, 20, 49), decoding_seq(3, 20, 30)};
  view.waiting = {waiting_seq(4, 4)};
  EXPECT_EQ(swap_plan(view),
            "preempt 3\nadd 3 [0, 29) kv host x2 now\ndrop 3 [0, 29) kv device x2 when_ready\n");

  // They are on their way: all wait, and 3 is not brought back into them.
  SeqView out = decoding_seq(3, 20, 30);
  set_cells(out, Tier::kHost, 4);
  out.leaving_cells = 4;
  out.transfers = 2;
  out.preemptions = 1;
  view.running = {decoding_seq(1, 20, 33), decoding_seq(2, 20, 49)};
  view.waiting = {out, waiting_seq(4, 4)};
  view.transfers_in_flight = 2;
  set_host(view, 10, 8);
  set_pinned(view, 2);
  EXPECT_EQ(swap_plan(view), "");

  // They have come: 1 and 2 have their blocks, and nothing is left for 3.
  view = make_view(20, 2);
  set_host(view, 10, 8);
  view.running = {decoding_seq(1, 20, 33), decoding_seq(2, 20, 49)};
  view.waiting = {swapped_seq(3, 20, 30, 29), waiting_seq(4, 4)};
  EXPECT_EQ(swap_plan(view), "decode 1 [32, 33) samples\ndecode 2 [48, 49) samples\n");

  // One block is not two, and the prompt of one block does not overtake.
  view.running = {decoding_seq(1, 20, 34), decoding_seq(2, 20, 50)};
  view.device.spare_slabs = kViewGroups;
  EXPECT_EQ(swap_plan(view), "decode 1 [33, 34) samples\ndecode 2 [49, 50) samples\n");

  // There is room: it comes back, and the prompt waits still.
  view.device.spare_slabs = 3 * kViewGroups;
  EXPECT_EQ(swap_plan(view),
            "add 3 [0, 29) kv device x2 before_layer\n"
            "decode 1 [33, 34) samples\ndecode 2 [49, 50) samples\ndecode 3 [29, 30) samples\n");

  // None is swapped out any more.
  view = make_view(20, 1);
  view.running = {decoding_seq(1, 20, 35), decoding_seq(2, 20, 51), decoding_seq(3, 20, 31)};
  view.waiting = {waiting_seq(4, 4)};
  EXPECT_EQ(swap_plan(view), "promise 4 2 cells on device\nprefill 4 [0, 4) samples\n");
}

TEST(VllmSwapPolicy, WhereTheHostIsFullItIsRecomputed) {
  View view = make_view(20, 0);
  set_host(view, 10, 1);
  view.running = {decoding_seq(1, 20, 33), decoding_seq(2, 20, 49), decoding_seq(3, 20, 30)};
  EXPECT_EQ(swap_plan(view),
            "preempt 3\ndrop_all 3 kv device\n"
            "decode 1 [32, 33) samples\ndecode 2 [48, 49) samples\n");
  view.host = {};
  EXPECT_EQ(swap_plan(view),
            "preempt 3\ndrop_all 3 kv device\n"
            "decode 1 [32, 33) samples\ndecode 2 [48, 49) samples\n");
}

TEST(VllmSwapPolicy, NoneComesBackInAStepThatPreempts) {
  // 5 is preempted by recomputation, for which it gives three blocks: 4 would fit, but waits.
  View view = make_view(20, 0);
  set_host(view, 10, 0);
  view.running = {decoding_seq(1, 20, 33), decoding_seq(5, 20, 40)};
  view.waiting = {swapped_seq(4, 10, 12, 11)};
  EXPECT_EQ(swap_plan(view), "preempt 5\ndrop_all 5 kv device\ndecode 1 [32, 33) samples\n");
}

TEST(VllmSwapPolicy, ComingBackLeavesTheWatermarkAndWhatDecodesAreAfter) {
  View view = make_view(300, 5);  // three blocks are to stay
  set_host(view, 10, 0);
  view.running = {decoding_seq(1, 20, 30)};
  view.waiting = {swapped_seq(4, 20, 40, 39)};
  EXPECT_EQ(swap_plan(view), "decode 1 [29, 30) samples\n");
  view.device.spare_slabs = 6 * kViewGroups;
  EXPECT_EQ(
      swap_plan(view),
      "add 4 [0, 39) kv device x2 before_layer\ndecode 1 [29, 30) samples\ndecode 4 [39, 40) samples\n");
  view.running.clear();
  view.device.spare_slabs = 3 * kViewGroups;
  EXPECT_EQ(swap_plan(view), "add 4 [0, 39) kv device x2 before_layer\ndecode 4 [39, 40) samples\n")
      << "alone there is no watermark";
}

TEST(VllmSwapPolicy, TheBlockThatADecodeHasGotIsNotKeptTwice) {
  // One of four blocks is for the decode; the other three are what 4 needs.
  View view = make_view(20, 4);
  set_host(view, 10, 0);
  view.running = {decoding_seq(1, 20, 33)};
  view.waiting = {swapped_seq(4, 20, 40, 39)};
  EXPECT_EQ(
      swap_plan(view),
      "add 4 [0, 39) kv device x2 before_layer\ndecode 1 [32, 33) samples\ndecode 4 [39, 40) samples\n");
}

TEST(VllmSwapPolicy, AloneAndWithoutRoomOthersGiveUpWhatTheyHold) {
  // 1 is on the host and needs three blocks. 2 and 3 wait with theirs on the device, so that one is free.
  View view = make_view(7, 1);
  set_host(view, 10, 0);
  SeqView two = decoding_seq(2, 20, 40), three = decoding_seq(3, 20, 40);
  view.waiting = {swapped_seq(1, 20, 40, 39), two, three};
  EXPECT_EQ(swap_plan(view), "drop_all 3 kv device\n") << "the last of them";
  for (bool step : {true, false}) {
    view.steps_in_flight = step ? 1 : 0;
    view.transfers_in_flight = step ? 0 : 1;
    EXPECT_EQ(swap_plan(view), "") << "what is in flight may bring room";
  }
}

TEST(VllmSwapPolicy, AloneWithItsOwnCellsInTheWayItStartsAgain) {
  // Six of its seven blocks are on the device and the last one on the host, whose place another's idle frames
  // do not give: nothing is free.
  View view = make_view(6, 0);
  set_host(view, 10, 0);
  SeqView s = decoding_seq(1, 20, 110);
  s.max_total_tokens = 112;
  set_cells(s, Tier::kDevice, 12);
  set_cells(s, Tier::kHost, 2);
  s.resident_blocks = 6;
  s.device_groups = {};
  s.tail_resident = false;
  set_ring(view, 7);
  view.waiting = {s};
  EXPECT_EQ(swap_plan(view), "drop_all 1 kv device\ndrop_all 1 kv host\n");
}

TEST(VllmSwapPolicy, ARequestLargerThanTheDeviceStreams) {
  View view = make_view(6, 6);
  set_host(view, 20, 20);
  set_ring(view, 13);
  view.waiting = {waiting_seq(1, 100), waiting_seq(2, 20)};
  view.waiting[1].max_total_tokens = 40;
  EXPECT_EQ(swap_plan(view),
            "add 1 [0, 96) kv host x2 after_layer_writes\n"
            "promise 1 24 cells on host\npromise 2 4 cells on device\n"
            "prefill 1 [0, 100) samples x2 keeps kv x0 x x0\nprefill 2 [0, 20) samples\n");
  view.waiting.clear();
  view.running = {streaming_seq(1, 100, 121, 120), decoding_seq(2, 20, 30)};
  view.running[1].max_total_tokens = 40;
  EXPECT_EQ(swap_plan(view),
            "stage 1 [0, 120) kv device x2 before_layer\n"
            "decode 1 [120, 121) samples x2 keeps kv x0 x x0\ndecode 2 [29, 30) samples\n");
}

TEST(VllmSwapPolicy, OneThatWasDeferredTooOftenRunsAlone) {
  View view = make_view(20, 20);
  set_host(view, 20, 20);
  set_ring(view, 13);
  view.running = {streaming_seq(1, 100, 121, 120), decoding_seq(2, 20, 30)};
  view.running[0].deferrals = 4;
  EXPECT_EQ(swap_plan(view), "stage 1 [0, 120) kv device x2 before_layer\ndecode 1 [120, 121) samples\n");
  view.running[0].stalled = true;
  EXPECT_EQ(swap_plan(view), "decode 2 [29, 30) samples\n") << "it would be waiting again";
}

}  // namespace
}  // namespace kvasir::test
