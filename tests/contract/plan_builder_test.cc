// The builder's arithmetic, by hand and against the checker at random.
#include "contract/plan_builder.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "contract/plan_checker.h"
#include "fakes/views.h"

namespace kvasir::test {
namespace {

TEST(PlanBuilder, AdmissionPromisesTheWholePromptAndRowsDrawOnIt) {
  View view = make_view(10, 10);
  view.waiting = {waiting_seq(1, 50)};  // 4 blocks
  PlanBuilder b(view);
  EXPECT_EQ(b.available_blocks(), 10);
  ASSERT_TRUE(b.admit(view.waiting[0]));
  EXPECT_EQ(b.available_blocks(), 6);
  EXPECT_EQ(b.running_seqs(), 1u);
  EXPECT_EQ(b.prefill(view.waiting[0], 20), 20u);
  EXPECT_EQ(b.available_blocks(), 6);
  EXPECT_EQ(b.planned_tokens(), 20u);
  const StepPlan plan = b.take();
  EXPECT_EQ(to_string(plan), "promise 1 4 blocks\nprefill 1 [0, 20)\n");
  EXPECT_TRUE(check_plan(view, plan).ok());
}

TEST(PlanBuilder, ACachedPrefixIsAdoptedAndItsIdleBlocksArePaid) {
  View view = make_view(10, 3);
  set_idle(view, 2);
  view.waiting = {waiting_seq(1, 50, 32, 2)};  // 2 new blocks and 2 idle ones
  PlanBuilder b(view);
  EXPECT_EQ(b.available_blocks(), 5);
  EXPECT_FALSE(b.admit(view.waiting[0], 2));
  ASSERT_TRUE(b.admit(view.waiting[0], 1));
  EXPECT_EQ(b.available_blocks(), 1);
  EXPECT_EQ(b.prefill(view.waiting[0], 1000), 18u);
  EXPECT_EQ(to_string(b.take()), "adopt 1 [0, 32)\npromise 1 2 blocks\nprefill 1 [32, 50) samples\n");
}

TEST(PlanBuilder, RefusesWhatDoesNotFit) {
  View view = make_view(10, 3);
  view.waiting = {waiting_seq(1, 64), waiting_seq(2, 48)};
  view.limits.max_num_seqs = 1;
  PlanBuilder b(view);
  EXPECT_FALSE(b.admit(view.waiting[0]));
  EXPECT_TRUE(b.admit(view.waiting[1]));
  EXPECT_EQ(b.available_blocks(), 0);
  view.waiting.push_back(waiting_seq(3, 0));
  EXPECT_FALSE(b.admit(view.waiting[2])) << "the limit of running sequences is reached";
}

TEST(PlanBuilder, ADecodeTakesABlockOnlyAtABlocksEnd) {
  View view = make_view(10, 1);
  view.running = {decoding_seq(1, 10, 16), decoding_seq(2, 10, 17), decoding_seq(3, 10, 33)};
  PlanBuilder b(view);
  EXPECT_TRUE(b.decode(view.running[0]));
  EXPECT_EQ(b.available_blocks(), 1);
  EXPECT_TRUE(b.decode(view.running[1]));
  EXPECT_EQ(b.available_blocks(), 0);
  EXPECT_FALSE(b.decode(view.running[2]));
  EXPECT_FALSE(b.has_rows(SeqId{3}));
  b.preempt_and_drop(view.running[2]);
  EXPECT_TRUE(b.preempted(SeqId{3}));
  EXPECT_EQ(b.available_blocks(), 2);
  EXPECT_EQ(b.running_seqs(), 2u);
  EXPECT_TRUE(check_plan(view, b.take()).ok());
}

TEST(PlanBuilder, WithAStepInFlightWhatIsGivenUpComesLater) {
  View view = make_view(10, 0);
  view.steps_in_flight = 1;
  set_pinned(view, 1);
  view.running = {decoding_seq(1, 10, 33)};
  PlanBuilder b(view);
  EXPECT_EQ(b.coming_blocks(), 1);
  b.preempt_and_drop(view.running[0]);
  EXPECT_EQ(b.available_blocks(), 0);
  EXPECT_EQ(b.coming_blocks(), 3);
}

TEST(PlanBuilder, APrefillEndsWhereMemoryEnds) {
  View view = make_view(10, 1);
  view.running = {running_seq(1, 100, 100, 20)};  // 2 blocks, 12 places left in the second
  PlanBuilder b(view);
  EXPECT_EQ(b.prefill(view.running[0], 1000), 28u);
  EXPECT_EQ(b.available_blocks(), 0);
  EXPECT_TRUE(check_plan(view, b.take()).ok());
}

TEST(PlanBuilder, BlocksThatOneGivesUpAndAnotherAdoptsAreFreeForNobody) {
  // Sequence 1 alone holds 3 blocks, of which sequence 2 could adopt 2; nothing is free.
  View view = make_view(3, 0);
  view.running = {decoding_seq(1, 40, 48)};
  view.waiting = {waiting_seq(2, 48, 32, 0), waiting_seq(3, 20)};
  for (bool preempt_first : {true, false}) {
    PlanBuilder b(view);
    if (preempt_first) b.preempt_and_drop(view.running[0]);
    if (!preempt_first) {
      EXPECT_FALSE(b.admit(view.waiting[0])) << "its third block is not there yet";
      continue;
    }
    ASSERT_TRUE(b.admit(view.waiting[0]));
    EXPECT_EQ(b.available_blocks(), 0);
    EXPECT_FALSE(b.admit(view.waiting[1]));
    EXPECT_GT(b.prefill(view.waiting[0], 100), 0u);
    EXPECT_TRUE(check_plan(view, b.take()).ok());
  }
}

TEST(PlanBuilder, AKeptSequenceGoesOnFromItsCells) {
  View view = make_view(10, 2);
  SeqView kept = decoding_seq(1, 20, 40);  // 3 blocks held
  view.waiting = {kept};
  PlanBuilder b(view);
  ASSERT_TRUE(b.admit(view.waiting[0]));
  EXPECT_EQ(b.available_blocks(), 2);
  ASSERT_TRUE(b.decode(view.waiting[0]));
  const StepPlan plan = b.take();
  EXPECT_EQ(to_string(plan), "decode 1 [39, 40) samples\n");
  EXPECT_TRUE(check_plan(view, plan).ok());

  PlanBuilder c(view);
  c.drop_waiting(view.waiting[0]);
  EXPECT_EQ(c.available_blocks(), 5);
}

TEST(PlanBuilder, RecomputationBeyondThePromptIsCalledThat) {
  View view = make_view(10, 10);
  view.running = {running_seq(1, 20, 50, 32)};
  PlanBuilder b(view);
  EXPECT_EQ(b.prefill(view.running[0], 8), 8u);
  EXPECT_EQ(to_string(b.take()), "recompute 1 [32, 40)\n");
}

TEST(PlanBuilderDeathTest, ASequenceHasRowsOnce) {
  View view = make_view(10, 10);
  view.running = {decoding_seq(1, 20, 30)};
  PlanBuilder b(view);
  ASSERT_TRUE(b.decode(view.running[0]));
  EXPECT_DEATH(b.preempt_and_drop(view.running[0]), "seq=1");
  EXPECT_DEATH((void)b.decode(view.running[0]), "seq=1");
}

View random_view(Random& random) {
  View view = make_view(64, static_cast<uint32_t>(random.below(12)));
  set_idle(view, static_cast<uint32_t>(random.below(6)));
  view.steps_in_flight = static_cast<uint32_t>(random.below(2));
  view.limits.max_num_seqs = static_cast<uint32_t>(random.between(3, 8));
  uint64_t id = 1;
  for (uint64_t n = random.below(4); n > 0; --n) {
    const auto prompt = static_cast<uint32_t>(random.between(1, 90));
    const auto known = prompt + static_cast<uint32_t>(random.below(30));
    SeqView s = running_seq(id++, prompt, known, static_cast<uint32_t>(random.between(1, known)));
    if (s.ready_tokens == known) --s.ready_tokens;
    s.device_blocks = view.geometry.blocks_for(s.ready_tokens);
    s.own_device_blocks = static_cast<uint32_t>(random.below(s.device_blocks + 1));
    if (!s.decoding()) {
      s.promised_blocks = view.geometry.blocks_for(known) - s.device_blocks;
      view.device.promised[0] += s.promised_blocks * view.geometry.kv_frames_per_block();
      view.device.empty_slabs += s.promised_blocks * view.geometry.kv_frames_per_block();
    }
    view.running.push_back(s);
  }
  for (uint64_t n = random.below(5); n > 0; --n) {
    const auto prompt = static_cast<uint32_t>(random.between(1, 90));
    const auto cached = static_cast<uint32_t>(random.below((prompt - 1) / kViewBlock + 1));
    const uint32_t idle_left = view.device.idle[0] / view.geometry.kv_frames_per_block();
    view.waiting.push_back(waiting_seq(id++, prompt, cached * kViewBlock,
                                       std::min(idle_left, static_cast<uint32_t>(random.below(cached + 1)))));
  }
  return view;
}

TEST(PlanBuilder, WhatItBuildsAtRandomTheCheckerAccepts) {
  Random random(5);
  for (int round = 0; round < 20'000; ++round) {
    const View view = random_view(random);
    PlanBuilder b(view);
    for (int pass = 0; pass < 2; ++pass) {
      for (const SeqView& s : view.running) {
        if (b.has_rows(s.id) || b.preempted(s.id) || random.unit() < 0.4) continue;
        const double r = random.unit();
        if (r < 0.2) {
          b.preempt_and_drop(s);
        } else if (r < 0.3) {
          b.preempt_and_keep(s);
        } else if (s.decoding()) {
          (void)b.decode(s);
        } else {
          (void)b.prefill(s, static_cast<uint32_t>(random.between(1, 40)));
        }
      }
      for (const SeqView& s : view.waiting) {
        if (b.has_rows(s.id) || b.preempted(s.id) || random.unit() < 0.4) continue;
        if (random.unit() < 0.1) {
          b.fail(s, "chance");
        } else if (b.admit(s)) {
          ASSERT_GT(b.prefill(s, static_cast<uint32_t>(random.between(1, 40))), 0u);
        }
      }
    }
    EXPECT_GE(b.available_blocks(), 0);
    const StepPlan plan = b.take();
    const Status status = check_plan(view, plan);
    const bool nothing = plan.rows.empty() && plan.failures.empty() && plan.preemptions.empty();
    ASSERT_TRUE(status.ok() || nothing) << status.message() << "\n" << to_string(plan);
  }
}

}  // namespace
}  // namespace kvasir::test
