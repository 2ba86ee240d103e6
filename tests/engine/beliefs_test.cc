// Beliefs in the engine's loop: what it learns from, what policies see, and what they must never see.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/random.h"
#include "engine/belief_keeper.h"
#include "engine/engine_fixture.h"
#include "engine/plan_json.h"
#include "exec/sim/sim_executor.h"
#include "sched/beliefs/cost_beliefs.h"
#include "sched/beliefs/length_predictors.h"

namespace kvasir::test {
namespace {

constexpr Token kEnd = 63;

// Plans as another policy, and notes every view as text.
class NotingPolicy final : public Policy {
 public:
  explicit NotingPolicy(std::vector<std::string>& views) : views_(views) {}
  StepPlan plan(const View& view) override {
    views_.push_back(view_to_json(view).dump());
    return policy_->plan(view);
  }

 private:
  std::vector<std::string>& views_;
  const std::unique_ptr<Policy> policy_ = make_policy("sarathi").value();
};

struct Job {
  std::vector<Token> prompt;
  uint32_t output = 0;
};

// The prompt's first token says how long the output becomes, give or take a fifth.
std::vector<Job> jobs(size_t count, uint64_t seed) {
  Random random(seed);
  std::vector<Job> out(count);
  for (Job& j : out) {
    const uint64_t kind = random.below(4);
    j.prompt.push_back(static_cast<Token>(kind));
    const auto more = random.between(4, 24);
    for (int64_t i = 0; i < more; ++i) j.prompt.push_back(static_cast<Token>(random.between(10, 60)));
    const double length = std::vector{4.0, 12.0, 40.0, 120.0}[kind] * (0.8 + 0.4 * random.unit());
    j.output = static_cast<uint32_t>(std::max(1.0, length));
  }
  return out;
}

GenerationRequest request_of(const Job& job) {
  GenerationRequest r;
  r.prompt = job.prompt;
  r.sampling.forced_end = static_cast<uint32_t>(job.prompt.size()) + job.output - 1;
  r.sampling.end_token = kEnd;
  r.stop_tokens = {kEnd};
  return r;
}

EngineOptions options() {
  EngineOptions o;
  o.cache.geometry = {16, 2, 2, 8};
  o.cache.device_bytes = o.cache.geometry.kv_block_bytes() * 400;
  o.max_model_len = 400;
  o.limits.max_num_seqs = 16;
  return o;
}

// Mean absolute errors of predicted lengths over the second half of the jobs.
struct Errors {
  double predictor = 0;
  double running_mean = 0;
};

Errors run_jobs(const std::vector<Job>& all, const char* predictor_name) {
  const auto predictor = make_length_predictor(predictor_name).value();
  VirtualClock clock;
  SimExecutor executor({.vocab_size = 64, .layers = 2}, clock);
  Engine engine(options(), make_policy("sarathi").value(), executor, clock, nullptr, nullptr,
                {nullptr, predictor.get()});
  const EngineMetrics::Predictions& m = engine.metrics().predictions;
  Errors out;
  double sum = 0, half_error = 0;
  uint64_t half_finished = 0;
  std::vector<std::shared_ptr<CollectingSink>> live;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i == all.size() / 2) {
      half_error = m.error_tokens;
      half_finished = m.finished;
    }
    live.push_back(std::make_shared<CollectingSink>());
    EXPECT_TRUE(engine.submit(request_of(all[i]), live.back()).ok());
    if (i > 0 && i >= all.size() / 2) {
      out.running_mean += std::abs(sum / static_cast<double>(i) - all[i].output) /
                          static_cast<double>(all.size() - all.size() / 2);
    }
    sum += all[i].output;
    for (int turn = 0; turn < 8; ++turn) engine.step();
  }
  while (engine.step()) {
  }
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(live[i]->tokens.size(), all[i].output) << "an end that is forced comes at its place";
    EXPECT_EQ(live[i]->finish, FinishReason::kStop);
  }
  out.predictor = (m.error_tokens - half_error) / static_cast<double>(m.finished - half_finished);
  return out;
}

TEST(LengthsInTheLoop, OnlineLearnsFromOutputsThatEnded) {
  const auto all = jobs(1200, 3);
  const Errors online = run_jobs(all, "online"), constant = run_jobs(all, "constant:44");
  std::printf("mean absolute error: online %.1f, constant %.1f, running mean %.1f tokens\n", online.predictor,
              constant.predictor, online.running_mean);
  EXPECT_LT(online.predictor, 0.4 * constant.predictor);
  EXPECT_LT(online.predictor, 0.4 * online.running_mean);
}

