// One scheduler under two clocks: steps of the same lengths give the same plans, whether time passes or is
// said to.
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/simulated_world.h"
#include "base/random.h"
#include "engine/collecting_sink.h"
#include "engine/map_lines.h"
#include "exec/sim/sim_executor.h"
#include "support/policies.h"
#include "support/temp_file.h"

namespace kvasir::test {
namespace {

// Takes really as long as the simulated executor says. The link moves in that one's time: what came when is
// part of the script, as the steps' times are.
class SleepingExecutor final : public Executor {
 public:
  SleepingExecutor(SimExecutor& script, const Clock& clock) : script_(script), clock_(clock) {}

  int depth() const override { return script_.depth(); }
  void submit(Step step) override { script_.submit(std::move(step)); }
  StepResult wait() override {
    const Nanos started = clock_.now();
    StepResult result = script_.wait();
    std::this_thread::sleep_for(std::chrono::nanoseconds(result.ended - result.started));
    result.started = started;
    result.ended = clock_.now();
    slept_ += result.ended - result.started;
    return result;
  }
  Nanos slept() const { return slept_; }

 private:
  SimExecutor& script_;
  const Clock& clock_;
  Nanos slept_ = 0;
};

struct Due {
  uint64_t turn = 0;
  GenerationRequest request;
};

// More than the memory holds, in three waves.
std::vector<Due> script() {
  Random random(3);
  std::vector<Due> out;
  for (uint64_t i = 0; i < 24; ++i) {
    Due due;
    due.turn = 15 * (i / 8);
    due.request.prompt.resize(static_cast<size_t>(random.between(1, 70)));
    for (Token& t : due.request.prompt) t = static_cast<Token>(1 + random.below(900));
    due.request.max_tokens = static_cast<uint32_t>(random.between(1, 24));
    due.request.priority = static_cast<int32_t>(random.below(3));
    out.push_back(std::move(due));
  }
  return out;
}

EngineOptions options() {
  EngineOptions o;
  o.cache.geometry = {16, 2, 1, 8};
  o.cache.device_bytes = o.cache.geometry.kv_block_bytes() * 16;
  o.cache.host_bytes = o.cache.geometry.kv_block_bytes() * 16;
  o.max_model_len = 128;
  o.limits.max_num_seqs = 8;
  o.limits.max_num_batched_tokens = 128;
  return o;
}

// Steps of 0.5 to 2 ms; a cell takes half a millisecond on the link.
SimExecutor::Options times() {
  SimExecutor::Options o;
  o.times = std::make_shared<LinearTimes>(500, 8, 20, 0.01, 0);
  o.noise = 0.2;
  o.layers = 2;
  return o;
}
SimLink::Costs link_costs() {
  SimLink::Costs c{};
  for (auto& row : c)
    row.fill({50e-6, 0.5e-3 / static_cast<double>(options().cache.geometry.kv_cell_bytes())});
  return c;
}

struct Course {
  std::vector<std::string> plans;  // as JSON
  uint64_t preemptions = 0;
  uint64_t transfers = 0;
  Nanos took = 0;
};

Course run(std::unique_ptr<Policy> policy, const std::vector<Due>& requests, bool real) {
  const TempFile file({});
  auto log = PlanLog::create(file.path(), "test").value();
  VirtualClock scripted;
  MonotonicClock monotonic;
  const Clock& clock = real ? static_cast<const Clock&>(monotonic) : scripted;
  SimLink link(link_costs(), scripted);
  SimExecutor executor(times(), scripted, &link);
  SleepingExecutor sleeping(executor, clock);
  Engine engine(options(), std::move(policy), real ? static_cast<Executor&>(sleeping) : executor, clock,
                log.get(), &link);
  const Nanos began = clock.now();
  size_t next = 0;
  for (uint64_t turn = 0;; ++turn) {
    for (; next < requests.size() && requests[next].turn <= turn; ++next) {
      EXPECT_TRUE(engine.submit(requests[next].request, std::make_shared<CollectingSink>()).ok());
    }
    const uint64_t steps = engine.metrics().steps;
    if (!engine.step() && next == requests.size()) break;
    // All wait for the link.
    if (engine.metrics().steps == steps && link.next_end()) {
      scripted.advance(std::max<Nanos>(0, *link.next_end() - scripted.now()));
    }
  }
  Course out;
  out.took = clock.now() - began;
  out.preemptions = engine.metrics().num_preemptions;
  out.transfers = link.stats().transfers;
  if (real) {
    EXPECT_GE(out.took, sleeping.slept());
  }
  engine.stop();  // its last map goes into the log, too
  log.reset();
  std::ifstream in(file.path());
  std::string line;
  std::getline(in, line);
  while (std::getline(in, line)) {
    if (!is_map_line(line)) out.plans.push_back(nlohmann::json::parse(line).at("plan").dump());
  }
  return out;
}

// Of the nth plan it takes the last rows out.
class ForgetfulPolicy final : public Policy {
 public:
  ForgetfulPolicy(std::unique_ptr<Policy> policy, int nth) : policy_(std::move(policy)), left_(nth) {}
  StepPlan plan(const View& view) override {
    StepPlan plan = policy_->plan(view);
    if (--left_ != 0) return plan;
    // With what else is for that sequence, which may not run then.
    const SeqId seq = plan.rows.back().seq;
    plan.rows.pop_back();
    std::erase_if(plan.adoptions, [&](const Adoption& a) { return a.seq == seq; });
    std::erase_if(plan.promises, [&](const Promise& p) { return p.owner == seq; });
    return plan;
  }

 private:
  const std::unique_ptr<Policy> policy_;
  int left_;
};

class TwoClocks : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Policies, TwoClocks, testing::ValuesIn(every_policy()), name_of_policy);

TEST_P(TwoClocks, GiveTheSamePlans) {
  const std::vector<Due> requests = script();
  const std::string policy = in_order_of_arrival(GetParam());
  const Course real = run(make_policy(policy).value(), requests, /*real=*/true);
  const Course simulated = run(make_policy(policy).value(), requests, /*real=*/false);
  ASSERT_GT(real.plans.size(), 40u);
  EXPECT_EQ(real.plans, simulated.plans);
  // The others reserve, or wait for room.
  if (!std::set<std::string>{"cacheopt", "fastgen", "orca", "rlp", "s3"}.contains(GetParam())) {
    EXPECT_GT(real.preemptions, 0u);
  }
  if (GetParam() == "vllm-swap") {
    EXPECT_GT(real.transfers, 0u);
  }
  // Time did pass, and at least as much as was said.
  EXPECT_GT(real.took, 40 * kNanosPerMilli / 2);
  EXPECT_GE(real.took, simulated.took * 99 / 100);
}

TEST(TwoClocksTest, OneDecisionOrOneTokenMoreIsFound) {
  std::vector<Due> requests = script();
  const auto plans = [&] { return run(make_policy("sarathi").value(), requests, false).plans; };
  const std::vector<std::string> expected = plans();
  EXPECT_EQ(plans(), expected);
  auto forgetful = std::make_unique<ForgetfulPolicy>(make_policy("sarathi").value(), 30);
  EXPECT_NE(run(std::move(forgetful), requests, false).plans, expected);
  ++requests.back().request.max_tokens;
  EXPECT_NE(plans(), expected);
  --requests.back().request.max_tokens;
  requests[3].request.prompt.push_back(1);
  EXPECT_NE(plans(), expected);
}

}  // namespace
}  // namespace kvasir::test
