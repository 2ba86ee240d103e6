// What is told of a run: the life of one request, samples over time, the share of time at the limit.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "apps/simulate/observed_policy.h"
#include "apps/simulated_world.h"

namespace kvasir::test {
namespace {

constexpr Nanos kMilli = kNanosPerMilli;

// Every step takes a millisecond, whatever it does.
SimulationSetup millisecond_steps(uint32_t blocks) {
  SimulationSetup s;
  s.policy = "sarathi";
  s.engine.cache.geometry = {16, 2, 1, 8};
  s.engine.cache.device_bytes = s.engine.cache.geometry.kv_block_bytes() * blocks;
  s.engine.cache.prefix_caching = false;
  s.engine.max_model_len = 16 * blocks;
  s.engine.check_integrity = true;
  s.times = std::make_shared<LinearTimes>(1000, 0, 0, 0, 0);
  return s;
}

SimulatedRequest request(Nanos arrival, uint32_t prompt, uint32_t output) {
  SimulatedRequest r;
  r.arrival = arrival;
  r.prompt_tokens = prompt;
  r.output_tokens = output;
  return r;
}

// Ten steps in all for each of two requests, one of which may run: the second waits for ten of twenty.
TEST(ObservedPolicy, TimeAtTheLimitOfPlaces) {
  SimulationSetup s = millisecond_steps(8);
  s.engine.limits.max_num_seqs = 1;
  const auto out = simulate(s, {request(0, 4, 10), request(0, 4, 10)}).value();
  EXPECT_EQ(out.steps, 20u);
  EXPECT_EQ(out.sums.plans, 20u);
  EXPECT_EQ(out.sums.decodes, 18u);
  EXPECT_EQ(out.sums.rows, 26u);
  // The last plan's millisecond is after the last plan.
  EXPECT_NEAR(out.sums.seconds, 0.019, 1e-12);
  EXPECT_NEAR(out.sums.seconds_at_limit, 0.010, 1e-12);
  EXPECT_NEAR(out.sums.running_seconds, 0.019, 1e-12);
  EXPECT_NEAR(out.busy_s, 0.020, 1e-12);
}

// Four blocks. The first request takes two of them from 0 to 8 ms; the second needs three, the third one.
TEST(ObservedPolicy, TimeAtTheLimitOfMemory) {
  SimulationSetup s = millisecond_steps(4);
  const auto out =
      simulate(s, {request(0, 20, 8), request(2 * kMilli, 40, 3), request(3 * kMilli, 4, 5)}).value();
  using Record = RequestRecord;
  const auto& records = out.load.records;
  EXPECT_EQ(records[0].end, 8 * kMilli);
  EXPECT_EQ(records[1].end, 11 * kMilli);
  // In order of arrival: the third waits behind the second, with which it is admitted.
  EXPECT_EQ(records[2].end, 13 * kMilli);
  EXPECT_EQ(records[2].state, Record::State::kCompleted);
  EXPECT_NEAR(out.sums.seconds_at_limit, 0.006, 1e-12) << "from 2 ms to 8 ms";
  // One until 8 ms, two until 11 ms, then one until the last plan.
  EXPECT_NEAR(out.sums.running_seconds, 0.008 + 2 * 0.003 + 0.001, 1e-12);
}

TEST(ObservedPolicy, ARequestAdmittedAtOnceIsNotAtTheLimit) {
  const auto out = simulate(millisecond_steps(8), {request(0, 20, 8), request(0, 20, 8)}).value();
  EXPECT_EQ(out.sums.seconds_at_limit, 0);
  EXPECT_NEAR(out.sums.running_seconds, 2 * 0.007, 1e-12);
}

TEST(ObservedPolicy, ReasonsAreCountedOverAllInstances) {
  SimulationSetup s = millisecond_steps(8);
  s.policy = "auto";
  s.instances = 2;
  const auto out = simulate(s, {request(0, 4, 10), request(0, 4, 10), request(0, 4, 10)}).value();
  EXPECT_EQ(out.decisions[static_cast<size_t>(Cause::kAdmittedWithoutBounds)], 3u);
  EXPECT_EQ(out.decisions[static_cast<size_t>(Cause::kCostliest)], 0u);
}

TEST(ObservedPolicy, TellsALife) {
  SimulationSetup s = millisecond_steps(4);
  s.engine.limits.max_num_batched_tokens = 16;
  s.length_predictor = "constant:30";
  s.explain = 1;
  // Chunks of sixteen: the first prompt takes two steps, the second what they leave, and one more. At 14 ms
  // the first needs a third block, of four; it ends at 21 ms.
  const auto out = simulate(s, {request(0, 20, 20), request(kMilli / 2, 20, 20)}).value();
  const std::vector<std::string> expected = {
      "     0.001 s  arrives with a prompt of 20 tokens; 1 run, 0 wait before it",
      "     0.001 s  is believed to give 30 tokens",
      "     0.001 s  is admitted 0.5 ms after it arrived; 1 run beside it",
      "     0.001 s  prefills tokens 0 to 20 in 2 steps, the last at 0.002 s",
      "     0.003 s  decodes tokens 20 to 31 in 11 steps, the last at 0.013 s",
      "     0.014 s  is preempted at 32 tokens, 31 of them computed; 1 run, 0 % of the device's memory can "
      "be had",
      "     0.014 s  copies: drop all kv on the device",
      "     0.021 s  runs again 7.0 ms after it gave its last token; 0 run beside it",
      "     0.021 s  prefills tokens 0 to 32 in 2 steps, the last at 0.022 s",
      "     0.023 s  decodes tokens 32 to 39 in 7 steps, the last at 0.029 s"};
  EXPECT_EQ(out.life, expected);
  ASSERT_EQ(out.preempted_s.size(), 1u);
  EXPECT_NEAR(out.preempted_s[0], 0.007, 1e-12) << "from 14 ms to 21 ms";
  EXPECT_EQ(out.load.records[0].end, 21 * kMilli);
  EXPECT_EQ(out.load.records[1].end, 30 * kMilli);
}

// What it plans at which moment.
struct Turn {
  Nanos at = 0;
  std::vector<SeqId> run, preempt;
};

class ScriptedPolicy final : public Policy {
 public:
  explicit ScriptedPolicy(std::vector<Turn> turns) : turns_(std::move(turns)) {}
  StepPlan plan(const View& view) override {
    StepPlan plan;
    for (const Turn& turn : turns_) {
      if (turn.at != view.now) continue;
      for (SeqId seq : turn.preempt) plan.preemptions.push_back({seq});
      for (SeqId seq : turn.run) {
        Rows rows;
        rows.seq = seq;
        rows.tokens = {0, 1};
        plan.rows.push_back(rows);
      }
    }
    return plan;
  }

