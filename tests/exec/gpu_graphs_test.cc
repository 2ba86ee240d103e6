// Which steps the executor runs as graphs, and what becomes of the graphs.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "base/mutant.h"
#include "exec/gpu_steps.h"
#include "fakes/fake_link.h"

namespace kvasir::test {
namespace {

// Each result is waited for before the next step.
std::vector<Token> tokens_of(GpuSteps& steps, const std::vector<Interval>& pieces) {
  std::vector<Token> tokens;
  for (const Interval piece : pieces) {
    const StepResult result = steps.run(steps.step(piece));
    EXPECT_TRUE(result.status.ok()) << result.status.message();
    tokens.push_back(result.sampled.at(0).token);
  }
  return tokens;
}

Step referring(Step step) {
  step.token_ids.back() = -1;
  step.slices[0].last_token_by_reference = true;
  return step;
}

// Of a step and the one that is submitted before it has ended.
std::array<Token, 2> tokens_of_two(GpuSteps& steps, uint32_t position) {
  steps.executor_->submit(steps.step({position, position + 1}));
  steps.executor_->submit(referring(steps.step({position + 1, position + 2})));
  std::array<Token, 2> tokens{};
  for (Token& token : tokens) {
    const StepResult result = steps.executor_->wait();
    EXPECT_TRUE(result.status.ok()) << result.status.message();
    token = result.sampled.at(0).token;
  }
  return tokens;
}

// Steps of 5, 40 and 65 rows, and of one, in the two flights in turn.
const std::vector<Interval> kPieces = {{0, 5},     {5, 45},    {45, 110},  {110, 111},
                                       {111, 112}, {112, 113}, {113, 153}, {153, 154}};

TEST(GpuGraphs, EachFlightHasOneForEachProduct) {
  for (const FakeGpuPace pace : {FakeGpuPace::kEarly, FakeGpuPace::kLate, FakeGpuPace::kRandom}) {
    GpuSteps plain(pace), steps(pace, GpuPilot::kThread, nullptr, /*graphs=*/true);
    EXPECT_EQ(tokens_of(plain, kPieces), tokens_of(steps, kPieces));
    EXPECT_EQ(plain.executor_->graphs_queued(), 0U);
    EXPECT_EQ(steps.executor_->graphs_queued(), kPieces.size() - 1) << "all but that of 65 rows";
    // The first flight: up to 8 rows, up to 64. The second: up to 64, up to 8.
    EXPECT_EQ(steps.executor_->graphs_made(), 4U);
    EXPECT_EQ(steps.executor_->graphs_refused(), 0U);
  }
}

// Rows of one prompt attend by another kernel than as many sequences that decode: here from 9 rows on, where
// heads have 64 values and two share K and V. Each has a graph of its own, so that none is refused.
class GpuGraphsOfKernels : public testing::Test {
 protected:
  GpuGraphsOfKernels() {
    TinyLlamaShape shape = tiny_gqa();
    shape.head_dim = 64;
    plain_ = std::make_unique<GpuSteps>(FakeGpuPace::kRandom, GpuPilot::kThread, nullptr, false, shape);
    steps_ = std::make_unique<GpuSteps>(FakeGpuPace::kRandom, GpuPilot::kThread, nullptr, true, shape);
  }
  // A step with so many sequences of one row each, whose only token is their own.
  static Step decodes(GpuSteps& steps, uint32_t sequences, uint32_t position) {
    Step all = steps.step({position, position + 1});
    for (uint32_t s = 1; s < sequences; ++s) {
      StepSlice slice = all.slices[0];
      slice.seq = SeqId{1 + s};
      slice.first_token = s;
      all.token_ids.push_back(all.token_ids[0]);
      all.slices.push_back(std::move(slice));
    }
    all.index_by_layer();
    return all;
  }
  void run_mixed_traffic() {
    for (GpuSteps* steps : {plain_.get(), steps_.get()}) {
      std::vector<Token>& tokens = tokens_.emplace_back();
      for (uint32_t round = 0; round < 4; ++round) {
        // In either flight a prompt's rows, then decodes.
        for (uint32_t piece = 0; piece < 2; ++piece) {
          const uint32_t begin = 30 * (2 * round + piece);
          tokens.push_back(steps->run(steps->step({begin, begin + 30})).sampled.at(0).token);
        }
        for (uint32_t i = 0; i < 2; ++i) {
          for (const SampledToken& sampled : steps->run(decodes(*steps, 30, 60 * (round + 1) + i)).sampled) {
            tokens.push_back(sampled.token);
          }
        }
      }
    }
  }

