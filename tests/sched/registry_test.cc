// Policies by name.
#include "sched/registry.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace kvasir {
namespace {

TEST(Registry, MakesEveryPolicyThatItNames) {
  const auto names = policy_names();
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  EXPECT_NE(std::find(names.begin(), names.end(), "sarathi"), names.end());
  EXPECT_NE(std::find(names.begin(), names.end(), "fcfs"), names.end());
  EXPECT_NE(std::find(names.begin(), names.end(), "vllm-swap"), names.end());
  for (const std::string& n : names) EXPECT_TRUE(make_policy(n).ok()) << n;
}

TEST(Registry, SaysWhatThereIs) {
  const auto policy = make_policy("lifo");
  ASSERT_FALSE(policy.ok());
  EXPECT_EQ(policy.status().code(), ErrorCode::kNotFound);
  EXPECT_NE(policy.status().message().find("'lifo'"), std::string::npos);
  EXPECT_NE(policy.status().message().find("sarathi"), std::string::npos);
  EXPECT_NE(policy.status().message().find("vllm-swap"), std::string::npos);
}

TEST(Registry, APolicyWithoutStateSavesNoneAndRefusesSome) {
  const auto policy = make_policy("vllm").value();
  EXPECT_EQ(policy->save_state(), "");
  EXPECT_TRUE(policy->restore_state("").ok());
  EXPECT_FALSE(policy->restore_state("7").ok());
}

}  // namespace
}  // namespace kvasir