TEST(LengthsInTheLoop, PermutedLengthsLeaveNothingToLearn) {
  auto all = jobs(1200, 3);
  Random random(5);
  for (size_t i = all.size(); i > 1; --i) std::swap(all[i - 1].output, all[random.below(i)].output);
  const Errors online = run_jobs(all, "online");
  std::printf("mean absolute error: online %.1f, running mean %.1f tokens\n", online.predictor,
              online.running_mean);
  // No better than the running mean but for chance; nor much worse.
  EXPECT_GT(online.predictor, 0.93 * online.running_mean);
  EXPECT_LT(online.predictor, 1.1 * online.running_mean);
}

TEST(LengthsInTheLoop, NoViewKnowsWhatIsForced) {
  const auto views_with = [](uint32_t factor, std::vector<size_t>& lengths) {
    std::vector<std::string> views;
    const auto predictor = make_length_predictor("online").value();
    VirtualClock clock;
    SimExecutor executor({.vocab_size = 64, .layers = 2}, clock);
    Engine engine(options(), std::make_unique<NotingPolicy>(views), executor, clock, nullptr, nullptr,
                  {nullptr, predictor.get()});
    std::vector<std::shared_ptr<CollectingSink>> sinks;
    for (uint32_t i = 0; i < 6; ++i) {
      GenerationRequest r = request(20 + i, 0, static_cast<Token>(i));
      r.stop_tokens = {kEnd};
      r.sampling.end_token = kEnd;
      r.sampling.forced_end = 20 + i + factor * (30 + i) - 1;
      sinks.push_back(std::make_shared<CollectingSink>());
      EXPECT_TRUE(engine.submit(std::move(r), sinks.back()).ok());
    }
    // Until the first output ends.
    while (std::none_of(sinks.begin(), sinks.end(), [](const auto& s) { return s->finish.has_value(); })) {
      engine.step();
    }
    for (const auto& s : sinks) lengths.push_back(s->tokens.size());
    return views;
  };
  std::vector<size_t> short_lengths, long_lengths;
  const auto with_short = views_with(1, short_lengths), with_long = views_with(4, long_lengths);
  EXPECT_EQ(*std::max_element(short_lengths.begin(), short_lengths.end()), 30u);
  EXPECT_EQ(*std::max_element(long_lengths.begin(), long_lengths.end()), 120u);
  ASSERT_GT(with_short.size(), 20u);
  ASSERT_GT(with_long.size(), with_short.size());
  for (size_t i = 0; i < with_short.size(); ++i) EXPECT_EQ(with_short[i], with_long[i]) << "view " << i;
}

// Hears what it is told.
class ListeningPredictor final : public LengthPredictor {
 public:
  LengthPrediction predict(const PromptFeatures& f) override {
    prompts.emplace_back(f.prompt.begin(), f.prompt.end());
    hints.push_back(f.output_tokens_hint);
    return {.output_tokens = 7, .length_class = 1, .deviation = Deviation::kLonger};
  }
  void learn(const PromptFeatures& f, const LengthPrediction& p, uint32_t tokens) override {
    EXPECT_EQ(p.output_tokens, 7u);
    EXPECT_EQ(f.prompt.size(), prompts.front().size());
    ended.push_back(tokens);
    classes_[1].finished = ended.size();
  }
  void learn_at_least(const PromptFeatures&, const LengthPrediction&, uint32_t tokens) override {
    cut.push_back(tokens);
  }
  const std::vector<LengthClass>& classes() const override { return classes_; }

  std::vector<std::vector<Token>> prompts;
  std::vector<uint32_t> hints, ended, cut;

 private:
  std::vector<LengthClass> classes_{{1, 5}, {5, UINT32_MAX}};
};