  std::unique_ptr<GpuSteps> plain_, steps_;
  std::vector<std::vector<Token>> tokens_;
};

TEST_F(GpuGraphsOfKernels, MixedTrafficIsNotRefused) {
  run_mixed_traffic();
  EXPECT_EQ(tokens_[0], tokens_[1]);
  EXPECT_EQ(tokens_[0].size(), 4U * (2 + 2 * 30));
  EXPECT_EQ(steps_->executor_->graphs_queued(), 16U);
  EXPECT_EQ(steps_->executor_->graphs_made(), 4U) << "two in each flight";
  EXPECT_EQ(steps_->executor_->graphs_refused(), 0U);
}

#if defined(KVASIR_MUTANTS)
using GpuGraphsMutants = GpuGraphsOfKernels;
TEST_F(GpuGraphsMutants, AGraphThatStepsOfOtherKernelsShare) {
  const ScopedMutant active(Mutant::kGraphOfOthers);
  run_mixed_traffic();
  EXPECT_EQ(tokens_[0], tokens_[1]);
  EXPECT_GT(steps_->executor_->graphs_refused(), 2U) << "the fault was not noticed";
}
#endif

TEST(GpuGraphs, AStepWhoseGraphIsNotThereWaitsForTheEndOfTheFirst) {
  GpuSteps plain(FakeGpuPace::kLate, GpuPilot::kWait);
  GpuSteps steps(FakeGpuPace::kLate, GpuPilot::kWait, nullptr, /*graphs=*/true);
  for (GpuSteps* each : {&plain, &steps}) tokens_of(*each, {{0, 40}, {40, 80}});  // there is memory
  EXPECT_EQ(tokens_of_two(plain, 80), tokens_of_two(steps, 80));
  EXPECT_EQ(plain.executor_->queued_early(), 1U);
  EXPECT_EQ(steps.executor_->queued_early(), 0U);
  EXPECT_EQ(tokens_of_two(plain, 82), tokens_of_two(steps, 82));
  EXPECT_EQ(plain.executor_->queued_early(), 2U);
  EXPECT_EQ(steps.executor_->queued_early(), 1U);
  EXPECT_EQ(steps.executor_->graphs_made(), 4U);
  EXPECT_EQ(steps.executor_->graphs_queued(), 6U);
}

TEST(GpuGraphs, KernelsThatAGraphDoesNotTakeRunByThemselves) {
  GpuSteps plain(FakeGpuPace::kLate, GpuPilot::kWait);
  GpuSteps steps(FakeGpuPace::kLate, GpuPilot::kWait, nullptr, /*graphs=*/true);
  const std::vector<Interval> begin = {{0, 8}, {8, 16}};
  EXPECT_EQ(tokens_of(plain, begin), tokens_of(steps, begin));
  steps.gpu_.refuse_graphs(true);
  EXPECT_EQ(tokens_of_two(plain, 16), tokens_of_two(steps, 16));
  EXPECT_EQ(steps.executor_->graphs_refused(), 2U);
  EXPECT_EQ(steps.executor_->graphs_queued(), 2U);
  steps.gpu_.refuse_graphs(false);
  EXPECT_EQ(tokens_of_two(plain, 18), tokens_of_two(steps, 18));
  EXPECT_EQ(steps.executor_->graphs_made(), 4U) << "again";
  EXPECT_EQ(steps.executor_->graphs_queued(), 4U);
}

TEST(GpuGraphs, WithoutMemoryForOneKernelsRunByThemselvesFromThenOn) {
  GpuSteps plain(FakeGpuPace::kLate, GpuPilot::kWait);
  GpuSteps steps(FakeGpuPace::kLate, GpuPilot::kWait, nullptr, /*graphs=*/true);
  steps.gpu_.make_no_graphs();
  const std::vector<Interval> begin = {{0, 8}, {8, 16}};
  EXPECT_EQ(tokens_of(plain, begin), tokens_of(steps, begin));
  EXPECT_EQ(tokens_of_two(plain, 16), tokens_of_two(steps, 16));
  EXPECT_EQ(steps.executor_->graphs_refused(), 1U);
  EXPECT_EQ(steps.executor_->graphs_queued(), 0U);
  EXPECT_EQ(steps.executor_->queued_early(), plain.executor_->queued_early());
}

// A transfer at the beginning or the end is no matter of the layers.
TEST(GpuGraphs, LayersWithTransfersAreNone) {
  const auto graphs_of = [](const auto& change) {
    VirtualClock clock;
    FakeLink link(clock);
    GpuSteps steps(FakeGpuPace::kLate, GpuPilot::kThread, &link, /*graphs=*/true);
    Step step = steps.step({0, 5});
    change(step);
    step.index_by_layer();
    EXPECT_TRUE(steps.run(std::move(step)).status.ok());
    return steps.executor_->graphs_queued();
  };
  const auto starts_at = [](StepPoint point) {
    return [point](Step& step) {
      step.transfers.emplace_back().transfer.id = TransferId{1};
      step.transfers.back().start_at = point;
    };
  };
  EXPECT_EQ(graphs_of(starts_at(kStepBegins)), 1U);
  EXPECT_EQ(graphs_of(starts_at(layer_written(0))), 0U);
  EXPECT_EQ(graphs_of(starts_at(layer_attended(1))), 0U);
  EXPECT_EQ(graphs_of(starts_at(layer_attended(1000))), 1U);
  EXPECT_EQ(graphs_of([](Step& step) {
              step.transfers.emplace_back().transfer.id = TransferId{1};
              step.waits.push_back({1, 0, TransferId{1}});
            }),
            0U);
  EXPECT_EQ(graphs_of([](Step& step) {
              step.slices[0].samples = false;
              step.slices[0].end_layer = 1;
            }),
            0U)
      << "its rows leave after the first layer";
}

TEST(GpuGraphs, AGraphIsNotChangedWhileItIsQueued) {
  FakeGpu gpu(FakeGpuPace::kLate);
  const auto stream = gpu.make_stream().value();
  const auto graph = [&] {
    stream->begin_graph(0);
    stream->launch(ops::gpu::DrawArgs{});
    return stream->end_graph();
  };
  EXPECT_FALSE(stream->has_graph(0));
  EXPECT_TRUE(graph());
  EXPECT_TRUE(stream->has_graph(0));
  EXPECT_TRUE(stream->wait().ok());
  EXPECT_TRUE(graph());
  EXPECT_TRUE(graph());
  EXPECT_EQ(stream->wait().message(), "the GPU failed: a graph is changed while it runs");
}

}  // namespace
}  // namespace kvasir::test
