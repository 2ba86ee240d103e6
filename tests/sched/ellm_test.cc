// Plans of the eLLM policy, worked by hand. Blocks have 16 tokens, in two layer groups.
#include <gtest/gtest.h>

#include "fakes/views.h"
#include "sched/plans.h"

namespace kvasir::test {
namespace {

// A step takes long whatever it does, a row little, and the link a microsecond a token.
View view_where_batches_pay(uint32_t total_blocks, uint32_t free_blocks) {
  View view = make_view(total_blocks, free_blocks);
  view.now = 1'000'000'000;
  view.costs.step_s = 10e-3;
  view.costs.decode_row_s = view.costs.prefill_row_s = 1e-5;
  for (auto& row : view.costs.links) {
    for (LinkCost& link : row) link = {0, 1e-9};
  }
  return view;
}

TEST(EllmPolicy, WithRoomForAllItKeepsAll) {
  View view = view_where_batches_pay(50, 40);
  set_ring(view, 20);
  view.running = {decoding_seq(1, 40, 50)};
  view.waiting = {waiting_seq(2, 30), waiting_seq(3, 20)};
  EXPECT_EQ(plan_of("ellm", view),
            "promise 2 4 cells on device\npromise 3 4 cells on device\n"
            "prefill 2 [0, 30) samples\nprefill 3 [0, 20) samples\n");
  view.waiting.clear();
  EXPECT_EQ(plan_of("ellm", view), "decode 1 [49, 50) samples\n");
}

// Ten blocks, all taken by two requests of five, and a third waits for two: without a host their oldest
// blocks are dropped, and recomputed from the next step on.
TEST(EllmPolicy, MakesRoomForWaitingRequestsByDroppingTheOldest) {
  View view = view_where_batches_pay(10, 0);
  set_ring(view, 20);
  view.running = {decoding_seq(1, 60, 75), decoding_seq(2, 60, 75)};
  view.waiting = {waiting_seq(3, 20)};
  EXPECT_EQ(plan_of("ellm", view),
            "drop 1 [0, 16) kv device x2 now\ndrop 2 [0, 16) kv device x2 now\n"
            "decode 1 [74, 75) samples\ndecode 2 [74, 75) samples\n");

  // They are free now: it is admitted.
  view.device.spare_slabs = 2 * kViewGroups;
  for (SeqView& seq : view.running) {
    seq.dropped = {0, 16};
    seq.dropped_end_group = kViewGroups;
    seq.dropped_cells = kViewGroups;
    seq.resident_blocks = 4;
    seq.device_groups = {};
    set_cells(seq, Tier::kDevice, 4 * kViewGroups);
  }
  EXPECT_EQ(plan_of("ellm", view), "promise 3 4 cells on device\nprefill 3 [0, 20) samples\n");

  // None waits, and there is room: what is recomputed is kept.
  view.waiting.clear();
  view.device.spare_slabs = 9 * kViewGroups;
  view.device.slabs = 17 * kViewGroups;
  const std::string plan = plan_of("ellm", view);
  EXPECT_NE(plan.find("restore 1 [0, 16)"), std::string::npos) << plan;
  EXPECT_EQ(plan.find("drop"), std::string::npos) << plan;
}

// Where recomputing is dear and the link is fast, they go to the host.
TEST(EllmPolicy, StagesWhereTheLinkIsFaster) {
  View view = view_where_batches_pay(10, 0);
  view.costs.prefill_row_s = 1e-3;
  set_host(view, 20, 20);
  set_ring(view, 20);
  view.running = {decoding_seq(1, 60, 75), decoding_seq(2, 60, 75)};
  view.waiting = {waiting_seq(3, 20)};
  EXPECT_EQ(plan_of("ellm", view),
            "add 1 [0, 16) kv host x2 now\ndrop 1 [0, 16) kv device x2 when_ready\n"
            "add 2 [0, 16) kv host x2 now\ndrop 2 [0, 16) kv device x2 when_ready\n"
            "decode 1 [74, 75) samples\ndecode 2 [74, 75) samples\n");
}

// A larger batch would not pay: none gives anything up, and waiting requests wait.
TEST(EllmPolicy, KnowsWhenNotTo) {
  View view = view_where_batches_pay(10, 0);
  view.costs.step_s = 0;
  view.costs.decode_row_s = view.costs.prefill_row_s = 1e-3;
  set_ring(view, 20);
  view.running = {decoding_seq(1, 60, 75), decoding_seq(2, 60, 75)};
  view.waiting = {waiting_seq(3, 20)};
  EXPECT_EQ(plan_of("ellm", view), "decode 1 [74, 75) samples\ndecode 2 [74, 75) samples\n");
}

// As where it makes room, but 32 tokens are recomputed in 0.14 ms each. Two requests have their tokens
// in 10.02 ms, three in 10.03 ms and 4.48 ms: 1.035 times as many a second. That is more than what the paper
// asks for, and less than a tenth.
TEST(EllmPolicy, GainSaysWhatDroppingMustBring) {
  View view = view_where_batches_pay(10, 0);
  view.costs.prefill_row_s = 0.14e-3;
  set_ring(view, 20);
  view.running = {decoding_seq(1, 60, 75), decoding_seq(2, 60, 75)};
  view.waiting = {waiting_seq(3, 20)};
  const auto drops = [&](const char* policy) {
    return plan_of(policy, view).find("drop") != std::string::npos;
  };
  EXPECT_FALSE(drops("ellm:prompts=apart"));
  EXPECT_TRUE(drops("ellm:prompts=apart:gain=1"));
  view.costs.prefill_row_s = 1e-5;
  EXPECT_TRUE(drops("ellm:prompts=apart"));
  EXPECT_FALSE(drops("ellm:prompts=apart:gain=1.5")) << "1.45 times";
}

// It would pay, but the bound on TPOT has no time for it.
TEST(EllmPolicy, TheBoundOnTpotHoldsBackTheBatch) {
  View view = view_where_batches_pay(50, 40);
  set_ring(view, 20);
  view.running = {decoding_seq(1, 40, 50)};
  view.running[0].slo.tpot_ms = 10;
  view.running[0].last_token_time = view.now;
  view.waiting = {waiting_seq(2, 30)};
  EXPECT_EQ(plan_of("ellm", view), "decode 1 [49, 50) samples\n") << "a step takes 10.01 ms of its 10";
  view.running[0].slo.tpot_ms = 11;
  EXPECT_EQ(plan_of("ellm", view), "promise 2 4 cells on device\nprefill 2 [0, 30) samples\n");
  // Of which nine have passed since its last token: first it has the next.
  view.running[0].last_token_time = view.now - 9'000'000;
  EXPECT_EQ(plan_of("ellm", view), "decode 1 [49, 50) samples\n");
}

// A prompt takes as long as a step and more, once in the ten steps that are predicted of each: a millisecond
// each.
TEST(EllmPolicy, PromptsBetweenTheDecodesCountInTpot) {
  View view = view_where_batches_pay(50, 40);
  set_ring(view, 20);
  view.running = {decoding_seq(1, 40, 45)};
  view.running[0].slo.tpot_ms = 11;
  view.running[0].last_token_time = view.now;
  view.waiting = {waiting_seq(2, 30)};
  const std::string joins = "promise 2 4 cells on device\nprefill 2 [0, 30) samples\n";
  EXPECT_EQ(plan_of("ellm", view), joins);
  view.running[0].predicted.output_tokens = view.waiting[0].predicted.output_tokens = 10;
  EXPECT_EQ(plan_of("ellm", view), "decode 1 [44, 45) samples\n");
  EXPECT_EQ(plan_of("ellm:solver=slsqp", view), "decode 1 [44, 45) samples\n");
  EXPECT_EQ(plan_of("ellm:prompts=apart", view), joins);
  view.running[0].slo.tpot_ms = 13;
  EXPECT_EQ(plan_of("ellm", view), joins);
}

TEST(EllmPolicy, AForcedRatioIsOfEachRequestAndAsFarAsTheRingPasses) {
  View view = view_where_batches_pay(50, 40);
  set_host(view, 20, 20);
  set_ring(view, 5);
  view.running = {decoding_seq(1, 60, 75), decoding_seq(2, 60, 90), decoding_seq(3, 10, 20)};
  EXPECT_EQ(plan_of("ellm:ratio=0.5:again=0.5", view),
            "add 1 [16, 32) kv host x2 now\ndrop 1 [16, 32) kv device x2 when_ready\ndrop 1 [0, 16) kv "
            "device x2 now\n"
            "add 2 [32, 48) kv host x2 now\ndrop 2 [32, 48) kv device x2 when_ready\ndrop 2 [0, 32) kv "
            "device x2 now\n"
            "decode 1 [74, 75) samples\ndecode 2 [89, 90) samples\ndecode 3 [19, 20) samples\n");
  EXPECT_EQ(plan_of("ellm:ratio=0.5:again=0.5:mix=layers", view),
            "add 1 [0, 32) kv host x1 now\ndrop 1 [0, 32) kv device x1 when_ready\ndrop 1 [0, 32) kv device "
            "x1 now\n"
            "add 2 [0, 48) kv host x1 now\ndrop 2 [0, 48) kv device x1 when_ready\ndrop 2 [0, 48) kv device "
            "x1 now\n"
            "decode 1 [74, 75) samples\ndecode 2 [89, 90) samples\ndecode 3 [19, 20) samples\n");
}

// Two requests of 80 tokens take 16.4 ms, with a third of 32 tokens 17.7, and room for it is 32 tokens to
// recompute, which alone take 16.4. In one pass that is 24.1 ms for three, as many a second as two in 16.4;
// side by side 17.7.
TEST(EllmPolicy, IdealFusionMakesRoomWhereOnePassDoesNot) {
  View view = view_where_batches_pay(10, 0);
  view.costs.prefill_row_s = 0.2e-3;
  view.costs.context_s = 0.04e-3;
  set_ring(view, 20);
  view.running = {decoding_seq(1, 60, 75), decoding_seq(2, 60, 75)};
  view.waiting = {waiting_seq(3, 20)};
  const std::string decodes = "decode 1 [74, 75) samples\ndecode 2 [74, 75) samples\n";
  EXPECT_EQ(plan_of("ellm:prompts=apart", view), decodes);
  EXPECT_EQ(plan_of("ellm:prompts=apart:fusion=ideal", view),
            "drop 1 [0, 16) kv device x2 now\ndrop 2 [0, 16) kv device x2 now\n" + decodes);
}

TEST(EllmPolicy, HintsSayHowTheStepMayBeRun) {
  View view = view_where_batches_pay(50, 40);
  set_ring(view, 20);
  view.running = {decoding_seq(1, 60, 75)};
  view.running[0].dropped = {0, 32};
  view.running[0].dropped_end_group = kViewGroups;
  view.running[0].dropped_cells = 2 * kViewGroups;
  view.running[0].resident_blocks = 3;
  view.running[0].device_groups = {};
  set_cells(view.running[0], Tier::kDevice, 3 * kViewGroups);
  auto policy = make_policy("ellm:ratio=0.4:overlap=off:fusion=off").value();
  const ExecutionHints hints = policy->plan(view).hints;
  EXPECT_FALSE(hints.overlap);
  EXPECT_FALSE(hints.fuse);
}

}  // namespace
}  // namespace kvasir::test
