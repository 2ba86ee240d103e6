// A stream has room for so many entries. Deep models whose steps wait for transfers before each layer have
// more of them than that, and all of them behind gates that the pilot has to open.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutant.h"
#include "exec/gpu_steps.h"
#include "fakes/fake_link.h"

namespace kvasir::test {
namespace {

TinyLlamaShape deep(int32_t layers) {
  TinyLlamaShape shape = tiny_mha();
  shape.layers = layers;
  shape.dim = shape.head_dim = shape.ffn = 32;
  shape.heads = shape.kv_heads = 1;
  shape.vocab = 300;
  return shape;
}

// What came of steps of one sequence.
struct Outcome {
  std::vector<Token> tokens;
  std::vector<std::vector<float>> logits;
  std::string failure;
  uint64_t queued_early = 0;
  friend bool operator==(const Outcome& a, const Outcome& b) {
    return a.tokens == b.tokens && a.logits == b.logits && a.failure == b.failure;
  }
};

struct Way {
  FakeGpuPace pace = FakeGpuPace::kLate;
  GpuPilot pilot = GpuPilot::kThread;
  int depth = 2;
  bool transfers = true;
  bool tapped = true;  // then all logits come to the host
};

struct Deep {
  Deep(int32_t layers, const Way& way)
      : layers_(static_cast<uint32_t>(layers)),
        way_(way),
        steps_(way.pace, way.pilot, &link_, /*graphs=*/false, deep(layers)) {
    if (!way.tapped) return;
    steps_.executor_->set_tap([this](SeqId, uint32_t, std::span<const float> row) {
      outcome_.logits.emplace_back(row.begin(), row.end());
    });
  }

  // A prompt, and tokens that follow; of two steps in flight the second refers to the first's.
  Outcome run() {
    submit({0, 40});
    take();
    for (uint32_t p = 40; p < 48; p += static_cast<uint32_t>(way_.depth)) {
      submit({p, p + 1});
      if (way_.depth == 2) submit({p + 1, p + 2}, /*refers=*/true);
      for (int i = 0; i < way_.depth; ++i) take();
    }
    outcome_.failure = steps_.executor_->failure();
    outcome_.queued_early = steps_.executor_->queued_early();
    return std::move(outcome_);
  }

  // Each layer waits for what starts when the layer before it has attended, and something starts when it has
  // written.
  void submit(Interval tokens, bool refers = false) {
    Step step = steps_.step(tokens);
    if (tokens.size() == 1 && !outcome_.tokens.empty()) step.token_ids[0] = outcome_.tokens.back();
    if (refers) {
      step.token_ids.back() = -1;
      step.slices[0].last_token_by_reference = true;
    }
    for (uint32_t layer = 0; way_.transfers && layer < layers_; ++layer) {
      add_transfer(step, layer_written(layer));
      add_transfer(step, layer_attended(layer));
      if (layer + 1 < layers_) step.waits.push_back({layer + 1, 0, TransferId{transfers_}});
    }
    step.index_by_layer();
    steps_.executor_->submit(std::move(step));
  }
  void add_transfer(Step& step, StepPoint at) {
    StepTransfer& transfer = step.transfers.emplace_back();
    transfer.start_at = at;
    transfer.transfer.id = TransferId{++transfers_};
  }
  StepResult take() {
    StepResult result = steps_.executor_->wait();
    steps_.executor_->step_settled();
    outcome_.tokens.push_back(result.sampled.empty() ? -1 : result.sampled[0].token);
    return result;
  }

  const uint32_t layers_;
  const Way way_;
  VirtualClock link_clock_;
  FakeLink link_{link_clock_};
  GpuSteps steps_;
  uint64_t transfers_ = 0;
  Outcome outcome_;
};

// Two steps of 44 layers do not fit, and one of 80.
constexpr int32_t kDepths[] = {44, 80};

TEST(GpuRoom, DeepModelsWithTransfersInEachLayerHaveTheSameBits) {
  for (const int32_t layers : kDepths) {
    const Outcome wanted = Deep(layers, {.depth = 1, .transfers = false}).run();
    EXPECT_EQ(wanted.failure, "");
    ASSERT_EQ(wanted.tokens.size(), 9U);
    for (const GpuPilot pilot : {GpuPilot::kThread, GpuPilot::kWait}) {
      for (const FakeGpuPace pace : {FakeGpuPace::kEarly, FakeGpuPace::kLate, FakeGpuPace::kRandom}) {
        for (const int depth : {1, 2}) {
          const Outcome got = Deep(layers, {.pace = pace, .pilot = pilot, .depth = depth}).run();
          EXPECT_TRUE(got == wanted) << layers << " layers, " << depth << " deep: " << got.failure;
        }
      }
    }
  }
}

// Of a batch each copy may be an entry: tables and rows of logits count, too.
class GpuRoomOfCopies : public testing::Test {
 protected:
  static constexpr uint32_t kSequences = 30;

