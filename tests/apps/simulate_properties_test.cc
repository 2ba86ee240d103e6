// Whatever the policy, the load and the settings: requests, tokens, time, memory and work add up, and the
// same setup gives the same run.
#include <gtest/gtest.h>

#include <functional>

#include "apps/simulated_world.h"
#include "support/policies.h"

namespace kvasir::test {
namespace {

constexpr uint64_t kRunsEach = 120;

class SimulateProperties : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Policies, SimulateProperties, testing::ValuesIn(every_policy()), name_of_policy);

TEST_P(SimulateProperties, HoldInRandomRuns) {
  uint64_t completed = 0, failed = 0, refused = 0, unfinished = 0, preempted = 0, linked = 0;
  for (uint64_t seed = 0; seed < kRunsEach; ++seed) {
    const World world = random_world(seed, GetParam());
    const WorldRun run = test::run(world);
    ASSERT_EQ(judge(world, run), "") << "seed " << seed;
    for (const RequestRecord& r : run.outcome.load.records) {
      completed += r.state == RequestRecord::State::kCompleted;
      failed += r.state == RequestRecord::State::kFailed && !r.refused;
      refused += r.refused;
      unfinished += r.end == 0;
    }
    preempted += run.outcome.preemptions;
    linked += run.outcome.link.transfers;
  }
  // Everything did happen.
  EXPECT_GT(completed, kRunsEach * 5);
  EXPECT_GT(failed, 10u);
  EXPECT_GT(refused, 10u);
  EXPECT_GT(unfinished, 10u);
  if (GetParam() != "orca") {
    EXPECT_GT(preempted, 25u);
  }
  if (GetParam() == "vllm-swap") {
    EXPECT_GT(linked, 50u);
  }
}

TEST_P(SimulateProperties, TheSameSetupGivesTheSameRunAndAnotherSeedAnother) {
  for (uint64_t seed = 1000; seed < 1010; ++seed) {
    World world = random_world(seed, GetParam());
    world.setup.noise = 0.1;
    world.setup.drain_timeout.reset();
    const SimulationOutcome once = test::run(world).outcome;
    EXPECT_TRUE(same(once, test::run(world).outcome)) << "seed " << seed;
    ++world.setup.seed;
    if (once.steps > 0) {
      EXPECT_FALSE(same(once, test::run(world).outcome)) << "seed " << seed;
    }
  }
}

// A world in which all are served, on the device alone.
World calm_world() {
  World world;
  SimulationSetup& s = world.setup;
  s.policy = "sarathi";
  s.engine.cache.geometry = {16, 2, 1, 8};
  s.engine.cache.device_bytes = s.engine.cache.geometry.kv_block_bytes() * 8;
  s.engine.max_model_len = 128;
  s.engine.check_integrity = true;
  s.times = std::make_shared<LinearTimes>();
  s.max_concurrency = 4;
  for (size_t i = 0; i < 6; ++i) {
    SimulatedRequest r;
    r.arrival = static_cast<Nanos>(i) * 100'000'000;
    r.prompt_tokens = 20;
    r.output_tokens = 5;
    r.slo = tagged({}, i);
    world.requests.push_back(r);
  }
  return world;
}

TEST(SimulateJudge, FindsWhatIsWrong) {
  const World world = calm_world();
  const WorldRun good = run(world);
  ASSERT_EQ(judge(world, good), "");
  const auto after = [&](const std::function<void(WorldRun&)>& change) {
    WorldRun bad = good;
    change(bad);
    return judge(world, bad);
  };
  using Record = RequestRecord;
  const auto of_second = [&](const std::function<void(Record&)>& change) {
    return after([&](WorldRun& r) { change(r.outcome.load.records[1]); });
  };
  EXPECT_EQ(of_second([](Record& r) { r.state = Record::State::kSent; }), "request 1: never ended");
  EXPECT_EQ(of_second([](Record& r) { --r.output_tokens; }), "request 1: gave 5 tokens instead of 5");
  EXPECT_EQ(of_second([](Record& r) { r.start = 0; }), "request 1: begins or ends too early");
  EXPECT_EQ(of_second([](Record& r) { ++r.gaps[2]; }), "request 1: gaps do not add up");
  EXPECT_EQ(of_second([](Record& r) { r.gaps.pop_back(); }), "request 1: gaps are lost");
  EXPECT_EQ(of_second([](Record& r) { r.end += 1; }).find("request 1: tokens from"), 0u);
  EXPECT_EQ(of_second([](Record& r) {
              r.state = Record::State::kFailed;
              r.content_chunks = 0;
              r.error = "no";
            }),
            "request 1: fails though it fits: no");
  EXPECT_EQ(after([](WorldRun& r) { ++r.accounts.requests[2].rows; }),
            "request 2: 25 rows and 0 adopted for 24 tokens and 0 that were lost");
  EXPECT_EQ(after([](WorldRun& r) { ++r.outcome.sums.rows; }), "145 rows in plans, 144 of requests");
  EXPECT_EQ(after([](WorldRun& r) { ++r.outcome.preemptions; }), "preemptions are lost");
  EXPECT_EQ(after([](WorldRun& r) { r.accounts.losses_unexplained = 1; }), "tokens were lost for no reason");
  EXPECT_EQ(after([](WorldRun& r) { r.outcome.load.max_concurrent = 5; }),
            "more at once than the client sends");
  EXPECT_EQ(after([](WorldRun& r) { r.outcome.samples[0].bytes[0][0] = 1 << 20; }),
            "1048576 bytes on the device");
  EXPECT_EQ(after([](WorldRun& r) { r.outcome.busy_s += 1e-3; }), "busy without a request");
  EXPECT_EQ(after([](WorldRun& r) { r.outcome.busy_s -= 1e-3; }).find("busy for"), 0u);
}

// Plans nothing where the policy inside would, once.
class LazyPolicy final : public Policy {
 public:
  explicit LazyPolicy(std::unique_ptr<Policy> policy) : policy_(std::move(policy)) {}
  StepPlan plan(const View& view) override { return ++plans_ == 8 ? StepPlan{} : policy_->plan(view); }

