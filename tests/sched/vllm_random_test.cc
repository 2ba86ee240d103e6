// The queue in a drawn order: every request's turn comes, the state replays, and the rest is vLLM's.
#include <gtest/gtest.h>

#include <map>

#include "sched/plans.h"

namespace kvasir::test {
namespace {

View five_waiting() {
  View view = make_view(50, 50);
  view.limits.max_num_batched_tokens = 10;  // a prompt goes alone
  for (uint64_t id = 1; id <= 5; ++id) view.waiting.push_back(waiting_seq(id, 10));
  return view;
}

TEST(VllmRandomPolicy, EveryOneOfTheQueueIsFirstInItsShareOfTheSteps) {
  const View view = five_waiting();
  const auto policy = make_policy("vllm-random:seed=7").value();
  std::map<uint64_t, int> first;
  for (int i = 0; i < 1000; ++i) ++first[raw(policy->plan(view).rows.front().seq)];
  ASSERT_EQ(first.size(), 5u);
  for (const auto& [id, times] : first) EXPECT_NEAR(times, 200, 5 * 12.7) << id;  // five deviations
}

TEST(VllmRandomPolicy, ItsStateReplays) {
  const View view = five_waiting();
  const auto policy = make_policy("vllm-random:seed=7").value();
  policy->plan(view);
  const std::string state = policy->save_state();
  std::vector<std::string> plans;
  for (int i = 0; i < 20; ++i) plans.push_back(to_string(policy->plan(view)));
  const auto again = make_policy("vllm-random:seed=7").value();
  ASSERT_TRUE(again->restore_state(state).ok());
  for (const std::string& plan : plans) EXPECT_EQ(to_string(again->plan(view)), plan);
  EXPECT_FALSE(again->restore_state("some").ok());
}

TEST(VllmRandomPolicy, RunningSequencesGoOnAsUnderVllm) {
  View view = make_view(20, 0);
  view.running = {decoding_seq(3, 20, 30), decoding_seq(1, 20, 33), decoding_seq(2, 20, 49)};
  EXPECT_EQ(plan_of("vllm-random", view), plan_of("vllm", view));
}

}  // namespace
}  // namespace kvasir::test
