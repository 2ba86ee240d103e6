// Plans of the HCache policy, worked by hand. Blocks have 16 tokens and two cells; one of K and V takes 1,024
// bytes, one of X half of that.
#include <gtest/gtest.h>

#include <string>

#include "plan/forms_views.h"
#include "sched/plans.h"

namespace kvasir::test {
namespace {

std::string hcache_plan(const View& view, const char* policy = "hcache") {
  return plan_of(policy, view);
}

View hcache_view(uint32_t total_blocks, uint32_t free_blocks, uint32_t host_blocks = 20) {
  View view = forms_view(total_blocks, free_blocks, 16);
  with_host(view, host_blocks, host_blocks);
  view.limits.max_num_batched_tokens = 1000;
  return view;
}
// With X in `groups` layer groups, of full blocks on the host and of the last one on the device.
SeqView saved(SeqView s, uint32_t groups = kViewGroups) {
  const uint32_t tail = s.ready_tokens % kViewBlock == 0 ? 0 : 1;
  hold(s, Form::kX, Tier::kHost, (s.blocks - tail) * groups);
  hold(s, Form::kX, Tier::kDevice, tail * groups);
  return s;
}
// Waits: K and V of the last block on the host, and of the others in all but `groups` layer groups.
SeqView waits_as_x(uint64_t id, uint32_t prompt, uint32_t known, uint32_t groups = kViewGroups) {
  SeqView s = saved(swapped_seq(id, prompt, known, known - 1), groups);
  const uint32_t full = s.ready_tokens / kViewBlock;
  set_cells(s, Tier::kHost, full * (kViewGroups - groups) + (s.blocks - full) * kViewGroups);
  return s;
}

TEST(HcachePolicy, RowsKeepXBesideKAndV) {
  View view = hcache_view(50, 50);
  view.waiting = {waiting_seq(1, 40)};
  EXPECT_EQ(hcache_plan(view),
            "promise 1 6 cells on device\nprefill 1 [0, 40) samples x2 keeps kv x2 x x2\n");
  EXPECT_EQ(hcache_plan(view, "hcache:x-share=0.5"),
            "promise 1 6 cells on device\nprefill 1 [0, 40) samples x2 keeps kv x2 x x1\n");
  EXPECT_EQ(hcache_plan(view, "hcache:x-share=0"),
            "promise 1 6 cells on device\nprefill 1 [0, 40) samples\n");
  // It may become 140 tokens, nine blocks: X of them must pass the ring.
  set_ring(view, 8);
  EXPECT_EQ(hcache_plan(view), "promise 1 6 cells on device\nprefill 1 [0, 40) samples\n");
  set_ring(view, 16);
  // Of a prefix that others have computed it has no X.
  view.waiting = {waiting_seq(1, 40, 16)};
  EXPECT_EQ(hcache_plan(view), "adopt 1 [0, 16)\npromise 1 4 cells on device\nprefill 1 [16, 40) samples\n");
}

TEST(HcachePolicy, XOfFullBlocksLeavesInTheBackground) {
  View view = hcache_view(50, 10);
  SeqView s = decoding_seq(1, 20, 50);
  hold(s, Form::kX, Tier::kDevice, 8);
  view.running = {s};
  const std::string decode = "decode 1 [49, 50) samples x2 keeps kv x2 x x2\n";
  EXPECT_EQ(hcache_plan(view),
            "add 1 [0, 48) x host x2 background\ndrop 1 [0, 48) x device x2 when_ready\n" + decode);
  view.running[0].transfers = 1;
  EXPECT_EQ(hcache_plan(view), decode) << "what is on its way first";
  view.running = {saved(s)};
  EXPECT_EQ(hcache_plan(view), decode);
  // Two blocks are full since.
  view.running = {saved(decoding_seq(1, 20, 70))};
  hold(view.running[0], Form::kX, Tier::kHost, 4);
  hold(view.running[0], Form::kX, Tier::kDevice, 6);
  EXPECT_EQ(hcache_plan(view),
            "add 1 [32, 64) x host x2 background\ndrop 1 [0, 64) x device x2 when_ready\n"
            "decode 1 [69, 70) samples x2 keeps kv x2 x x2\n");
}

TEST(HcachePolicy, WhatIsNotWholeOrHasNoRoomIsGivenUp) {
  View view = hcache_view(50, 10);
  SeqView s = decoding_seq(1, 20, 50);
  hold(s, Form::kX, Tier::kDevice, 4);
  hold(s, Form::kX, Tier::kHost, 2);
  view.running = {s};  // of two cells there is none
  const std::string given_up = "drop 1 [0, 49) x device x2 when_ready\ndrop 1 [0, 49) x host x2 when_ready\n";
  EXPECT_EQ(hcache_plan(view), given_up + "decode 1 [49, 50) samples\n");
  hold(view.running[0], Form::kX, Tier::kDevice, 6);
  view.host.spare_slabs = 0;
  EXPECT_EQ(hcache_plan(view), given_up + "decode 1 [49, 50) samples x2 keeps kv x2 x x2\n");
}

// One goes out as X and comes back, before any prompt.
TEST(HcachePolicy, APreemptedSequenceWaitsAsXAndComesBack) {
  View view = hcache_view(20, 0);
  view.running = {decoding_seq(1, 20, 33), decoding_seq(2, 20, 49), saved(decoding_seq(3, 20, 30))};
  view.waiting = {waiting_seq(4, 4)};
  EXPECT_EQ(hcache_plan(view),
            "preempt 3\nadd 3 [16, 29) kv host x2 now\ndrop 3 [0, 29) kv device x2 when_ready\n"
            "drop 3 [0, 16) x device x2 when_ready\n");
  // Its X was still on the device.
  hold(view.running[2], Form::kX, Tier::kHost, 0);
  hold(view.running[2], Form::kX, Tier::kDevice, 4);
  EXPECT_EQ(hcache_plan(view),
            "preempt 3\nadd 3 [16, 29) kv host x2 now\nadd 3 [0, 16) x host x2 now\n"
            "drop 3 [0, 29) kv device x2 when_ready\ndrop 3 [0, 16) x device x2 when_ready\n");
  // Without X of all of it.
  hold(view.running[2], Form::kX, Tier::kDevice, 2);
  EXPECT_EQ(hcache_plan(view),
            "preempt 3\nadd 3 [0, 29) kv host x2 now\ndrop 3 [0, 29) kv device x2 when_ready\n");

  view = hcache_view(20, 3);
  view.running = {decoding_seq(1, 20, 34)};
  view.waiting = {waits_as_x(3, 20, 30), waiting_seq(4, 4)};
  EXPECT_EQ(hcache_plan(view),
            "add 3 [0, 29) kv device x2 before_layer\ndecode 1 [33, 34) samples\n"
            "decode 3 [29, 30) samples x2 keeps kv x2 x x2\n");
  view.device.spare_slabs = 2;
  EXPECT_EQ(hcache_plan(view), "decode 1 [33, 34) samples\n") << "one block is not two";
}

TEST(HcachePolicy, SomeLayersGoAsKAndV) {
  View view = hcache_view(20, 0);
  view.running = {decoding_seq(1, 20, 33), decoding_seq(2, 20, 49), saved(decoding_seq(3, 20, 30), 1)};
  EXPECT_EQ(hcache_plan(view, "hcache:x-share=0.5"),
            "preempt 3\nadd 3 [0, 29) kv host x1 now\nadd 3 [16, 29) kv host x1 now\n"
            "drop 3 [0, 29) kv device x2 when_ready\ndrop 3 [0, 16) x device x1 when_ready\n");
  view = hcache_view(20, 3);
  view.waiting = {waits_as_x(3, 20, 30, 1)};
  EXPECT_EQ(hcache_plan(view, "hcache:x-share=0.5"),
            "add 3 [0, 29) kv device x2 before_layer\n"
            "decode 3 [29, 30) samples x2 keeps kv x2 x x1\n");
}

TEST(HcachePolicy, WhereTheHostIsFullItIsRecomputed) {
  View view = hcache_view(20, 0);
  view.host.spare_slabs = 1;
  view.running = {decoding_seq(1, 20, 33), decoding_seq(2, 20, 49), saved(decoding_seq(3, 20, 30))};
  EXPECT_EQ(hcache_plan(view),
            "preempt 3\ndrop_all 3 kv device\ndrop_all 3 x device\n"
            "drop_all 3 x host\ndecode 1 [32, 33) samples\ndecode 2 [48, 49) samples\n");
}

// Three blocks of K and V, and as many of X in half of their memory.
TEST(HcachePolicy, APromptWaitsForRoomForItsX) {
  View view = hcache_view(20, 4);
  view.running = {decoding_seq(1, 20, 30)};
  view.waiting = {waiting_seq(2, 48)};
  EXPECT_EQ(hcache_plan(view), "decode 1 [29, 30) samples\n");
  view.device.spare_slabs = 9;
  EXPECT_EQ(hcache_plan(view),
            "promise 2 6 cells on device\nprefill 2 [0, 48) samples x2 keeps kv x2 x x2\n");
  // Alone it does not wait, nor where that would be in vain.
  view.device.spare_slabs = 8;
  view.running.clear();
  EXPECT_EQ(hcache_plan(view), "promise 2 6 cells on device\nprefill 2 [0, 48) samples\n");
}

TEST(HcachePolicy, ADecodeBeginsABlockOnlyWithItsX) {
  View view = hcache_view(20, 1);
  view.running = {saved(decoding_seq(1, 20, 33)), decoding_seq(2, 20, 30)};
  EXPECT_EQ(hcache_plan(view),
            "preempt 2\nadd 2 [0, 29) kv host x2 now\ndrop 2 [0, 29) kv device x2 when_ready\n");
  // Others' X leaves: room comes.
  view.device.coming[index_of(Form::kX)] = 2;
  view.transfers_in_flight = 1;
  EXPECT_EQ(hcache_plan(view), "decode 2 [29, 30) samples\n");
  // There is none to preempt.
  view.running.pop_back();
  view.transfers_in_flight = 0;
  view.device.coming = {};
  EXPECT_EQ(hcache_plan(view), "decode 1 [32, 33) samples\n");
}

// It came back in a step that did not wait for it: nothing was kept of what was projected.
TEST(HcachePolicy, HalfRestoredItIsRestoredAgain) {
  View view = hcache_view(20, 3);
  SeqView s = waits_as_x(3, 20, 30);
  set_cells(s, Tier::kDevice, kViewGroups);
  set_cells(s, Tier::kHost, 0);
  s.tail_resident = true;
  s.resident_blocks = 1;
  view.running = {s};
  EXPECT_EQ(hcache_plan(view),
            "add 3 [0, 16) kv device x2 before_layer\n"
            "decode 3 [29, 30) samples x2 keeps kv x2 x x2\n");
  view.running[0].in_flight = 1;
  view.steps_in_flight = 1;
  EXPECT_EQ(hcache_plan(view), "") << "what the step in flight keeps is not known yet";
}

// 64 bytes of K and V of the four layers of a token: half of them as X are 48, and take as long to project.
TEST(HcachePolicy, ItDecidesOnceWhatIsX) {
  const auto policy = make_policy("hcache").value();
  EXPECT_EQ(policy->save_state(), "");
  View view = hcache_view(50, 40);
  view.running = {saved(decoding_seq(7, 20, 30))};
  const std::string all = "decode 7 [29, 30) samples x2 keeps kv x2 x x2\n";
  EXPECT_EQ(plan_of(*policy, view), all);
  EXPECT_EQ(policy->save_state(), "") << "nothing is known";
  view.costs.links[1][0].seconds_per_byte = 1e-9;
  view.costs.projected_token_s = 24e-9;
  EXPECT_EQ(plan_of(*policy, view), all) << "as it began";
  EXPECT_EQ(policy->save_state(), "1 8");
  view.costs.projected_token_s = 1e-9;
  view.waiting = {waiting_seq(8, 16)};
  const std::string half = "promise 8 2 cells on device\nprefill 8 [0, 16) samples x2 keeps kv x2 x x1\n";
  EXPECT_EQ(plan_of(*policy, view), half) << "decided is decided";
  const auto replayed = make_policy("hcache").value();
  ASSERT_TRUE(replayed->restore_state("1 8").ok());
  EXPECT_EQ(plan_of(*replayed, view), half);
  ASSERT_TRUE(replayed->restore_state("").ok());
  EXPECT_EQ(replayed->save_state(), "");
  for (const char* bad : {"1", "1 ", "x 8", "1 8 9", " 1 8"})
    EXPECT_FALSE(replayed->restore_state(bad).ok()) << bad;
}

TEST(HcachePolicy, WithoutATierOrSmallerXItIsVllm) {
  View view = hcache_view(20, 0);
  view.running = {decoding_seq(1, 20, 33), decoding_seq(2, 20, 49), decoding_seq(3, 20, 30)};
  view.waiting = {waiting_seq(4, 4)};
  for (uint64_t x_bytes : {0, 16, 20}) {
    view.geometry.x_bytes_per_token_layer = x_bytes;
    EXPECT_EQ(hcache_plan(view), plan_of("vllm-swap", view)) << x_bytes;
  }
  view.geometry.x_bytes_per_token_layer = 8;
  view.host = {};
  EXPECT_EQ(hcache_plan(view), plan_of("vllm", view));
  view.running.clear();
  view.device.spare_slabs = 40;
  EXPECT_EQ(hcache_plan(view), plan_of("vllm", view));
}

}  // namespace
}  // namespace kvasir::test
