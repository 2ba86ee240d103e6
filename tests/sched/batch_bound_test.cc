// How many requests may run at once within a bound, worked by hand. Blocks have 16 tokens.
#include "sched/mechanisms/batch_bound.h"

#include <gtest/gtest.h>

#include "fakes/views.h"
#include "sched/plans.h"

namespace kvasir::test {
namespace {

// A step takes 10 ms, and a millisecond for each request and for each 100 tokens of their lengths.
View bounded_view() {
  View view = make_view(100, 90);
  view.now = 10 * kNanosPerSecond;
  view.limits.max_num_batched_tokens = 1000;
  view.costs.step_s = 0.010;
  view.costs.decode_row_s = 0.001;
  view.costs.context_s = 0.00001;
  return view;
}
SeqView bounded(SeqView s, uint32_t tpot_ms, uint32_t since_last_ms = 0) {
  s.slo.tpot_ms = tpot_ms;
  if (s.decoding()) s.last_token_time = 10 * kNanosPerSecond - since_last_ms * kNanosPerMilli;
  return s;
}
size_t joining(const View& view, PromptTime prompts = PromptTime::kApart) {
  std::vector<const SeqView*> waiting;
  for (const SeqView& s : view.waiting) waiting.push_back(&s);
  return batch_within_tpot(view, waiting, prompts).size();
}

TEST(BatchBound, AsManyAsTheStepAllows) {
  View view = bounded_view();
  view.running = {bounded(decoding_seq(1, 20, 50), 14)};
  // Two of 100 tokens in all are 13 ms, three of 150 are 14.5.
  view.waiting = {waiting_seq(2, 50), waiting_seq(3, 50), waiting_seq(4, 1)};
  EXPECT_EQ(joining(view), 1u);
  view.running[0].slo.tpot_ms = 15;
  EXPECT_EQ(joining(view), 2u);
  view.running[0].slo.tpot_ms = 16;
  EXPECT_EQ(joining(view), 3u);
  view.running[0].slo.tpot_ms = 12;
  EXPECT_EQ(joining(view), 0u);
  view.running[0].slo.tpot_ms = 0;
  EXPECT_EQ(joining(view), 3u) << "no request has a bound";
}

TEST(BatchBound, WhatTheyHaveWaitedCounts) {
  View view = bounded_view();
  view.running = {bounded(decoding_seq(1, 20, 50), 20, 7), bounded(decoding_seq(2, 20, 50), 0, 3)};
  view.waiting = {waiting_seq(3, 20)};
  EXPECT_EQ(joining(view), 0u) << "14.2 and 7";
  view.running[0].last_token_time += 2 * kNanosPerMilli;
  EXPECT_EQ(joining(view), 1u);
  // Nor may one join that has the bound itself.
  view.running[0].slo.tpot_ms = 0;
  view.waiting[0].slo.tpot_ms = 19;
  EXPECT_EQ(joining(view), 0u);
}

// A prompt of 20 tokens takes 50 ms, one of 50 takes 110.
TEST(BatchBound, WhatPromptsAddToAStepCounts) {
  View view = bounded_view();
  view.costs.prefill_row_s = 0.002;
  // 50 ms once in the 40 steps that are predicted are 1.25 ms, and 110 in 50 are 2.2. Beside 13 ms of
  // both: 16.45.
  view.running = {bounded(decoding_seq(1, 20, 50), 17)};
  view.running[0].predicted.output_tokens = 40;
  view.waiting = {waiting_seq(2, 50)};
  view.waiting[0].predicted.output_tokens = 50;
  EXPECT_EQ(joining(view, PromptTime::kAmortised), 1u);
  view.running[0].slo.tpot_ms = 16;
  EXPECT_EQ(joining(view, PromptTime::kAmortised), 0u);
  EXPECT_EQ(joining(view, PromptTime::kApart), 1u);
  // It has 30 tokens of output, more than were predicted: 1.67 ms, 16.87 in all.
  view.running[0].predicted.output_tokens = 10;
  view.running[0].slo.tpot_ms = 17;
  EXPECT_EQ(joining(view, PromptTime::kAmortised), 1u);
  // Without a prediction the newcomer adds nothing: 13 + 1.67.
  view.waiting[0].predicted.output_tokens = 0;
  view.running[0].slo.tpot_ms = 14;
  EXPECT_EQ(joining(view, PromptTime::kAmortised), 0u);
  view.running[0].slo.tpot_ms = 15;
  EXPECT_EQ(joining(view, PromptTime::kAmortised), 1u);
}

TEST(BatchBound, NoneWhereNothingRunsOrIsKnown) {
  View view = bounded_view();
  view.waiting = {bounded(waiting_seq(1, 50), 1), waiting_seq(2, 50)};
  EXPECT_EQ(joining(view), 1u) << "alone; the second would be beside it";
  view.running = {bounded(decoding_seq(3, 20, 50), 1, 500)};
  EXPECT_EQ(joining(view), 0u);
  view.costs = {};
  EXPECT_EQ(joining(view), 2u);
}

TEST(BatchBound, PoliciesHeedItIfAsked) {
  View view = bounded_view();
  set_host(view, 50, 50);
  view.running = {bounded(decoding_seq(1, 20, 50), 14)};
  view.waiting = {waiting_seq(2, 50), waiting_seq(3, 50)};
  const std::string one = "promise 2 8 cells on device\nprefill 2 [0, 50) samples\n";
  const std::string both =
      "promise 2 8 cells on device\npromise 3 8 cells on device\n"
      "prefill 2 [0, 50) samples\nprefill 3 [0, 50) samples\n";
  for (const std::string policy : {"vllm", "vllm-swap", "hcache"}) {
    EXPECT_EQ(plan_of(policy.c_str(), view), both) << policy;
    EXPECT_EQ(plan_of((policy + ":batch=free").c_str(), view), both) << policy;
    EXPECT_EQ(plan_of((policy + ":batch=tpot:prompts=apart").c_str(), view), one) << policy;
    // A prompt takes 10 ms, once in 100 or 10 steps.
    view.waiting[0].predicted.output_tokens = view.waiting[1].predicted.output_tokens = 100;
    EXPECT_EQ(plan_of((policy + ":batch=tpot").c_str(), view), one) << policy;
    view.waiting[0].predicted.output_tokens = view.waiting[1].predicted.output_tokens = 10;
    EXPECT_EQ(plan_of((policy + ":batch=tpot").c_str(), view), "decode 1 [49, 50) samples\n") << policy;
  }
  // Nor does any sequence come back.
  view.running[0].slo.tpot_ms = 12;
  view.waiting = {swapped_seq(4, 20, 50, 49)};
  for (const std::string policy : {"vllm-swap", "hcache"}) {
    EXPECT_EQ(plan_of((policy + ":batch=tpot:prompts=apart").c_str(), view), "decode 1 [49, 50) samples\n")
        << policy;
    EXPECT_NE(plan_of(policy.c_str(), view), "decode 1 [49, 50) samples\n") << policy;
  }
}

}  // namespace
}  // namespace kvasir::test