TEST(LengthsInTheLoop, OnlyWhatEndedByItselfIsATruth) {
  ListeningPredictor predictor;
  std::vector<LengthPrediction> seen;
  uint64_t finished_seen = 0;
  auto policy = std::make_unique<FunctionPolicy>(
      [&, inner = std::shared_ptr<Policy>(make_policy("vllm").value())](const View& view) {
        for (const auto* list : {&view.waiting, &view.running}) {
          for (const SeqView& s : *list) seen.push_back(s.predicted);
        }
        finished_seen = view.length_classes.at(1).finished;
        return inner->plan(view);
      });
  VirtualClock clock;
  ScriptedExecutor executor(clock, 1, kStep);
  Engine engine(small_options(), std::move(policy), executor, clock, nullptr, nullptr, {nullptr, &predictor});
  const auto run = [&](GenerationRequest r) {
    const auto sink = std::make_shared<CollectingSink>();
    const RequestId id = engine.submit(std::move(r), sink).value();
    return std::pair(sink, id);
  };
  GenerationRequest natural = request(10, 50);
  natural.stop_tokens = {14};  // the scripted executor samples positions
  natural.output_tokens_hint = 99;
  run(natural);
  while (engine.step()) {
  }
  EXPECT_EQ(predictor.hints, std::vector<uint32_t>{99});
  EXPECT_EQ(predictor.prompts[0], natural.prompt);
  EXPECT_EQ(predictor.ended, std::vector<uint32_t>{5});
  run(request(10, 3));  // cut by its limit
  while (engine.step()) {
  }
  const auto [sink, id] = run(request(10, 50));
  for (int i = 0; i < 4; ++i) engine.step();
  engine.cancel(id);
  while (engine.step()) {
  }
  EXPECT_EQ(predictor.ended.size(), 1u);
  EXPECT_EQ(predictor.cut, std::vector<uint32_t>{3});
  EXPECT_EQ(finished_seen, 1u);
  for (const LengthPrediction& p : seen) EXPECT_EQ(p.output_tokens, 7u);
  const EngineMetrics::Predictions& m = engine.metrics().predictions;
  EXPECT_EQ(m.finished, 1u);
  EXPECT_EQ(m.within_50, 1u);
  EXPECT_EQ(m.over_tokens, 2.0);
}

// Predicts one more each time that it is asked, and notes the rows.
class RowListener final : public LengthPredictor {
 public:
  LengthPrediction predict(const PromptFeatures& f) override {
    rows.emplace_back(f.hidden.begin(), f.hidden.end());
    return {.output_tokens = f.hidden.empty() ? 5u : 50u};
  }
  bool reads_hidden() const override { return reads; }
  void learn(const PromptFeatures& f, const LengthPrediction& p, uint32_t) override {
    learnt.emplace_back(f.hidden.begin(), f.hidden.end());
    EXPECT_EQ(p.output_tokens, reads ? 50u : 5u);
  }
  const std::vector<LengthClass>& classes() const override { return classes_; }

  bool reads = true;
  std::vector<std::vector<float>> rows, learnt;

 private:
  std::vector<LengthClass> classes_{{1, UINT32_MAX}};
};

// Four requests of 100 tokens, and of 60 more, on a device of 512: one is preempted and recomputed.
void run_with(RowListener& predictor, int depth, const std::function<void(const View&)>& look,
              std::vector<Step>& steps) {
  VirtualClock clock;
  ScriptedExecutor executor(clock, depth, kStep);
  auto policy = std::make_unique<FunctionPolicy>(
      [&, inner = std::shared_ptr<Policy>(make_policy("vllm").value())](const View& view) {
        look(view);
        return inner->plan(view);
      });
  Engine engine(small_options(), std::move(policy), executor, clock, nullptr, nullptr, {nullptr, &predictor});
  for (int i = 0; i < 4; ++i) {
    GenerationRequest r = request(100, 200);
    r.stop_tokens = {160};  // the scripted executor samples positions
    ASSERT_TRUE(engine.submit(std::move(r), std::make_shared<CollectingSink>()).ok());
  }
  while (engine.step()) {
  }
  EXPECT_GT(engine.metrics().num_preemptions, 0u) << "none was recomputed";
  steps = executor.steps();
}

TEST(LengthsInTheLoop, TheHiddenRowIsAskedForOnceAndPredictedFrom) {
  for (int depth : {1, 2}) {
    RowListener predictor;
    std::vector<Step> steps;
    run_with(
        predictor, depth,
        [](const View& view) {
          for (const SeqView& s : view.running) {
            EXPECT_EQ(s.predicted.output_tokens, s.first_token_time > 0 ? 50u : 5u);
          }
        },
        steps);
    std::vector<uint64_t> asked;
    for (const Step& step : steps) {
      for (const StepSlice& s : step.slices) {
        if (s.hidden_from >= s.tokens.end) continue;
        asked.push_back(raw(s.seq));
        EXPECT_TRUE(s.samples);
        EXPECT_EQ(s.tokens.end, 100u);
        EXPECT_EQ(s.hidden_from, 99u);
      }
    }
    std::sort(asked.begin(), asked.end());
    EXPECT_EQ(asked, (std::vector<uint64_t>{1, 2, 3, 4}));
    const auto with_row = [](const std::vector<float>& row) { return !row.empty(); };
    EXPECT_EQ(std::count_if(predictor.rows.begin(), predictor.rows.end(), with_row), 4);
    EXPECT_EQ(predictor.rows.size(), 8u);
    ASSERT_EQ(predictor.learnt.size(), 4u);
    for (const auto& row : predictor.learnt) EXPECT_EQ(row.at(1), 100.0f);
  }
}

