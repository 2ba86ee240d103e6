// Plans of the policy `auto`, worked by hand. Blocks have 16 tokens.
#include <gtest/gtest.h>

#include <algorithm>

#include "fakes/views.h"
#include "sched/plans.h"

namespace kvasir::test {
namespace {

constexpr Nanos kAutoNow = 100 * kNanosPerSecond;

// A step takes 20 ms, a row of a prompt 1 ms, a decode 1 ms and a microsecond for each token of context.
View auto_view(uint32_t total_blocks, uint32_t free_blocks) {
  View view = make_view(total_blocks, free_blocks);
  view.now = kAutoNow;
  view.limits.max_num_batched_tokens = 512;
  view.costs.step_s = 0.02;
  view.costs.prefill_row_s = 1e-3;
  view.costs.decode_row_s = 1e-3;
  view.costs.context_s = 1e-6;
  return view;
}

SeqView auto_waiting(uint64_t id, uint32_t prompt, double seconds_ago, Slo slo, uint32_t output = 50) {
  SeqView s = waiting_seq(id, prompt);
  s.max_total_tokens = prompt + 1000;
  s.arrival = kAutoNow - from_seconds(seconds_ago);
  s.slo = slo;
  s.predicted.output_tokens = output;
  return s;
}

SeqView auto_decoding(uint64_t id, uint32_t prompt, uint32_t known, double gap_so_far, Slo slo,
                      uint32_t output = 50) {
  SeqView s = decoding_seq(id, prompt, known);
  s.max_total_tokens = prompt + 1000;
  s.arrival = kAutoNow - kNanosPerSecond;
  s.first_token_time = kAutoNow - from_seconds(0.9);
  s.last_token_time = kAutoNow - from_seconds(gap_so_far);
  s.slo = slo;
  s.predicted.output_tokens = output;
  return s;
}

std::string auto_plan(const View& view) {
  return plan_of("auto", view);
}

TEST(AutoPolicy, WithoutBeliefsItKeepsTheOrderOfArrival) {
  View view = view_with_budget(32, 30);
  view.running = {decoding_seq(1, 20, 30)};
  view.waiting = {waiting_seq(2, 50), waiting_seq(3, 5)};
  EXPECT_EQ(auto_plan(view), "promise 2 8 cells on device\ndecode 1 [29, 30) samples\nprefill 2 [0, 31)\n");
}

// A queue for a device that has been short of memory: the size of an admission is what the request costs.
std::string plan_when_short(const View& view) {
  const auto policy = make_policy("auto").value();
  const std::string state = policy->save_state();
  // The shares of shortages are the fourth part: all of memory.
  size_t at = 0;
  for (int i = 0; i < 3; ++i) at = state.find(';', at) + 1;
  const std::string shorter = state.substr(0, at) + " 1 0" + state.substr(state.find(';', at));
  EXPECT_TRUE(policy->restore_state(shorter).ok());
  return plan_of(*policy, view);
}

TEST(AutoPolicy, TheLargestIsDroppedWhereNotAllCanBeInTime) {
  // All have 1 s until their first token. 40 blocks are 640 tokens. The first holds 160 tokens for 400 steps,
  // and costs (20 ms / 640 + 1 us)(160 * 400 + 80,000) = 4.6 s; the others hold 32 tokens for 20 steps.
  View view = auto_view(40, 6);
  view.running = {auto_decoding(1, 20, 30, 0.01, {})};
  const Slo slo{.ttft_ms = 1000};
  view.waiting = {auto_waiting(2, 80, 0.2, slo, 400), auto_waiting(3, 32, 0.1, slo, 20),
                  auto_waiting(4, 32, 0.0, slo, 20)};
  const std::string plan = plan_when_short(view);
  EXPECT_NE(plan.find("prefill 3 [0, 32) samples"), std::string::npos) << plan;
  EXPECT_NE(plan.find("prefill 4 [0, 32) samples"), std::string::npos) << plan;
  EXPECT_EQ(plan.find("prefill 2"), std::string::npos) << plan;
}

TEST(AutoPolicy, TheShortestGoesFirstWhereAllCanBeInTime) {
  View view = auto_view(40, 40);
  view.waiting = {auto_waiting(1, 64, 0.02, {.ttft_ms = 9000}), auto_waiting(2, 16, 0.01, {.ttft_ms = 9000})};
  EXPECT_EQ(auto_plan(view),
            "promise 2 2 cells on device\npromise 1 8 cells on device\n"
            "prefill 2 [0, 16) samples\nprefill 1 [0, 64) samples\n");
  view.waiting[0].slo.ttft_ms = 100;  // 64 rows and a step are 84 ms, of which 80 are left: it cannot be
  view.waiting[0].arrival = view.now - from_seconds(0.02);
  EXPECT_EQ(auto_plan(view).find("promise 2"), 0u) << "so it does not keep the other waiting";
}

TEST(AutoPolicy, TheMostExpensiveGivesUpItsMemory) {
  View view = auto_view(50, 0);
  view.running = {auto_decoding(1, 20, 33, 0.01, {}), auto_decoding(2, 20, 30, 0.01, {}, 500),
                  auto_decoding(3, 20, 30, 0.01, {}, 20)};
  EXPECT_EQ(auto_plan(view),
            "preempt 2\ndrop_all 2 kv device\n"
            "decode 3 [29, 30) samples\ndecode 1 [32, 33) samples\n");
}

TEST(AutoPolicy, ALateOneGivesUpItsMemoryFirst) {
  View view = auto_view(50, 0);
  const Slo slo{.ttft_ms = 50, .tbt_ms = 1000};  // all had their first token after 100 ms
  view.running = {auto_decoding(1, 20, 33, 0.01, {.tbt_ms = 1000}),
                  auto_decoding(2, 20, 30, 0.01, {.tbt_ms = 1000}, 500),
                  auto_decoding(3, 20, 30, 0.01, slo, 20)};
  EXPECT_EQ(auto_plan(view).substr(0, 10), "preempt 3\n");
}

TEST(AutoPolicy, ALateOneMakesWayForOneThatIsOnTime) {
  View view = auto_view(50, 0);
  view.running = {auto_decoding(1, 20, 30, 0.01, {.ttft_ms = 50}, 400)};
  view.waiting = {auto_waiting(2, 16, 0.01, {.ttft_ms = 1000}, 20)};
  EXPECT_EQ(auto_plan(view).substr(0, 10), "preempt 1\n");
  view.running[0].slo.ttft_ms = 500;
  EXPECT_EQ(auto_plan(view), "decode 1 [29, 30) samples\n") << "nor does one that is on time itself";
}

TEST(AutoPolicy, LateOnesAreServedLastInOrderOfArrival) {
  View view = auto_view(50, 50);
  const Slo slo{.ttft_ms = 500};
  view.waiting = {auto_waiting(1, 16, 3, slo), auto_waiting(2, 16, 2, slo), auto_waiting(3, 16, 0.1, slo)};
  EXPECT_EQ(auto_plan(view).find("promise 3 2 cells on device\npromise 1 2 cells on device\npromise 2"), 0u);
}

TEST(AutoPolicy, ALateOneGoesFirstOnCredit) {
  View view = auto_view(50, 4);
  view.running = {auto_decoding(9, 20, 30, 0.01, {})};
  const Slo slo{.ttft_ms = 500};
  view.waiting = {auto_waiting(1, 48, 3, slo), auto_waiting(3, 48, 0.1, slo)};
  EXPECT_NE(auto_plan(view).find("prefill 3 [0, 48) samples"), std::string::npos);
  const auto policy = make_policy("auto").value();
  std::string state = policy->save_state();
  // The credit is the fifth part.
  size_t at = 0;
  for (int i = 0; i < 4; ++i) at = state.find(';', at) + 1;
  state = state.substr(0, at) + " 99000000000 5 0" + state.substr(state.find(';', at));
  ASSERT_TRUE(policy->restore_state(state).ok());
  const std::string plan = plan_of(*policy, view);
  EXPECT_NE(plan.find("prefill 1 [0, 48) samples"), std::string::npos) << plan;
  EXPECT_EQ(plan.find("prefill 3"), std::string::npos) << plan;
}

TEST(AutoPolicy, AChunkEndsBeforeTheFirstTokenIsDue) {
  // Of 100 ms 20 are gone: by 1.104, the bin of 1.1, which nothing has shown to be wrong yet, the step takes
  // at most 72.5, of which it takes 21 with the decode alone.
  View view = auto_view(50, 40);
  view.running = {auto_decoding(1, 20, 30, 0.02, {.tbt_ms = 100})};
  view.waiting = {auto_waiting(2, 200, 0.01, {.ttft_ms = 5000})};
  EXPECT_NE(auto_plan(view).find("prefill 2 [0, 51)"), std::string::npos) << auto_plan(view);
}

TEST(AutoPolicy, WithoutBoundsAChunkLeavesGapsOfAFifthOfASecond) {
  // 200 ms by 1.104, the bin of 1.1, which nothing has shown to be wrong yet, are 181.1; the decode takes 21.
  View view = auto_view(50, 40);
  view.running = {auto_decoding(1, 20, 30, 0.01, {})};
  view.waiting = {auto_waiting(2, 400, 0.01, {})};
  const std::string plan = auto_plan(view);
  EXPECT_NE(plan.find("prefill 2 [0, 160)"), std::string::npos) << plan;
}

TEST(AutoPolicy, NobodyJoinsWhereTheGapsWouldBecomeTooLong) {
  // Twenty decodes take 40 ms, and 1.1 times 41 is more than 45.
  View view = auto_view(100, 50);
  for (uint64_t id = 1; id <= 20; ++id) view.running.push_back(auto_decoding(id, 20, 30, 0, {.tbt_ms = 45}));
  view.waiting = {auto_waiting(30, 16, 0.01, {.ttft_ms = 1000, .tbt_ms = 45})};
  EXPECT_EQ(auto_plan(view).find("prefill 30"), std::string::npos);
  for (SeqView& s : view.running) s.slo.tbt_ms = 90;
  view.waiting[0].slo.tbt_ms = 90;
  EXPECT_NE(auto_plan(view).find("prefill 30"), std::string::npos);
}

TEST(AutoPolicy, ItsStateComesBackAndDecides) {
  const auto policy = make_policy("auto").value();
  View view = auto_view(50, 20);
  view.running = {auto_decoding(1, 20, 30, 0.2, {.tbt_ms = 100})};
  view.waiting = {auto_waiting(2, 50, 0.01, {.ttft_ms = 500})};
  plan_of(*policy, view);
  const std::string state = policy->save_state();
  const auto other = make_policy("auto").value();
  EXPECT_NE(other->save_state(), state);
  ASSERT_TRUE(other->restore_state(state).ok());
  EXPECT_EQ(other->save_state(), state);
  view.now += from_seconds(0.05);
  view.running[0].last_token_time = view.now;
  EXPECT_EQ(plan_of(*other, view), plan_of(*policy, view));
  EXPECT_EQ(other->save_state(), policy->save_state());
  EXPECT_FALSE(other->restore_state("").ok());
  EXPECT_FALSE(other->restore_state("1; 2; 3; 4; 5; 6").ok());
}

}  // namespace
}  // namespace kvasir::test
