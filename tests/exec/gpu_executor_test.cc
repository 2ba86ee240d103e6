// The GPU executor without an engine: what it uploads, and what it says when something is missing.
#include "exec/gpu/gpu_executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "base/units.h"
#include "exec/gpu/product_check.h"
#include "exec/gpu_reference_decoder.h"
#include "exec/gpu_steps.h"

namespace kvasir::test {
namespace {

constexpr uint32_t kBlocks = GpuSteps::kBlocks;
constexpr uint32_t kMostPositions = GpuSteps::kMostPositions;

TEST(GpuExecutor, AStepGivesATokenAndItsTimes) {
  GpuSteps steps;
  const StepResult result = steps.run(steps.step({0, 40}));
  ASSERT_TRUE(result.status.ok()) << result.status.message();
  ASSERT_EQ(result.sampled.size(), 1U);
  EXPECT_EQ(result.sampled[0].seq, SeqId{1});
  EXPECT_GT(result.ended, result.started);
  EXPECT_EQ(result.stalled, 0);
}

TEST(GpuExecutor, RefusesMixturesOfExperts) {
  FakeGpu gpu(FakeGpuPace::kLate);
  for (const TinyLlamaShape& shape : tiny_mixtures()) {
    const auto file =
        ModelFile::from_bytes(make_tiny_llama(shape, ops::WeightType::kBf16, /*seed=*/11), "tiny.gguf")
            .value();
    const Status status = UploadedModel::make(*file, kMostPositions, gpu).status();
    EXPECT_EQ(status.code(), ErrorCode::kUnsupported) << shape.architecture;
    EXPECT_EQ(status.message(), "mixtures of experts do not run on a GPU yet; serve it with --device cpu");
  }
}

TEST(GpuExecutor, RefusesParallelBlocks) {
  FakeGpu gpu(FakeGpuPace::kLate);
  const auto file =
      ModelFile::from_bytes(make_tiny_llama(tiny_without_gpu()[0], ops::WeightType::kBf16, /*seed=*/11),
                            "tiny.gguf")
          .value();
  const Status status = UploadedModel::make(*file, kMostPositions, gpu).status();
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(status.message(),
            "models with attention and feed-forward side by side do not run on a GPU yet; serve it with "
            "--device cpu");
}

TEST(GpuExecutor, RefusesRecurrentLayers) {
  FakeGpu gpu(FakeGpuPace::kLate);
  for (const TinyLlamaShape& shape : tiny_hybrids()) {
    const auto file =
        ModelFile::from_bytes(make_tiny_llama(shape, ops::WeightType::kBf16, /*seed=*/11), "tiny.gguf")
            .value();
    const Status status = UploadedModel::make(*file, kMostPositions, gpu).status();
    EXPECT_EQ(status.code(), ErrorCode::kUnsupported) << shape.architecture;
    EXPECT_EQ(status.message(),
              "models with recurrent layers do not run on a GPU yet; serve it with --device cpu");
  }
}

TEST(GpuExecutor, RefusesHeadsOfTwoSizes) {
  FakeGpu gpu(FakeGpuPace::kLate);
  const auto file =
      ModelFile::from_bytes(make_tiny_llama(tiny_without_gpu()[1], ops::WeightType::kBf16, /*seed=*/11),
                            "tiny.gguf")
          .value();
  const Status status = UploadedModel::make(*file, kMostPositions, gpu).status();
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(
      status.message(),
      "models whose layers have heads of two sizes, or norms of V, do not run on a GPU yet; serve it with "
      "--device cpu");
}

TEST(GpuExecutor, RefusesLatentAttention) {
  FakeGpu gpu(FakeGpuPace::kLate);
  const auto file = ModelFile::from_bytes(
                        make_tiny_llama(tiny_latents()[0], ops::WeightType::kBf16, /*seed=*/11), "tiny.gguf")
                        .value();
  const Status status = UploadedModel::make(*file, kMostPositions, gpu).status();
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(status.message(),
            "models with latent attention do not run on a GPU yet; serve it with --device cpu");
}

// A prompt in pieces over two leaves, then the tokens that follow, one at a time.
TEST(GpuExecutor, LogitsAreThoseOfTheReference) {
  for (const uint32_t piece : {1U, 7U, 100U, 300U}) {
    GpuSteps steps(FakeGpuPace::kRandom);
    GpuReferenceDecoder reference(*steps.file_, kMostPositions, GpuReferenceDecoder::By::kTwin);
    std::vector<float> got;
    steps.executor_->set_tap(
        [&](SeqId, uint32_t, std::span<const float> logits) { got.assign(logits.begin(), logits.end()); });
    uint32_t end = 0;
    for (uint32_t at = 0; at < 303; at = end) {
      end = at < 300 ? std::min(300U, at + piece) : at + 1;
      const Step step = steps.step({at, end});
      const std::vector<float> all = reference.run(step.token_ids);
      const StepResult result = steps.run(step);
      ASSERT_TRUE(result.status.ok()) << result.status.message();
      ASSERT_TRUE(std::equal(
          got.begin(), got.end(), all.end() - static_cast<ptrdiff_t>(got.size()), all.end(),
          [](float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }))
          << "pieces of " << piece << ", from position " << at;
    }
  }
}

// A step of decoding alone gets the kernel for few queries.
TEST(GpuExecutor, AttentionIsToldTheRowsOfItsLargestPiece) {
  GpuSteps steps;
  StepImage image(steps.uploaded_->model());
  const auto most_rows = [&](Interval tokens) {
    image.lay_out(steps.step(tokens), steps.geometry_, nullptr);
    const std::vector<std::byte> here(image.bytes());
    int32_t most = 0;
    for (const GpuAttention& pass : image.step_at(here.data()).attention)
      most = std::max(most, pass.most_rows);
    return most;
  };
  EXPECT_EQ(most_rows({300, 301}), 1);
  EXPECT_EQ(most_rows({0, 7}), 7);
  EXPECT_EQ(most_rows({0, 300}), 64);
}

// The logits are those of one pass, and partial results take the memory of a tile.
TEST(GpuExecutor, AttentionInPassesHasTheSameBits) {
  const GpuExecutor::Steps reserved = {300, kMostPositions, /*partial_bytes=*/0};
  std::vector<float> whole, got;
  uint64_t used[2] = {};
  uint64_t record_bytes = 0, hidden_bytes = 0;
  for (const bool in_passes : {false, true}) {
    GpuSteps steps(FakeGpuPace::kRandom);
    steps.executor_->set_tap(
        [&](SeqId, uint32_t, std::span<const float> logits) { got.assign(logits.begin(), logits.end()); });
    const uint64_t before = steps.gpu_.memory()->free_bytes;
    if (in_passes) {
      ASSERT_TRUE(steps.executor_->reserve(reserved).ok());
      const uint64_t taken = before - steps.gpu_.memory()->free_bytes;
      EXPECT_GE(taken, GpuExecutor::activation_bytes(steps.uploaded_->model().spec, reserved));
      EXPECT_LE(taken, GpuExecutor::activation_bytes(steps.uploaded_->model().spec, reserved) + 64 * kKiB);
    }
    for (const Interval tokens : {Interval{0, 300}, Interval{300, 500}}) {
      const StepResult result = steps.run(steps.step(tokens));
      ASSERT_TRUE(result.status.ok()) << result.status.message();
    }
    used[in_passes ? 1 : 0] = before - steps.gpu_.memory()->free_bytes;
    if (!in_passes) whole = got;
    const ModelSpec& spec = steps.file_->spec();
    record_bytes = static_cast<uint64_t>(spec.heads * (2 + spec.head_dim)) * sizeof(float);
    hidden_bytes = 2 * reserved.rows * static_cast<uint64_t>(spec.dim) * sizeof(float);
  }
  EXPECT_EQ(got, whole);
  // The second step has 200 rows of two leaves; a tile has 64.
  EXPECT_LE(used[1] + (400 - 128) * record_bytes, used[0] + hidden_bytes + 64 * kKiB);
}

// As mean-pooled embeddings have it: every row of a step gives its hidden row.
TEST(GpuExecutor, HiddenRowsHaveTheirMemoryFromTheStart) {
  GpuSteps steps;
  constexpr uint32_t kRows = 300;
  ASSERT_TRUE(steps.executor_->reserve({kRows, kMostPositions}).ok());
  const auto taken_by = [&](uint32_t hidden_from) {
    const uint64_t before = steps.gpu_.memory()->free_bytes;
    for (int i = 0; i < 2; ++i) {
      Step step = steps.step({0, kRows});
      step.slices[0].hidden_from = hidden_from;
      const StepResult result = steps.run(std::move(step));
      EXPECT_TRUE(result.status.ok()) << result.status.message();
      EXPECT_EQ(result.hidden.size(), kRows - std::min(hidden_from, kRows));
    }
    return before - steps.gpu_.memory()->free_bytes;
  };
  taken_by(kRows);  // the images of the steps
  // The list of the rows is longer than it was; they are not allocated.
  const auto row_bytes = static_cast<uint64_t>(steps.file_->spec().dim) * sizeof(float);
  EXPECT_LT(taken_by(0), kRows * row_bytes);
}

TEST(GpuExecutor, ATableIsUploadedOnce) {
  GpuSteps steps;
  ASSERT_TRUE(steps.run(steps.step({0, 40})).status.ok());
  const auto bytes_of_step = [&](uint32_t position) {
    const uint64_t before = steps.gpu_.copied_bytes();
    EXPECT_TRUE(steps.run(steps.step({position, position + 1})).status.ok());
    return steps.gpu_.copied_bytes() - before;
  };
  const uint64_t same = bytes_of_step(40);
  EXPECT_EQ(bytes_of_step(41), same);
  steps.table_ = steps.table(kBlocks);
  EXPECT_EQ(bytes_of_step(42), same + kBlocks * sizeof(KvPlanes));
  EXPECT_EQ(steps.executor_->tables().count(), 1U) << "the former table keeps its place";
  EXPECT_EQ(bytes_of_step(43), same);
}

// The cache changes a table in place if no one else holds it: the device would then have other entries than
// the table.
TEST(GpuExecutor, ATableThatIsUploadedIsHeld) {
  GpuSteps steps;
  ASSERT_EQ(steps.table_.use_count(), 1);
  ASSERT_TRUE(steps.run(steps.step({0, 40})).status.ok());
  EXPECT_GT(steps.table_.use_count(), 1);
  const std::weak_ptr<const BlockTable> former = steps.table_;
  steps.table_ = steps.table(kBlocks);
  ASSERT_TRUE(steps.run(steps.step({40, 41})).status.ok());
  EXPECT_TRUE(former.expired()) << "what nothing else holds is not kept";
}

// The mark is that of its end.
TEST(GpuExecutor, AStepWithoutTransfersHasOneMarkAndNoGate) {
  GpuSteps steps;
  ASSERT_TRUE(steps.run(steps.step({0, 40})).status.ok());
  EXPECT_EQ(steps.gpu_.marks(), 1U);
  EXPECT_EQ(steps.gpu_.gates(), 0U);
}

// A second step refers to the token of the first, before that is known. Marks and gates may pass zero.
void expect_tokens_of_the_step_before(uint32_t count_from, GpuPilot pilot) {
  for (const FakeGpuPace pace : {FakeGpuPace::kEarly, FakeGpuPace::kLate, FakeGpuPace::kRandom}) {
    for (const bool by_sampler : {false, true}) {
      GpuSteps steps(pace, pilot);
      steps.executor_->count_from(count_from);
      std::vector<Token> wanted;
      const auto next = [&](uint32_t position, Token token) {
        Step step = steps.step({position, position + 1});
        step.token_ids[0] = token;
        step.slices[0].last_token_by_reference = token < 0;
        if (by_sampler) step.slices[0].sampling.min_p = 0.01F;
        return step;
      };
      wanted.push_back(steps.run(steps.step({0, 40})).sampled.at(0).token);
      for (uint32_t p = 40; p < 48; ++p)
        wanted.push_back(steps.run(next(p, wanted.back())).sampled.at(0).token);

      std::vector<Token> got = {wanted[0]};
      steps.executor_->submit(next(40, wanted[0]));
      for (uint32_t p = 41; p < 48; ++p) {
        steps.executor_->submit(next(p, -1));
        got.push_back(steps.executor_->wait().sampled.at(0).token);
      }
      got.push_back(steps.executor_->wait().sampled.at(0).token);
      EXPECT_EQ(got, wanted);
      if (pilot == GpuPilot::kWait) {
        EXPECT_EQ(steps.executor_->queued_early(), 7U);
      }
    }
  }
}

TEST(GpuExecutor, AStepReadsTheTokenOfTheStepBefore) {
  for (const GpuPilot pilot : {GpuPilot::kThread, GpuPilot::kWait})
    expect_tokens_of_the_step_before(0, pilot);
}
TEST(GpuExecutor, CountsOfMarksAndGatesWrap) {
  for (const uint32_t before : {3U, 12U}) {
    for (const GpuPilot pilot : {GpuPilot::kThread, GpuPilot::kWait}) {
      expect_tokens_of_the_step_before(-before, pilot);
    }
  }
}

// A device may end all that is queued before it gives memory, and the gate of the second step is opened when
// the first has ended. So a step that needs more memory than there is waits for that.
TEST(GpuExecutor, AStepThatNeedsMemoryIsNotQueuedEarly) {
  GpuSteps steps(FakeGpuPace::kLate, GpuPilot::kWait);
  Token token = steps.run(steps.step({0, 40})).sampled.at(0).token;
  const auto next = [&](uint32_t position) {
    Step step = steps.step({position, position + 1});
    step.token_ids[0] = token;
    return step;
  };
  for (uint32_t p = 40; p < 44; ++p) token = steps.run(next(p)).sampled.at(0).token;
  const auto queued_early = [&](uint32_t p, auto&& change) {
    const uint64_t before = steps.executor_->queued_early();
    steps.executor_->submit(next(p));
    Step second = next(p + 1);
    second.token_ids[0] = -1;
    second.slices[0].last_token_by_reference = true;
    change(second);
    steps.executor_->submit(std::move(second));
    for (int i = 0; i < 2; ++i) {
      const StepResult result = steps.executor_->wait();
      EXPECT_TRUE(result.status.ok()) << result.status.message();
      token = result.sampled.at(0).token;
    }
    return steps.executor_->queued_early() > before;
  };
  EXPECT_TRUE(queued_early(44, [](Step&) {}));
  const auto logits = [](Step& s) { s.slices[0].sampling.logprobs = 0; };
  EXPECT_FALSE(queued_early(46, logits)) << "pinned logits";
  EXPECT_TRUE(queued_early(48, logits));
  const auto hidden = [](Step& s) { s.slices[0].hidden_from = s.slices[0].tokens.begin; };
  EXPECT_FALSE(queued_early(50, hidden)) << "hidden rows";
  EXPECT_TRUE(queued_early(52, hidden));
  const auto tables = [&](Step& s) { s.slices[0].table = steps.table(100'000); };
  EXPECT_FALSE(queued_early(54, tables)) << "a table that no chunk has room for, and pinned memory for it";
  EXPECT_TRUE(queued_early(56, tables));
}

// Whichever allocation fails: the step says so, and the next one, for which there is memory, runs.
TEST(GpuExecutor, AStepWithoutMemoryFails) {
  const Token wanted = [] {
    GpuSteps steps;
    return steps.run(steps.step({0, 40})).sampled.at(0).token;
  }();
  uint64_t failed = 0;
  for (uint64_t allowed = 0;; ++allowed) {
    GpuSteps steps;
    steps.gpu_.allow_allocations(allowed);
    const StepResult result = steps.run(steps.step({0, 40}));
    if (result.status.ok()) break;
    ++failed;
    EXPECT_EQ(result.status.code(), ErrorCode::kExhausted) << result.status.message();
    EXPECT_TRUE(result.sampled.empty());
    steps.gpu_.allow_allocations(UINT64_MAX);
    const StepResult again = steps.run(steps.step({0, 40}));
    ASSERT_TRUE(again.status.ok()) << again.status.message();
    EXPECT_EQ(again.sampled.at(0).token, wanted);
  }
  EXPECT_GT(failed, 8U);
}

// An error of the device stays: each further step fails with it.
TEST(GpuExecutor, AnErrorOfTheGpuFailsEachFurtherStep) {
  GpuSteps steps;
  const auto good = steps.table_;
  steps.gpu_.allow_allocations(0);
  EXPECT_FALSE(steps.run(steps.step({0, 40})).status.ok());
  EXPECT_EQ(steps.executor_->failure(), "") << "for want of memory one step fails, not the device";
  steps.gpu_.allow_allocations(UINT64_MAX);
  ASSERT_TRUE(steps.run(steps.step({0, 40})).status.ok());
  EXPECT_EQ(steps.executor_->failure(), "");
  steps.table_ = std::make_shared<const BlockTable>(kBlocks);  // of absent frames
  const StepResult result = steps.run(steps.step({0, 40}));
  EXPECT_EQ(result.status.code(), ErrorCode::kIo);
  EXPECT_NE(result.status.message().find("the GPU failed"), std::string::npos) << result.status.message();
  steps.table_ = good;
  EXPECT_EQ(steps.run(steps.step({0, 40})).status.code(), ErrorCode::kIo);
  EXPECT_EQ(steps.executor_->failure(), result.status.message());
}

TEST(GpuExecutor, LogprobsDoNotChangeTheToken) {
  GpuSteps steps;
  const StepResult plain = steps.run(steps.step({0, 40}));
  Step asked = steps.step({0, 40});
  asked.slices[0].sampling.logprobs = 2;
  const StepResult result = steps.run(std::move(asked));
  EXPECT_EQ(result.sampled.at(0).token, plain.sampled.at(0).token);
  EXPECT_LT(result.sampled.at(0).logprob, 0);
  EXPECT_EQ(result.sampled.at(0).top.size(), 2U);
}

TEST(GpuExecutor, WhatDoesNotRunIsRefused) {
  GpuSteps steps;
  CacheGeometry with_x = steps.geometry_;
  with_x.x_bytes_per_token_layer = 128;
  const auto x =
      GpuExecutor::make(steps.gpu_, steps.uploaded_->model(), with_x, steps.memory_, steps.clock_, nullptr);
  EXPECT_EQ(x.status().code(), ErrorCode::kUnsupported) << "X of 128 values is 256 bytes, not 128";
  CacheGeometry small = steps.geometry_;
  small.kv_plane_bytes_per_token_layer /= 2;
  const auto kv =
      GpuExecutor::make(steps.gpu_, steps.uploaded_->model(), small, steps.memory_, steps.clock_, nullptr);
  EXPECT_NE(kv.status().message().find("--kv-cache-dtype bf16"), std::string::npos);
}

TEST(ProductCheck, AGpuWithOtherBitsIsRefused) {
  for (const FakeGpuPace pace : {FakeGpuPace::kEarly, FakeGpuPace::kLate}) {
    FakeGpu gpu(pace);
    const Status good = check_products(gpu);
    EXPECT_TRUE(good.ok()) << good.message();
    gpu.spoil_products();
    const Status wrong = check_products(gpu);
    EXPECT_EQ(wrong.code(), ErrorCode::kUnsupported);
    EXPECT_NE(wrong.message().find("1 of 512 outputs"), std::string::npos) << wrong.message();
  }
}

// Whatever the number of rows from which on products are wrong, and whichever tile is.
TEST(ProductCheck, EachKernelIsCompared) {
  const std::vector<Gpu::ProductCase> cases = FakeGpu(FakeGpuPace::kLate).product_cases();
  int32_t rows = 0;
  for (const Gpu::ProductCase& product : cases) {
    if (rows == product.rows) continue;  // the first of them is told
    rows = product.rows;
    FakeGpu of_rows(FakeGpuPace::kLate), of_tile(FakeGpuPace::kLate);
    of_rows.spoil_products(product.rows);
    of_tile.spoil_tile(product.tile);
    const std::string said = "products of " + std::to_string(product.rows) + " rows on the GPU fake GPU by " +
                             product.kernel + " have";
    for (FakeGpu* gpu : {&of_rows, &of_tile}) {
      const Status wrong = check_products(*gpu);
      EXPECT_EQ(wrong.code(), ErrorCode::kUnsupported);
      EXPECT_NE(wrong.message().find(said), std::string::npos) << wrong.message();
    }
  }
}

// Where blocks have more slices than one at a time, too: of these the last output is wrong.
TEST(ProductCheck, ManySlicesAreCompared) {
  FakeGpu gpu(FakeGpuPace::kLate);
  gpu.spoil_features(448);
  const Status wrong = check_products(gpu);
  EXPECT_NE(wrong.message().find("by gemm of 32 rows in more slices have other bits"), std::string::npos)
      << wrong.message();
  EXPECT_NE(wrong.message().find("1 of 12992 outputs"), std::string::npos) << wrong.message();
}

TEST(FakeGpuDeathTest, TheHostFaultsWhereItFollowsADeviceAddress) {
  FakeGpu gpu(FakeGpuPace::kEarly);
  std::byte* const memory = gpu.allocate(16).value();
  EXPECT_DEATH(*const_cast<volatile std::byte*>(memory) = std::byte{1}, "");
}

TEST(FakeGpu, ACopyReadsItsSourceWhenItRuns) {
  FakeGpu gpu(FakeGpuPace::kLate);
  auto* const pinned = reinterpret_cast<uint32_t*>(gpu.allocate_pinned(8).value());
  const std::byte* const device = gpu.allocate(4).value();
  const auto stream = gpu.make_stream().value();
  pinned[0] = 1;
  const GpuCopy copies[] = {{const_cast<std::byte*>(device), pinned, 4}};
  const GpuCopy back[] = {{pinned + 1, device, 4}};
  stream->copy(copies);
  stream->copy(back);
  pinned[0] = 2;
  ASSERT_TRUE(stream->wait().ok());
  EXPECT_EQ(pinned[1], 2U);
}

}  // namespace
}  // namespace kvasir::test