  // Its tables are new, and all its logits come to the host.
  static Step step(GpuSteps& steps) {
    Step made = steps.step({0, 1});
    made.slices[0].sampling.logprobs = 0;
    for (uint32_t s = 0; s < kSequences; ++s) {
      if (s > 0) {
        made.slices.push_back(made.slices[0]);
        made.token_ids.push_back(made.token_ids[0]);
      }
      made.slices[s].seq = SeqId{1 + s};
      made.slices[s].first_token = s;
      made.slices[s].table = steps.table(1);
    }
    made.index_by_layer();
    return made;
  }
  static void expect_all(const StepResult& result) {
    EXPECT_TRUE(result.status.ok()) << result.status.message();
    EXPECT_EQ(result.sampled.size(), kSequences);
  }
};

// At some depth a step fits behind another but for these.
TEST_F(GpuRoomOfCopies, AreCountedBehindAnotherStep) {
  uint64_t early = 0, late = 0;
  for (int32_t layers = 80; layers <= 90; ++layers) {
    SCOPED_TRACE(layers);
    GpuSteps steps(FakeGpuPace::kLate, GpuPilot::kWait, /*link=*/nullptr, /*graphs=*/false, deep(layers));
    for (int i = 0; i < 2; ++i) expect_all(steps.run(step(steps)));  // there is memory for both
    const uint64_t before = steps.executor_->queued_early();
    for (int i = 0; i < 2; ++i) steps.executor_->submit(step(steps));
    for (int i = 0; i < 2; ++i) expect_all(steps.executor_->wait());
    ++(steps.executor_->queued_early() > before ? early : late);
  }
  EXPECT_GT(early, 0U);
  EXPECT_GT(late, 0U);
}

// Behind the only gate of a long step there is room for all but these.
TEST_F(GpuRoomOfCopies, AreCountedBehindTheGateOfALongStep) {
  VirtualClock clock;
  for (uint32_t layer = 0; layer < 8; ++layer) {
    SCOPED_TRACE(layer);
    FakeLink link(clock);
    GpuSteps steps(FakeGpuPace::kLate, GpuPilot::kWait, &link, /*graphs=*/false, deep(90));
    Step made = step(steps);
    made.transfers.emplace_back().transfer.id = TransferId{1};
    made.waits.push_back({layer, 0, TransferId{1}});
    made.index_by_layer();
    expect_all(steps.run(std::move(made)));
    EXPECT_EQ(steps.executor_->queued_long(), 1U);
  }
}

// While a step is queued that is longer than a stream has room for, its pilot goes along with it.
TEST(GpuRoom, ADeviceThatIsLostWhileALongStepIsQueued) {
  for (const GpuPilot pilot : {GpuPilot::kThread, GpuPilot::kWait}) {
    for (const FakeGpuPace pace : {FakeGpuPace::kEarly, FakeGpuPace::kLate}) {
      for (const uint64_t kernels : {1U, 300U, 600U, 800U}) {
        for (const int depth : {1, 2}) {
          Deep deep(80, {.pace = pace, .pilot = pilot, .depth = depth});
          deep.submit({0, 40});
          EXPECT_TRUE(deep.take().status.ok());
          deep.steps_.gpu_.lose_after(kernels);
          deep.submit({40, 41});
          if (depth == 2) deep.submit({41, 42}, /*refers=*/true);
          for (int i = 0; i < depth; ++i) {
            const StepResult result = deep.take();
            EXPECT_EQ(result.status.code(), ErrorCode::kIo);
            EXPECT_EQ(result.status.message(), deep.steps_.executor_->failure());
          }
          deep.submit({40, 41});
          EXPECT_EQ(deep.take().status.code(), ErrorCode::kIo);
        }
      }
    }
  }
}

TEST(GpuRoom, ALateTransferDefersALongStep) {
  const Outcome wanted = Deep(80, {.depth = 1, .transfers = false}).run();
  for (const GpuPilot pilot : {GpuPilot::kThread, GpuPilot::kWait}) {
    for (const uint64_t layer : {1U, 20U, 79U}) {
      Deep deep(80, {.pilot = pilot, .depth = 1, .tapped = false});
      deep.submit({0, 40});
      EXPECT_TRUE(deep.take().deferred.empty());
      deep.link_.fail(TransferId{deep.transfers_ + 2 * layer});  // the layer waits for it
      deep.submit({40, 41});
      const StepResult deferred = deep.take();
      EXPECT_TRUE(deferred.status.ok()) << deferred.status.message();
      EXPECT_EQ(deferred.deferred, std::vector{SeqId{1}}) << layer;
      EXPECT_TRUE(deferred.sampled.empty());
      deep.outcome_.tokens = {wanted.tokens[0]};
      deep.submit({40, 41});
      const StepResult again = deep.take();
      ASSERT_EQ(again.sampled.size(), 1U);
      EXPECT_EQ(again.sampled[0].token, wanted.tokens[1]);
      EXPECT_EQ(deep.steps_.executor_->queued_long(), 3U);
    }
  }
}

// Behind the last gates of the first step there is room for it.
TEST(GpuRoom, TheSecondStepIsQueuedWhenThereIsRoom) {
  const Outcome got = Deep(44, {.pilot = GpuPilot::kWait}).run();
  EXPECT_EQ(got.queued_early, 4U);
  EXPECT_EQ(Deep(80, {.pilot = GpuPilot::kWait}).run().queued_early, 0U) << "it has no room by itself";
  EXPECT_EQ(Deep(44, {.pilot = GpuPilot::kWait, .depth = 1}).run().queued_early, 0U);
}

// Without transfers only the second step is behind a gate.
TEST(GpuRoom, ADeepStepWithoutTransfersIsNotQueuedBehindAnother) {
  for (const int32_t layers : {72, 110}) {
    const Outcome wanted = Deep(layers, {.depth = 1, .transfers = false}).run();
    const Outcome got = Deep(layers, {.pilot = GpuPilot::kWait, .transfers = false}).run();
    EXPECT_TRUE(got == wanted) << got.failure;
    EXPECT_EQ(got.queued_early, layers == 72 ? 4U : 0U);
  }
}

#if defined(KVASIR_MUTANTS)
TEST(GpuRoomMutants, AStreamThatIsOverfull) {
  const ScopedMutant active(Mutant::kStreamOverfull);
  for (const int32_t layers : kDepths) {
    for (const int depth : {1, 2}) {
      const Outcome got = Deep(layers, {.pilot = GpuPilot::kWait, .depth = depth}).run();
      const bool fits = layers == 44 && depth == 1;
      EXPECT_EQ(got.failure, fits ? "" : "the GPU failed: a stream is full behind a closed gate");
    }
  }
}
#endif

TEST(GpuRoom, AStreamThatIsFullBehindAClosedGateFails) {
  FakeGpu gpu(FakeGpuPace::kLate);
  auto* const word = reinterpret_cast<uint32_t*>(gpu.allocate_pinned(sizeof(uint32_t)).value());
  *word = 0;
  const auto stream = gpu.make_stream().value();
  for (size_t i = 0; i < 3 * kMostBehindAGate; ++i) stream->launch(ops::gpu::DrawArgs{});
  stream->gate(word, 1);
  for (size_t i = 1; i < kMostBehindAGate; ++i) stream->launch(ops::gpu::DrawArgs{});
  gpu.open_gate(word, 1);
  ASSERT_TRUE(stream->wait().ok());
  stream->gate(word, 2);
  for (size_t i = 0; i < kMostBehindAGate; ++i) stream->launch(ops::gpu::DrawArgs{});
  EXPECT_EQ(stream->wait().message(), "the GPU failed: a stream is full behind a closed gate");
}

}  // namespace
}  // namespace kvasir::test
