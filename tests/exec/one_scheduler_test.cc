// One scheduler: the plans of a real engine, over the CPU executor, come again from an engine over the
// simulated one that is given the same requests at the same steps.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/random.h"
#include "engine/collecting_sink.h"
#include "engine/map_lines.h"
#include "engine/plan_json.h"
#include "exec/rig.h"
#include "exec/sim/sim_executor.h"
#include "support/policies.h"
#include "support/temp_file.h"

namespace kvasir::test {
namespace {

// What a step took, as the log says.
class LoggedTimes final : public StepTimes {
 public:
  double seconds(const StepLoad&) const override { return next; }
  double next = 0;
};

struct Record {
  View view;
  std::string plan;  // as JSON
  size_t rows = 0;
};

std::vector<Record> read_log(const std::string& path) {
  std::vector<Record> out;
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  const nlohmann::json none = nlohmann::json::array();
  while (std::getline(in, line)) {
    if (is_map_line(line)) continue;
    nlohmann::json record = nlohmann::json::parse(line);
    record.at("view")["length_classes"] = none;
    out.push_back(
        {view_from_json(record.at("view")), record.at("plan").dump(), record.at("plan").at("rows").size()});
  }
  return out;
}

// Prompts of which half begin alike, more than the memory holds, in three waves.
std::vector<RigRequest> random_requests(uint64_t seed) {
  Random random(seed);
  const std::vector<Token> common = random_tokens(seed, 32);
  std::vector<RigRequest> out(14);
  for (size_t i = 0; i < out.size(); ++i) {
    RigRequest& r = out[i];
    if (random.below(2) == 0) r.prompt = common;
    const std::vector<Token> own = random_tokens(seed + 100 + i, static_cast<size_t>(random.between(1, 60)));
    r.prompt.insert(r.prompt.end(), own.begin(), own.end());
    r.max_tokens = static_cast<uint32_t>(random.between(1, 20));
    r.sampling.seed = i;
    r.after_step = 8 * (i / 5);
  }
  return out;
}

RigOptions rig_options(const std::string& policy) {
  RigOptions o;
  o.policy = policy;
  o.threads = 1;
  o.blocks = 14;
  o.block_tokens = 16;
  o.layers_per_group = 1;
  o.prefix_caching = true;
  o.limits.max_num_seqs = 6;
  o.limits.max_num_batched_tokens = 100;
  return o;
}

const ModelFile& model() {
  static const std::unique_ptr<ModelFile> file = tiny_model(tiny_gqa(), ops::WeightType::kF32);
  return *file;
}

std::vector<Record> real_log(const RigOptions& options, const std::vector<RigRequest>& requests,
                             uint64_t& preemptions) {
  const TempFile file({});
  auto log = PlanLog::create(file.path(), options.policy).value();
  RigOptions logged = options;
  logged.log = log.get();
  preemptions = run(model(), logged, requests).preemptions;
  log.reset();
  return read_log(file.path());
}

GenerationRequest forced(const RigRequest& r) {
  GenerationRequest out;
  out.prompt = r.prompt;
  out.max_tokens = r.max_tokens;
  out.sampling.forced_end = static_cast<uint32_t>(r.prompt.size()) + r.max_tokens - 1;
  out.sampling.end_token = 0;
  out.stop_tokens = {0};
  return out;
}

// The line of the first plan that does not come again, or 0. Times in `records` are those of the real run.
size_t first_difference(const std::vector<Record>& records, const RigOptions& options,
                        const std::vector<RigRequest>& requests, std::unique_ptr<Policy> policy) {
  const TempFile file({});
  auto log = PlanLog::create(file.path(), options.policy).value();
  auto times = std::make_shared<LoggedTimes>();
  SimExecutor::Options simulated;
  simulated.times = times;
  simulated.layers = static_cast<uint32_t>(model().spec().layers);
  VirtualClock clock;
  SimExecutor executor(simulated, clock);
  Engine engine(engine_options(model(), options), std::move(policy), executor, clock, log.get());
  uint64_t known = 0;
  for (size_t i = 0; i < records.size(); ++i) {
    for (const std::vector<SeqView>* seqs : {&records[i].view.running, &records[i].view.waiting}) {
      for (const SeqView& seq : *seqs) {
        for (; known < raw(seq.id); ++known) {
          EXPECT_TRUE(engine.submit(forced(requests.at(known)), std::make_shared<CollectingSink>()).ok());
        }
      }
    }
    if (i + 1 < records.size()) times->next = to_seconds(records[i + 1].view.now - records[i].view.now);
    engine.step();
  }
  const bool more = engine.step();  // than the log has
  engine.stop();                    // its last map goes into the log, too
  log.reset();
  const std::vector<Record> again = read_log(file.path());
  for (size_t i = 0; i < records.size(); ++i) {
    if (i >= again.size() || again[i].plan != records[i].plan) return i + 2;
    if (i == 0 || records[i - 1].rows == 0) continue;
    const Nanos took = records[i].view.now - records[i - 1].view.now;
    EXPECT_NEAR(again[i].view.now - again[i - 1].view.now, took, 1) << "line " << i + 1;
  }
  return more || again.size() > records.size() ? records.size() + 2 : 0;
}

// In order of arrival: values follow the moment of a request's arrival, which the log rounds to that of a
// view.
std::vector<std::string> repeatable_policies() {
  std::vector<std::string> out = every_policy({"ellm:ratio=0.4:again=0.5"});
  for (std::string& policy : out)
    policy = policy == "ellm" ? "ellm:measured=off" : in_order_of_arrival(policy);
  return out;
}

class OneScheduler : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Policies, OneScheduler, testing::ValuesIn(repeatable_policies()));

TEST_P(OneScheduler, PlansOfARealEngineComeAgain) {
  const RigOptions options = rig_options(GetParam());
  for (uint64_t seed = 0; seed < 3; ++seed) {
    const std::vector<RigRequest> requests = random_requests(seed);
    uint64_t preemptions = 0;
    const std::vector<Record> records = real_log(options, requests, preemptions);
    ASSERT_GT(records.size(), 20u);
    const std::string policy = GetParam();
    const bool spares_blocks = policy == "orca" || policy == "fastgen" || policy == "apt-serve:order=fcfs" ||
                               policy == "rlp" || policy == "s3" || policy.starts_with("cacheopt") ||
                               policy.starts_with("ellm");
    EXPECT_TRUE(preemptions > 0 || spares_blocks);
    EXPECT_EQ(first_difference(records, options, requests, make_policy(GetParam()).value()), 0u)
        << "line, seed " << seed;
  }
}

// Leaves out the last rows of one plan.
class ForgetfulPolicy final : public Policy {
 public:
  ForgetfulPolicy(std::unique_ptr<Policy> policy, size_t nth) : policy_(std::move(policy)), left_(nth) {}
  StepPlan plan(const View& view) override {
    StepPlan plan = policy_->plan(view);
    if (--left_ == 0) plan.rows.pop_back();
    return plan;
  }