TEST(LengthsInTheLoop, NoRowIsAskedForIfItIsNotRead) {
  RowListener predictor;
  predictor.reads = false;
  std::vector<Step> steps;
  run_with(
      predictor, 1, [](const View&) {}, steps);
  for (const Step& step : steps) {
    for (const StepSlice& s : step.slices) EXPECT_EQ(s.hidden_from, StepSlice::kNoHidden);
  }
  EXPECT_EQ(predictor.rows.size(), 4u);
}

// ---------------------------------------------------------------- costs

TEST(CostsInTheLoop, TheSimulatorsTruthIsFound) {
  VirtualClock clock;
  const LinearTimes truth;
  SimExecutor executor({.vocab_size = 1000, .layers = 2}, clock);
  CostBeliefs costs(CostLearner(), CostBeliefs::Learns::kAtOnce);
  CostModel seen;
  auto policy = std::make_unique<FunctionPolicy>(
      [&, inner = std::shared_ptr<Policy>(make_policy("sarathi").value())](const View& view) {
        seen = view.costs;
        return inner->plan(view);
      });
  Engine engine(options(), std::move(policy), executor, clock, nullptr, nullptr, {&costs, nullptr});
  for (const Job& j : jobs(200, 9)) {
    EXPECT_TRUE(engine.submit(request_of(j), std::make_shared<CollectingSink>()).ok());
    for (int turn = 0; turn < 6; ++turn) engine.step();
  }
  while (engine.step()) {
  }
  EXPECT_NEAR(seen.step_s * 1e6 / truth.step_us, 1, 0.02);
  EXPECT_NEAR(seen.prefill_row_s * 1e6 / truth.prefill_token_us, 1, 0.02);
  EXPECT_NEAR(seen.decode_row_s * 1e6 / truth.decode_row_us, 1, 0.02);
  EXPECT_NEAR(seen.context_s * 1e6 / truth.history_token_us, 1, 0.05);
  EXPECT_LT(engine.metrics().cost_error, 0.01);
  EXPECT_GT(engine.metrics().cost_steps, 500u);
  EXPECT_EQ(engine.metrics().cost_steps_dropped, 0u);
}

TEST(CostsInTheLoop, WorkIsWhatRowsAndLayersSay) {
  StepWork work;
  StepSlice slice;
  slice.tokens = {100, 110};
  add_work(slice, 4, work);
  EXPECT_EQ(work.prefill_rows, 10);
  EXPECT_EQ(work.prefill_pairs, 10 * 100 + 55);
  slice.kind = RowKind::kRestore;
  slice.end_layer = 1;
  add_work(slice, 4, work);
  EXPECT_EQ(work.prefill_rows, 12.5);
  EXPECT_EQ(work.prefill_pairs, 1.25 * (10 * 100 + 55));
  slice = {};
  slice.kind = RowKind::kDecode;
  slice.tokens = {40, 41};
  add_work(slice, 4, work);
  EXPECT_EQ(work.decode_rows, 1);
  EXPECT_EQ(work.decode_context, 41);
}

TEST(CostsInTheLoop, LinksAreAsTheyWereMeasured) {
  CostModel costs;
  costs.links[0][1] = {1, 1};
  costs.links[0][2] = {3e-4, 1};
  set_measured_links(LinkStats{}, costs);
  EXPECT_EQ(costs.links[0][1], (LinkCost{1, 1})) << "nothing was moved";
  LinkStats link;
  link.bytes_per_s = 4e9;
  link.latency_s = 2e-5;
  link.has_disk = true;
  link.disk_bytes_per_s = 5e8;
  set_measured_links(link, costs);
  EXPECT_EQ(costs.links[0][1], (LinkCost{2e-5, 2.5e-10}));
  EXPECT_EQ(costs.links[1][0], (LinkCost{2e-5, 2.5e-10}));
  EXPECT_EQ(costs.links[0][2], (LinkCost{3e-4, 2e-9}));
  EXPECT_EQ(costs.links[2][1].seconds_per_byte, 2e-9);
}

}  // namespace
}  // namespace kvasir::test