 private:
  const std::unique_ptr<Policy> policy_;
  int plans_ = 0;
};

TEST(SimulateJudge, FindsAPolicyThatLeavesARequestStanding) {
  World world = calm_world();
  world.setup.policies = [](std::string_view name) -> Result<std::unique_ptr<Policy>> {
    return std::unique_ptr<Policy>(std::make_unique<LazyPolicy>(make_policy(name).value()));
  };
  EXPECT_NE(judge(world, run(world)), "");
}

// Exact times, so that everything happens at once.
TEST(Simulate, AClientNeverSendsMoreThanItMayAtOnce) {
  World world = calm_world();
  world.setup.max_concurrency = 1;
  world.setup.request_overhead = kNanosPerMilli;
  // The first is too long, which the client hears at 1 ms, when the third one comes; the second is held.
  world.requests.resize(3);
  world.requests[0].prompt_tokens = 500;
  world.requests[1].arrival = 0;
  world.requests[2].arrival = kNanosPerMilli;
  const WorldRun run = test::run(world);
  EXPECT_EQ(judge(world, run), "");
  EXPECT_EQ(run.outcome.load.records[1].start, kNanosPerMilli) << "the one that was held goes first";
  EXPECT_EQ(run.outcome.load.max_concurrent, 1);
}

TEST(Simulate, TokensAfterTheClientHasGivenUpAreNotCounted) {
  World world = calm_world();
  world.requests.resize(2);
  world.requests[1].arrival = 0;
  world.setup.times = std::make_shared<LinearTimes>(1000, 0, 0, 0, 0);  // a millisecond a step
  world.setup.drain_timeout = 3'500'000;
  const SimulationOutcome out = test::run(world).outcome;
  EXPECT_TRUE(out.load.drained_out);
  EXPECT_EQ(out.load.duration, 3'500'000);
  for (const RequestRecord& r : out.load.records) {
    EXPECT_EQ(r.state, RequestRecord::State::kSent);
    EXPECT_EQ(r.end, 0);
    EXPECT_EQ(r.content_chunks, 3);
    EXPECT_EQ(r.last, 3'000'000);
  }
}

TEST(Simulate, ARequestThatCannotFitFailsAloneWithItsLine) {
  World world = calm_world();
  world.requests[1].prompt_tokens = 128;
  world.requests[2].output_tokens = 109;
  world.requests[3].max_tokens = 109;
  const WorldRun run = test::run(world);
  EXPECT_EQ(judge(world, run), "");
  const auto& records = run.outcome.load.records;
  EXPECT_NE(records[1].error.find("128 tokens"), std::string::npos) << records[1].error;
  EXPECT_EQ(records[2].error,
            "the prompt has 20 tokens and the output 109, but the largest length that fits is 128 tokens");
  EXPECT_NE(records[3].error.find("max_tokens is 109"), std::string::npos) << records[3].error;
  EXPECT_EQ(records[4].state, RequestRecord::State::kCompleted);
}

TEST(Simulate, APolicyOrPredictorThatThereIsNotIsNamed) {
  World world = calm_world();
  world.setup.policy = "fifo";
  EXPECT_NE(simulate(world.setup, world.requests).status().message().find("'fifo'"), std::string::npos);
  world = calm_world();
  world.setup.length_predictor = "crystal";
  EXPECT_NE(simulate(world.setup, world.requests).status().message().find("crystal"), std::string::npos);
}

TEST(Simulate, NoRequestsAreNoTime) {
  World world = calm_world();
  const SimulationOutcome out = simulate(world.setup, {}).value();
  EXPECT_EQ(out.load.duration, 0);
  EXPECT_EQ(out.steps, 0u);
}

}  // namespace
}  // namespace kvasir::test
