// Plans of Apt-Serve by its Section 5 alone (rules=paper), worked by hand. Blocks have 16 tokens and two
// cells; one of K and V takes 1,024 bytes, one of X half of that.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "sched/apt_serve_views.h"

namespace kvasir::test {
namespace {

constexpr const char* kPaper = "apt-serve:rules=paper";

// It had tokens, and waits: its cache was discarded.
SeqView discarded(uint64_t id, uint32_t prompt, uint32_t known, double since_last_token) {
  SeqView s = timed(waiting_seq(id, prompt), since_last_token);
  s.known_tokens = known;
  return s;
}
// 1, of 40 tokens, has X of three blocks and K and V of the last, 2,560 bytes, of which K and V would take
// 3,072; 2, of 30, has two blocks of K and V. Both have waited 0.1 s. As X 1 costs the two of them
// P = 2 x 24 x 4 rho, and it is no less by the byte than K and V where (0.1 - P) / 2,560 >= 0.1 / 3,072,
// which is P <= 0.1 / 6.
View view_of_one_with_x(uint32_t free_blocks, double penalty) {
  View view = apt_view(50, free_blocks);
  view.running = {hidden(1, 40, 0.1), timed(decoding_seq(2, 20, 30), 0.1)};
  view.costs.projected_token_s = penalty / (2 * 24 * 4);
  return view;
}

// The device has room for 2,560 + 2,048 bytes, which K and V of both exceed by 512. By the byte, in
// microseconds: 2 has 0.1 / 2,048 = 48.8, 1 as X 32.8, its upgrade 0.016 / 512 = 31.3.
TEST(AptServeBySection5, OneChosenInTheFormThatItHasHasItsToken) {
  const std::string plan = plan_of(kPaper, view_of_one_with_x(0, 0.016));
  EXPECT_NE(plan.find("decode 1 [39, 40) samples x2 keeps kv x0 x x2\n"), std::string::npos) << plan;
  EXPECT_NE(plan.find("decode 2 [29, 30) samples\n"), std::string::npos) << plan;
  EXPECT_EQ(plan.find("preempt"), std::string::npos) << plan;
}

// P is above 0.0167: X is avoided, and the K and V of 1 do not fit beside 2. No block is missing.
TEST(AptServeBySection5, OneThatIsNotChosenIsPreempted) {
  const View view = view_of_one_with_x(0, 0.017);
  EXPECT_EQ(plan_of(kPaper, view).substr(0, 10), "preempt 1\n");
  EXPECT_NE(plan_of(kPaper, view).find("decode 2 [29, 30) samples\n"), std::string::npos);
  EXPECT_EQ(first_reason(kPaper, view), "preempt_not_chosen");
  // By our rules it keeps its X.
  EXPECT_EQ(plan_of("apt-serve", view).find("preempt"), std::string::npos);
}

TEST(AptServeBySection5, TheLastOneThatRunsIsNotLeftOut) {
  View view = view_of_one_with_x(0, 0.017);
  view.running.pop_back();
  EXPECT_NE(plan_of(kPaper, view).find("decode 1 [39, 40)"), std::string::npos) << plan_of(kPaper, view);
}

// A block more, and both fit as K and V: the cache of 1 is discarded, and a prefill computes it again, before
// any other request's, and alone.
TEST(AptServeBySection5, FromXToKvByAPrefill) {
  View view = view_of_one_with_x(1, 0.017);
  const std::unique_ptr<Policy> policy = make_policy(kPaper).value();
  const std::string plan = plan_of(*policy, view);
  EXPECT_EQ(plan.substr(0, 10), "preempt 1\n") << plan;
  EXPECT_EQ(plan.find("add 1"), std::string::npos) << plan;
  EXPECT_NE(plan.find("decode 2 [29, 30) samples\n"), std::string::npos) << plan;
  EXPECT_EQ(first_reason(kPaper, view), "preempt_become_kv");
  EXPECT_EQ(policy->save_state(), "1 kv");

  view.running.erase(view.running.begin());
  view.waiting = {discarded(1, 10, 40, 0.1), waits(3, 16, 0.01)};
  view.device.spare_slabs = 2 * 4;
  const std::string again = "promise 1 6 cells on device\nprefill 1 [0, 40) samples\n";
  const std::unique_ptr<Policy> restored = make_policy(kPaper).value();
  ASSERT_TRUE(restored->restore_state("1 kv").ok());
  EXPECT_EQ(plan_of(*restored, view), again);
  EXPECT_EQ(plan_of(*policy, view), again);
  // Then it runs, with K and V.
  view.waiting.clear();
  view.running.push_back(timed(decoding_seq(1, 10, 41), 0.01));
  plan_of(*policy, view);
  EXPECT_EQ(policy->save_state(), "");
}

// What was discarded is found in the cache, as X: once more to discard it would be no use, and its K and V
// are those that a step projects.
TEST(AptServeBySection5, OneThatHasAdoptedXAgainIsUpgraded) {
  const View view = view_of_one_with_x(4, 0.017);
  const std::unique_ptr<Policy> policy = make_policy(kPaper).value();
  ASSERT_TRUE(policy->restore_state("1 kv").ok());
  const std::string plan = plan_of(*policy, view);
  EXPECT_NE(plan.find("add 1 [0, 32) kv device x2 before_layer\n"), std::string::npos) << plan;
  EXPECT_EQ(plan.find("preempt"), std::string::npos) << plan;
  EXPECT_EQ(policy->save_state(), "1 kv") << "until its X is gone";
}

// Its K and V take three blocks; 2 begins one.
TEST(AptServeBySection5, AnUpgradeLeavesADecodeTheBlockThatItBegins) {
  for (uint32_t free_blocks : {3u, 4u}) {
    View view = view_of_one_with_x(free_blocks, 0.017);
    view.running[1] = timed(decoding_seq(2, 20, 33), 0.1);
    const std::unique_ptr<Policy> policy = make_policy(kPaper).value();
    ASSERT_TRUE(policy->restore_state("1 kv").ok());
    const std::string plan = plan_of(*policy, view);
    EXPECT_EQ(plan.find("add 1 [0, 32) kv device") != std::string::npos, free_blocks == 4) << plan;
    EXPECT_NE(plan.find("decode 2 [32, 33) samples\n"), std::string::npos) << plan;
  }
}

// A block is free, and four are about to be.
TEST(AptServeBySection5, OneThatIsComputedAgainSaysThatItWaitsForMemory) {
  View view = apt_view(50, 1);
  view.running = {timed(decoding_seq(2, 20, 30), 0.1)};
  view.waiting = {discarded(1, 10, 40, 0.1)};
  set_pinned(view, 4);
  const std::unique_ptr<Policy> policy = make_policy(kPaper).value();
  ASSERT_TRUE(policy->restore_state("1 kv").ok());
  const StepPlan plan = policy->plan(view);
  ASSERT_FALSE(plan.reasons.empty());
  EXPECT_EQ(plan.reasons[0].cause, Cause::kNoMemory);
  EXPECT_EQ(plan.reasons[0].seq, SeqId{1});
  EXPECT_EQ(policy->save_state(), "1 kv");
}

// Nothing is free, 1 and 3 begin a block, and the device has room for twelve. 1, 3 and 4 need two each, also
// as X; 2 needs eight, or five as X. Each of four requests would wait for 112 tokens of 2: P = 4 x 112 x 4
// rho. X is no less by the byte than K and V where (0.4 - P) / 5,120 >= 0.4 / 8,192, which is P <= 0.15. By
// the byte, in microseconds:
//
// clang-format off
//   1, 3   0.4 / 2,048 = 195
//   2      with P = 0.149 as X 49.0, then K and V 0.149 / 3,072 = 48.5; with 0.151 K and V at once 48.8
//   4      0.0997 / 2,048 = 48.7
// clang-format on
//
// So with 0.149 the room of 2's K and V goes to 4, and with 0.151 it is 4 that is left out.
View view_of_a_switch(double penalty) {
  View view = apt_view(20, 0, 20);
  view.running = {timed(decoding_seq(1, 10, 17), 0.4), timed(decoding_seq(2, 10, 124), 0.4),
                  timed(decoding_seq(3, 10, 17), 0.4), timed(decoding_seq(4, 10, 30), 0.0997)};
  view.costs.projected_token_s = penalty / (4 * 112 * 4);
  return view;
}

TEST(AptServeBySection5, FromKvToXByAPrefill) {
  View view = view_of_a_switch(0.1344);
  const std::unique_ptr<Policy> policy = make_policy(kPaper).value();
  EXPECT_EQ(plan_of(*policy, view),
            "preempt 2\ndrop_all 2 kv device\ndecode 1 [16, 17) samples\ndecode 3 [16, 17) samples\n"
            "decode 4 [29, 30) samples\n");
  EXPECT_EQ(first_reason(kPaper, view), "preempt_become_x");
  EXPECT_EQ(policy->save_state(), "2 x");
  view.running.erase(view.running.begin() + 1);
  view.waiting = {discarded(2, 10, 124, 0.4)};
  view.device.spare_slabs = 2 * 9;
  EXPECT_EQ(plan_of(*policy, view),
            "promise 2 2 cells on device\nprefill 2 [0, 124) samples x2 keeps kv x0 x x2\n");
  EXPECT_EQ(policy->save_state(), "");
  // Without room it waits for cells that are about to become free, and otherwise as the others do.
  view.device.spare_slabs = 2;
  for (uint32_t coming : {4u, 0u}) {
    set_pinned(view, coming);
    ASSERT_TRUE(policy->restore_state("2 x").ok());
    plan_of(*policy, view);
    EXPECT_EQ(policy->save_state(), coming > 0 ? "2 x" : "");
  }
}

TEST(AptServeBySection5, WhereXCostsTooMuchItIsAvoided) {
  const std::string without_x =
      "preempt 4\ndrop_all 4 kv device\ndecode 1 [16, 17) samples\ndecode 3 [16, 17) samples\n"
      "decode 2 [123, 124) samples\n";
  EXPECT_EQ(plan_of(kPaper, view_of_a_switch(0.149)).substr(0, 10), "preempt 2\n");
  EXPECT_EQ(plan_of(kPaper, view_of_a_switch(0.151)), without_x);
  EXPECT_EQ(plan_of("apt-serve:rules=paper:hidden=off", view_of_a_switch(0.1344)), without_x);
}

// 1 runs with X, so 512 bytes of its K and V are to come: of what is free a prompt has so much less.
TEST(AptServeBySection5, APrefillStepLeavesRoomForTheKvOfAllThatRun) {
  View view = apt_view(50, 3);
  view.running = {hidden(1, 40, 0.1)};
  view.waiting = {waits(2, 48, 4)};
  EXPECT_EQ(plan_of(kPaper, view), "prefill 2 [0, 48) samples x2 keeps kv x0 x x2\n");
  view.device.spare_slabs = 2 * 3 + 1;
  EXPECT_EQ(plan_of(kPaper, view), "promise 2 6 cells on device\nprefill 2 [0, 48) samples\n");
}

// 2,560 bytes are free: room for X of the 48 tokens of 1, 1,536 bytes, and for the block in which that may
// end, but not for their K and V, 3,072. Projecting them costs 1 and 2, which runs, P = 2 x 48 x 4 rho. X is
// worth no less by the byte than K and V where (4 - P) / 1,536 >= 4 / 3,072, which is P <= 2 or p / m >= 2 U
// rho.
View view_without_room_for_kv(double penalty, Slo slo = {}) {
  View view = apt_view(50, 0);
  view.device.spare_slabs = 5;
  view.waiting = {waits(1, 48, 4)};
  view.waiting[0].slo = slo;
  view.running = {timed(decoding_seq(2, 20, 30), 0.1)};
  view.costs.projected_token_s = penalty / (2 * 48 * 4);
  return view;
}
constexpr const char* kAsX = "prefill 1 [0, 48) samples x2 keeps kv x0 x x2\n";
constexpr const char* kNotScheduled = "decode 2 [29, 30) samples\n";

TEST(AptServeBySection5, XThatIsAvoidedIsNotTakenWhereKvDoesNotFit) {
  EXPECT_EQ(plan_of(kPaper, view_without_room_for_kv(1.9)), kAsX);
  EXPECT_EQ(plan_of(kPaper, view_without_room_for_kv(2.1)), kNotScheduled) << "it is worth 4 - 2.1 s as X";
}

// 1, of 72 tokens, holds 3,584 bytes as X and would take 5,120; the device has room for 1,024 more, which 2
// holds. Projecting the 56 tokens of which 1 has no K and V costs the two P = 2 x 56 x 4 rho, and X is
// avoided where (0.1 - P) / 3,584 < 0.1 / 5,120, which is P > 0.03.
TEST(AptServeBySection5, NorIsItKeptByOneThatRuns) {
  View view = apt_view(50, 0);
  view.running = {hidden(1, 72, 0.1), timed(decoding_seq(2, 10, 12), 0.1)};
  view.costs.projected_token_s = 0.029 / (2 * 56 * 4);
  EXPECT_EQ(plan_of(kPaper, view).find("preempt"), std::string::npos) << plan_of(kPaper, view);
  view.costs.projected_token_s = 0.031 / (2 * 56 * 4);
  EXPECT_EQ(plan_of(kPaper, view).substr(0, 10), "preempt 1\n") << plan_of(kPaper, view);
}

TEST(AptServeBySection5, ALateRequestGetsNoXUnlessItsValueDecays) {
  EXPECT_EQ(plan_of(kPaper, view_without_room_for_kv(0.1, {.ttft_ms = 4001})), kAsX);
  const View late = view_without_room_for_kv(0.1, {.ttft_ms = 3999});
  EXPECT_EQ(plan_of(kPaper, late), kNotScheduled);
  EXPECT_EQ(plan_of("apt-serve:rules=paper:decay=0.4", late), kAsX);
}

// 1 has waited for 4 s, which is too long: with 0.4 it is worth 1.6 s, with 0.2 0.8 s, and 2 is worth 1 s.
TEST(AptServeBySection5, ADecayKeepsAShareOfALateRequestsValue) {
  View view = apt_view(50, 50);
  view.waiting = {waits(1, 16, 4), waits(2, 16, 1)};
  view.waiting[0].slo = {.ttft_ms = 3999};
  const std::string late_first = "promise 1 2 cells on device\npromise 2 2 cells on device\n";
  const std::string late_last = "promise 2 2 cells on device\npromise 1 2 cells on device\n";
  EXPECT_EQ(plan_of("apt-serve:rules=paper:decay=0.4", view).substr(0, late_first.size()), late_first);
  EXPECT_EQ(plan_of("apt-serve:rules=paper:decay=0.2", view).substr(0, late_last.size()), late_last);
  EXPECT_EQ(plan_of(kPaper, view).substr(0, late_last.size()), late_last);
}

// Two that run pend for 0.2 s together.
TEST(AptServeBySection5, AStepDecodesWhileThoseThatRunPendLonger) {
  View view = apt_view(50, 20);
  view.running = {timed(decoding_seq(1, 20, 30), 0.1), timed(decoding_seq(2, 20, 30), 0.1)};
  view.waiting = {waits(3, 16, 0.19)};
  EXPECT_EQ(plan_of(kPaper, view), "decode 1 [29, 30) samples\ndecode 2 [29, 30) samples\n");
  view.waiting = {waits(3, 16, 0.21)};
  EXPECT_EQ(plan_of(kPaper, view), "promise 3 2 cells on device\nprefill 3 [0, 16) samples\n");
}

TEST(AptServeBySection5, APromptThatWasCutShortGoesOnBesideTheDecodes) {
  View view = apt_view(50, 20);
  SeqView begun = running_seq(2, 60, 60, 32);
  begun.arrival = kAptNow - kNanosPerSecond;
  view.running = {timed(decoding_seq(1, 20, 30), 0.1), begun};
  view.waiting = {waits(3, 16, 4)};
  EXPECT_EQ(plan_of(kPaper, view), "decode 1 [29, 30) samples\nprefill 2 [32, 60) samples\n");
}

TEST(AptServeBySection5, ItHasNoneOfOurSettings) {
  for (const char* policy :
       {"apt-serve:rules=paper:hidden-share=1", "apt-serve:rules=paper:step-share=1",
        "apt-serve:rules=paper:all-share=1", "apt-serve:rules=paper:to-x=running",
        "apt-serve:rules=paper:order=fcfs", "apt-serve:rules=theirs", "apt-serve-s:rules=paper"}) {
    EXPECT_FALSE(make_policy(policy).ok()) << policy;
  }
  EXPECT_TRUE(make_policy("apt-serve:rules=paper:hidden=off:decay=0.4").ok());
  EXPECT_TRUE(make_policy("apt-serve:rules=ours:hidden-share=1").ok());
  EXPECT_TRUE(policy_traits(kPaper).keeps_x);
  EXPECT_FALSE(policy_traits("apt-serve:rules=paper:hidden=off").keeps_x);
}

TEST(AptServeBySection5, AStateThatNamesNoChangesIsRefused) {
  for (const char* state : {"1", "1 both", "x", "1 kv 2"}) {
    EXPECT_FALSE(make_policy(kPaper).value()->restore_state(state).ok()) << state;
  }
  EXPECT_TRUE(make_policy(kPaper).value()->restore_state("").ok());
}

}  // namespace
}  // namespace kvasir::test
