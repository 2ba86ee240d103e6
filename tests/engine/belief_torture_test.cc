// Belief may be wrong: a policy that relies on it is slower then, and every output is the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>

#include "engine/plan_log.h"
#include "engine/random_policy.h"
#include "engine/torture.h"
#include "support/levels.h"
#include "support/temp_file.h"

namespace kvasir::test {
namespace {

// What the shadow executor's steps really take, and its link never says.
CostModel shadow_costs() {
  CostModel costs;
  costs.prefill_row_s = costs.decode_row_s = 1e-6;
  costs.links[0][1] = costs.links[1][0] = {1e-6, 1e-10};
  return costs;
}

TortureConfig believer(const CostModel& costs) {
  TortureConfig config;
  config.policy = "belief";
  config.costs = costs;
  config.predictor = "online";
  config.requests = 150;
  config.forced_ends = 0.5;
  config.total_blocks = 25;
  config.host_blocks = 60;
  config.stage_blocks = 40;
  return config;
}

void expect_all_right(const TortureConfig& config, const TortureOutcome& out) {
  EXPECT_EQ(out.wrong, 0u) << out.first_wrong;
  EXPECT_EQ(out.complete + out.aborted + out.failed, config.requests) << "every request ends";
  EXPECT_EQ(out.used_blocks_left + out.host_bytes_left + out.transfers_left, 0u);
  EXPECT_EQ(out.standstills, 0u);
  EXPECT_EQ(out.integrity, "");
}

using BeliefCase = std::tuple<int, std::string>;
class BeliefTorture : public testing::TestWithParam<BeliefCase> {};

TEST_P(BeliefTorture, OutputsAreTheSameHoweverWrongBeliefIs) {
  const auto& [depth, belief] = GetParam();
  const CostModel truth = shadow_costs();
  const CostModel believed = belief == "hundredth"     ? truth.scaled(0.01)
                             : belief == "hundredfold" ? truth.scaled(100)
                             : belief == "unknown"     ? CostModel{}
                                                       : truth;
  for (const char* predictor : {"online", "hidden", "constant:1", "constant:100000", ""}) {
    TortureConfig config = believer(believed);
    config.depth = depth;
    config.predictor = predictor;
    const TortureOutcome out = torture(config);
    SCOPED_TRACE(predictor);
    expect_all_right(config, out);
    EXPECT_GT(out.preemptions, 0u);
    std::printf("%-16s %llu steps, %llu preemptions, %llu swapped\n", predictor,
                static_cast<unsigned long long>(out.steps), static_cast<unsigned long long>(out.preemptions),
                static_cast<unsigned long long>(out.swapped));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Factors, BeliefTorture,
    testing::ValuesIn(shapes<int, std::string>(8, {1, 2}, {"right", "hundredth", "hundredfold", "unknown"})),
    [](const auto& c) { return std::get<1>(c.param) + "_depth" + std::to_string(std::get<0>(c.param)); });

// Of the published policies those that read costs, bounds and predictions.
TortureOutcome torture_published(const char* policy, int depth, const std::string& belief,
                                 const TortureConfig& with, uint32_t requests = scaled(150)) {
  CostModel truth = shadow_costs();
  truth.projected_token_s = with.costs.projected_token_s;
  TortureConfig config = believer(belief == "hundredth"     ? truth.scaled(0.01)
                                  : belief == "hundredfold" ? truth.scaled(100)
                                  : belief == "unknown"     ? CostModel{}
                                                            : truth);
  config.policy = policy;
  config.requests = requests;
  config.depth = depth;
  config.slo = with.slo;
  config.groups = with.groups;
  config.x_bytes = with.x_bytes;
  config.tenants = with.tenants;
  if (!with.predictor.empty()) config.predictor = with.predictor;
  const TortureOutcome out = torture(config);
  expect_all_right(config, out);
  return out;
}

TEST_P(BeliefTorture, SoAreThoseOfLayerKv) {
  const auto& [depth, belief] = GetParam();
  TortureConfig with;
  with.slo = {.tpot_ms = 1, .tbt_ms = 2};
  with.groups = 4;
  for (const char* policy : {"layerkv", "layerkv:mixed=off:urgent=1"}) {
    SCOPED_TRACE(policy);
    EXPECT_GT(torture_published(policy, depth, belief, with).partial_steps, 0u);
  }
}

TEST_P(BeliefTorture, SoAreThoseOfAptServe) {
  const auto& [depth, belief] = GetParam();
  TortureConfig with;
  with.slo = {.ttft_ms = 1, .tbt_ms = 2};
  with.x_bytes = 4;
  for (const char* policy : {"apt-serve", "apt-serve-s:decay=0.4", "apt-serve:to-x=queue:switch-cost=off",
                             "apt-serve:rules=paper"}) {
    SCOPED_TRACE(policy);
    EXPECT_GT(torture_published(policy, depth, belief, with).preemptions, 0u);
  }
}

// It decides once by what it believes, and those that began before go on as they were.
TEST_P(BeliefTorture, SoAreThoseOfHcache) {
  const auto& [depth, belief] = GetParam();
  TortureConfig with;
  with.slo = {.tpot_ms = 2};
  with.groups = 4;
  with.x_bytes = 8;
  with.tenants = 1;  // whether X pays depends on which requests wait
  with.costs.projected_token_s = 2e-9;
  for (const char* policy : {"hcache", "hcache:batch=tpot", "vllm-swap:batch=tpot"}) {
    SCOPED_TRACE(policy);
    const TortureOutcome out = torture_published(policy, depth, belief, with);
    EXPECT_GT(out.swapped, 0u);
    EXPECT_EQ(out.counts.x_restores > 0, std::string(policy).starts_with("hcache"));
  }
}

TEST_P(BeliefTorture, SoAreThoseOfAuto) {
  const auto& [depth, belief] = GetParam();
  TortureConfig with;
  with.groups = 4;
  uint64_t partial = 0;
  for (const Slo& slo : {Slo{}, Slo{.ttft_ms = 1, .tbt_ms = 2}, Slo{.ttft_ms = 20, .tpot_ms = 1},
                         Slo{.ttft_ms = 1000, .tbt_ms = 1000, .e2el_ms = 1}}) {
    with.slo = slo;
    const TortureOutcome out = torture_published("auto", depth, belief, with);
    EXPECT_GT(out.preemptions, 0u);
    partial += out.partial_steps;
  }
  // Prompts before there is room. With wrong costs some shapes have none.
  if (belief == "right") {
    EXPECT_GT(partial, 0u);
  }
}

TEST_P(BeliefTorture, SoAreThoseOfEllm) {
  const auto& [depth, belief] = GetParam();
  TortureConfig with;
  with.slo = {.tpot_ms = 2};
  with.groups = 4;
  for (const char* policy : {"ellm", "ellm:solver=slsqp:divide=bubble:mix=layers", "ellm:measured=off"}) {
    SCOPED_TRACE(policy);
    torture_published(policy, depth, belief, with);
  }
}

TEST_P(BeliefTorture, SoAreThoseOfCacheOptAndWhatItComparesWith) {
  const auto& [depth, belief] = GetParam();
  TortureConfig with;
  with.slo = {.ttft_ms = 1, .tbt_ms = 2};
  with.predictor = "constant:12";  // most have more
  // Of 150 requests every kind of promise is seen, of fewer not.
  const uint32_t requests = std::max(150u, scaled(150));
  PlanCounts all;
  uint64_t preemptions = 0;
  for (const char* policy :
       {"cacheopt", "cacheopt:late=last:preempt-for=running",
        "cacheopt:padding=hoeffding:embed=always:preempt-for=all:late=first:preempt=swap",
        "cacheopt:select=fcfs:victim=fcfs:confidence=0.5", "cacheopt:letter=on", "rlp:padding=5",
        "rlp:padding=5:victim=fcfs", "rlp:padding=5:victim=srtf", "rlp:padding=5:victim=lkvo",
        "s3:bucket=8"}) {
    SCOPED_TRACE(policy);
    const TortureOutcome out = torture_published(policy, depth, belief, with, requests);
    all += out.counts;
    preemptions += out.preemptions;
  }
  EXPECT_GT(preemptions, 0u);
  // Predictions that err either way: a guest that has more than was believed, in a host that has as much.
  with.predictor = "online";
  for (const char* policy :
       {"cacheopt:embed=always:confidence=0.3:unit=1:buffer=0", "cacheopt:embed=always:late=first"}) {
    SCOPED_TRACE(policy);
    all += torture_published(policy, depth, belief, with, requests).counts;
  }
  EXPECT_GT(all.claims_called, 0u);
  // Two steps deep, guests happen to end in time.
  EXPECT_TRUE(depth == 2 || all.loans_due > 0);
  for (uint64_t count : all.promises) EXPECT_GT(count, 0u) << "of every kind";
}

TEST(BeliefTorture, BeliefDecides) {
  // That the policy does heed it: what it does depends on what it believes.
  const TortureOutcome right = torture(believer(shadow_costs()));
  const TortureOutcome dear = torture(believer(shadow_costs().scaled(100)));
  const TortureOutcome cheap = torture(believer(shadow_costs().scaled(0.01)));
  EXPECT_NE(dear.steps, right.steps);
  EXPECT_NE(cheap.steps, right.steps);
}

TEST(BeliefTorture, RealStepsMendWrongBelief) {
  for (double factor : {0.01, 100.0}) {
    TortureConfig config = believer(shadow_costs().scaled(factor));
    config.learns_costs = true;
    config.requests = 300;
    const TortureOutcome out = torture(config);
    expect_all_right(config, out);
    StepWork w;
    w.add_prefill(0, 30);
    for (int i = 0; i < 5; ++i) w.add_decode(100);
    EXPECT_NEAR(out.believed.step_seconds(w) / 35e-6, 1, 0.1) << factor;
  }
}

// Runs the torture with a log of its plans, and replays that.
void expect_replay(TortureConfig config, const char* policy, uint64_t least_steps) {
  SCOPED_TRACE(policy);
  const TempFile file({});
  auto log = PlanLog::create(file.path(), policy).value();
  config.policy = policy;
  config.log = log.get();
  EXPECT_EQ(torture(config).wrong, 0u);
  const auto replay = replay_plan_log(file.path(), make_test_policy);
  ASSERT_TRUE(replay.ok()) << replay.status().message();
  EXPECT_GT(replay->steps, least_steps);
  EXPECT_EQ(replay->first_difference, 0u) << replay->expected << "\n" << replay->got;
}

TEST(BeliefTorture, ALogOfBeliefsReplays) {
  TortureConfig config = believer(shadow_costs().scaled(3));
  config.learns_costs = true;
  config.requests = 40;
  expect_replay(config, "belief", 0);
}

// It keeps how long steps took, which b and r depend on.
TEST(BeliefTorture, ALogOfEllmReplays) {
  TortureConfig config = believer(shadow_costs());
  config.costs.step_s = 1e-3;
  config.slo = {.tpot_ms = 20};
  config.stage_blocks = 30;
  config.requests = scaled(60);
  for (const char* policy : {"ellm", "ellm:ratio=0.5:overlap=off:fusion=off"}) {
    expect_replay(config, policy, 100);
  }
}

// It keeps the load and the longest steps, which its plans depend on.
TEST(BeliefTorture, ALogOfCacheOptReplays) {
  TortureConfig config = believer(shadow_costs());
  config.slo = {.ttft_ms = 1, .tbt_ms = 2};
  config.requests = scaled(60);
  for (const char* policy :
       {"cacheopt", "cacheopt:embed=always:preempt-for=all:late=first", "cacheopt:letter=on"}) {
    expect_replay(config, policy, 100);
  }
}

// It keeps ten things from plan to plan (AutoState). Beliefs are wrong at first, so that it corrects them.
TEST(BeliefTorture, ALogOfAutoReplays) {
  for (double factor : {1.0, 0.01}) {
    TortureConfig config = believer(shadow_costs().scaled(factor));
    config.learns_costs = true;
    config.slo = {.ttft_ms = 1, .tbt_ms = 2};
    config.requests = scaled(60);
    expect_replay(config, "auto", 100);
  }
}

}  // namespace
}  // namespace kvasir::test
