// The checker of plans and the committer share their arithmetic, so that one cannot judge the other. Random
// edits of good plans do: what the checker accepts, the committer carries out with every count of the map in
// order and every output right; what it refuses breaks a rule that is stated.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>

#include "engine/mutating_policy.h"
#include "engine/torture.h"
#include "support/levels.h"

namespace kvasir::test {
namespace {

// Worlds with something of each: tiers, X, dropped cells, promises.
TortureConfig world(const std::string& policy, uint32_t window) {
  TortureConfig c;
  c.policy = policy;
  c.window = window;
  c.groups = 3;
  c.layers_per_group = 1;
  c.total_blocks = 30;
  c.host_blocks = 60;
  c.stage_blocks = 60;
  c.disk_blocks = policy == "random" ? 30 : 0;
  c.x_bytes = policy == "random-forms" || policy == "apt-serve" ? 8 : 0;
  c.scratch_tokens = 512;
  c.cancels = 0.05;
  c.tenants = 1;  // plans of many requests have more that can be wrong
  c.most_mutations = at_long_level() ? 2'500'000 : 4'000;
  c.requests = at_long_level() ? 400'000 : 600;
  return c;
}

class MutatedPlans : public testing::TestWithParam<std::tuple<std::string, uint32_t>> {};

TEST_P(MutatedPlans, WhatIsAcceptedIsCarriedOutAndWhatIsRefusedBreaksARule) {
  TortureConfig config = world(std::get<0>(GetParam()), std::get<1>(GetParam()));
  MutationCounts counts;
  config.mutations = &counts;
  const TortureOutcome out = torture(config);
  EXPECT_EQ(out.wrong, 0u) << out.first_wrong;
  EXPECT_EQ(out.integrity, "");
  EXPECT_EQ(out.used_blocks_left, 0u);
  EXPECT_EQ(out.transfers_left, 0u);
  EXPECT_EQ(counts.unknown_rule, "");
  EXPECT_GE(counts.tried, config.most_mutations) << "too few requests for so many plans";
  EXPECT_GT(counts.accepted, counts.tried / 50);
  EXPECT_GT(counts.carried_out, 30u);
  // Some rules need what a world does not have.
  EXPECT_GT(counts.refused.size(), rules_of_plans().size() / 2);
}

INSTANTIATE_TEST_SUITE_P(Policies, MutatedPlans,
                         testing::Combine(testing::Values("random", "random-forms", "random-promises",
                                                          "ellm"),
                                          testing::Values(0u, 41u)),
                         [](const auto& p) {
                           std::string name = std::get<0>(p.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name + (std::get<1>(p.param) > 0 ? "_window" : "");
                         });

}  // namespace
}  // namespace kvasir::test