 private:
  const std::unique_ptr<Policy> policy_;
  size_t left_;
};

TEST(OneSchedulerTest, OneOtherDecisionOrOneTokenMoreIsFound) {
  const RigOptions options = rig_options("sarathi");
  std::vector<RigRequest> requests = random_requests(0);
  uint64_t preemptions = 0;
  const std::vector<Record> records = real_log(options, requests, preemptions);
  auto forgetful = std::make_unique<ForgetfulPolicy>(make_policy("sarathi").value(), 12);
  EXPECT_EQ(first_difference(records, options, requests, std::move(forgetful)), 13u);
  requests[4].prompt.push_back(5);
  EXPECT_GT(first_difference(records, options, requests, make_policy("sarathi").value()), 0u);
  EXPECT_GT(first_difference(records, options, random_requests(0), make_policy("fastgen").value()), 0u);
}

TEST(OneSchedulerTest, AnOutputOneTokenLongerIsFound) {
  const RigOptions options = rig_options("vllm");
  std::vector<RigRequest> requests = random_requests(1);
  uint64_t preemptions = 0;
  const std::vector<Record> records = real_log(options, requests, preemptions);
  ++requests[2].max_tokens;
  EXPECT_GT(first_difference(records, options, requests, make_policy("vllm").value()), 0u);
}

}  // namespace
}  // namespace kvasir::test