 private:
  const std::vector<Turn> turns_;
};

// The first for 3 and for 5 ns, and once more without an end; the second for 4 ns.
TEST(ObservedPolicy, AddsUpTheTimePreempted) {
  constexpr SeqId kFirst{1}, kSecond{2};
  const std::vector<Turn> turns = {{0, {kFirst, kSecond}, {}}, {10, {kSecond}, {kFirst}},
                                   {13, {kFirst}, {kSecond}},  {17, {kFirst, kSecond}, {}},
                                   {20, {}, {kFirst}},         {25, {kFirst}, {}},
                                   {30, {}, {kFirst}}};
  ObservedPolicy policy(std::make_unique<ScriptedPolicy>(turns), true);
  View view;
  view.geometry = {16, 2, 1, 8};
  view.running.resize(2);
  view.running[0].id = kFirst;
  view.running[1].id = kSecond;
  for (const Turn& turn : turns) {
    view.now = turn.at;
    policy.plan(view);
  }
  const std::vector<double> seconds = policy.preempted_seconds();
  ASSERT_EQ(seconds.size(), 2u);
  EXPECT_NEAR(seconds[0], 4e-9, 1e-18);
  EXPECT_NEAR(seconds[1], 8e-9, 1e-18);
}

class EmptyPolicy final : public Policy {
 public:
  StepPlan plan(const View&) override { return {}; }
};

TEST(ObservedPolicy, SamplesAreThinnedEvenly) {
  for (const int plans : {1, 4095, 4096, 4097, 8191, 8192, 30'000}) {
    ObservedPolicy policy(std::make_unique<EmptyPolicy>(), true);
    View view;
    view.geometry = {16, 2, 1, 8};
    for (int i = 0; i < plans; ++i) {
      view.now = i;
      policy.plan(view);
    }
    const auto& samples = policy.samples();
    ASSERT_FALSE(samples.empty());
    EXPECT_LT(samples.size(), 4096u);
    EXPECT_GE(samples.size(), static_cast<size_t>(std::min(plans, 2048)));
    EXPECT_EQ(samples.front().at, 0);
    const Nanos stride = samples.size() > 1 ? samples[1].at : 1;
    for (size_t i = 0; i < samples.size(); ++i) ASSERT_EQ(samples[i].at, static_cast<Nanos>(i) * stride);
    EXPECT_LT(plans - 1 - samples.back().at, stride) << "up to the end";
  }
}

// Two sequences' cells by form and tier, and what a plan does.
TEST(ObservedPolicy, ASampleCountsBytesAndRows) {
  class OneDecode final : public Policy {
    StepPlan plan(const View& view) override {
      StepPlan plan;
      Rows decode;
      decode.seq = view.running[0].id;
      decode.tokens = {20, 21};
      decode.kind = RowKind::kDecode;
      Rows prefill;
      prefill.seq = view.waiting[0].id;
      prefill.tokens = {0, 7};
      plan.rows = {decode, prefill};
      return plan;
    }
  };
  ObservedPolicy policy(std::make_unique<OneDecode>(), true);
  View view;
  view.now = 7;
  view.geometry = {16, 2, 1, 8};  // a cell of KV has 256 bytes, of X 64
  view.geometry.x_bytes_per_token_layer = 4;
  view.link.queued_bytes = 99;
  // Of 20 cells 9 are needed by no sequence, and 3 of these are promised.
  view.device.slabs = 10;
  view.device.spare_slabs = 4;
  view.device.per_slab[index_of(Form::kKv)] = 2;
  view.device.loose[index_of(Form::kKv)] = 1;
  view.device.promised[index_of(Form::kKv)] = 3;
  SeqView running, waiting;
  running.id = SeqId{1};
  running.cells[index_of(Form::kKv)][index_of(Tier::kDevice)] = 4;
  running.cells[index_of(Form::kX)][index_of(Tier::kHost)] = 3;
  waiting.id = SeqId{2};
  waiting.cells[index_of(Form::kKv)][index_of(Tier::kDevice)] = 1;
  waiting.cells[index_of(Form::kKv)][index_of(Tier::kDisk)] = 2;
  view.running = {running};
  view.waiting = {waiting};
  policy.plan(view);
  ASSERT_EQ(policy.samples().size(), 1u);
  const EngineSample& s = policy.samples()[0];
  EXPECT_EQ(s.at, 7);
  EXPECT_EQ(s.running, 1u);
  EXPECT_EQ(s.waiting, 1u);
  EXPECT_EQ(s.rows, 8u);
  EXPECT_EQ(s.decodes, 1u);
  EXPECT_EQ(s.link_queue_bytes, 99u);
  const std::array<std::array<uint64_t, kTiers>, kForms> bytes = {{{5 * 256, 0, 2 * 256}, {0, 3 * 64, 0}}};
  EXPECT_EQ(s.bytes, bytes);
  EXPECT_NEAR(policy.sums().allocated, 14.0 / 20, 1e-12);
  EXPECT_NEAR(policy.sums().promised, 3.0 / 20, 1e-12);
}

}  // namespace
}  // namespace kvasir::test
