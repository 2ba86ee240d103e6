// Whole forward passes of every architecture, against the reference decoder of
// the GPU numerics.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "exec/gpu/forward_pass.h"
#include "exec/gpu_reference_decoder.h"
#include "ops/gpu/leaf_work.h"
#include "simt/kernels.h"
#include "support/tiny_llama.h"

namespace kvasir::simt {
namespace {

constexpr uint32_t kBlockTokens = 16;
constexpr uint32_t kLayersPerGroup = 2;
#if defined(KVASIR_ON_DEVICE)
constexpr int kPrompt = 300;
#else
constexpr int kPrompt = 21;
#endif
constexpr int kDecoded = 3;
constexpr int kMostRows = 8;
constexpr uint32_t kMostPositions = 512;

class MachineQueue final : public KernelQueue {
 public:
  void launch(const ops::gpu::EmbedArgs& args) override { run(args, ++seed_); }
  void launch(const ops::gpu::NormRowsArgs& args) override { run(args, ++seed_); }
  void launch(const ops::gpu::GemmArgs& args) override { run(args, ++seed_); }
  void launch(const ops::gpu::FinishQkvArgs& args) override { run(args, ++seed_); }
  void launch(const ops::gpu::LeafArgs& args) override { run(args, ++seed_); }
  void launch(const ops::gpu::MergeArgs& args) override { run(args, ++seed_); }
  void launch(const ops::gpu::ActivateArgs& args) override { run(args, ++seed_); }
  void launch(const ops::gpu::AddBranchArgs& args) override { run(args, ++seed_); }
  void launch(const ops::gpu::DrawArgs& args) override { run(args, ++seed_); }

 private:
  uint64_t seed_ = 0;
};

// Some sequences that run side by side.
class Batch {
 public:
  Batch(const ModelFile& file, size_t sequences) : tables_(sequences), done_(sequences) {
    model_ = GpuModel::make(file, kMostPositions, [&](const void* data, size_t bytes) -> const void* {
      uploaded_.emplace_back(bytes);
      std::memcpy(uploaded_.back().data(), data, bytes);
      return uploaded_.back().data();
    });
    const ModelSpec& spec = model_.spec;
    const auto plane = static_cast<uint64_t>(2 * spec.kv_dim()) * kBlockTokens;
    const uint64_t cell = 2 * plane * kLayersPerGroup;
    groups_ = (static_cast<uint32_t>(spec.layers) + kLayersPerGroup - 1) / kLayersPerGroup;
    uint64_t at = 0;
    for (uint32_t b = 0; b < kMostPositions / kBlockTokens; ++b) {
      for (auto& table : tables_) {
        for (uint32_t g = 0; g < groups_; ++g, at += cell) table.push_back({at, at + plane});
      }
    }
    memory_.assign(at, std::byte{0xFF});
  }

  // The next tokens of each sequence as rows of one step. Returns the logits of
  // all, and the drawn tokens.
  std::vector<float> run_step(const std::vector<std::vector<Token>>& tokens, std::vector<int32_t>& drawn) {
    const ModelSpec& spec = model_.spec;
    std::vector<ops::gpu::SlicePlace> slices;
    std::vector<ops::gpu::RowPlace> rows;
    for (uint32_t s = 0; s < tokens.size(); ++s) {
      slices.push_back({tables_[s].data(), 0, 0, 0, 0});
      for (const Token token : tokens[s]) {
        const uint32_t position = done_[s]++;
        rows.push_back({token, position, s, model_.query_factor(position), 0});
      }
    }
    const auto count = static_cast<int32_t>(rows.size());
    GpuStep step;
    step.count = count;
    step.rows = rows.data();
    step.kv.memory = memory_.data();
    step.kv.slices = slices.data();
    step.kv.groups = groups_;
    step.kv.block_tokens = kBlockTokens;
    step.layers_per_group = kLayersPerGroup;
    std::vector<std::vector<ops::gpu::RowPlace>> rows_of_window;
    std::vector<ops::gpu::LeafPlan> plans;
    plan(rows, step, rows_of_window, plans);
    std::vector<int32_t> logit_rows(rows.size());
    for (int32_t r = 0; r < count; ++r) logit_rows[static_cast<size_t>(r)] = r;
    std::vector<ops::gpu::DrawPlace> draws(rows.size());
    for (ops::gpu::DrawPlace& d : draws) d.top_p = 1;
    drawn.assign(rows.size(), -1);

    int64_t records = 0;
    for (const ops::gpu::LeafPlan& p : plans) records = std::max(records, p.records);
    const GpuScratch::Sizes sizes = GpuScratch::sizes(spec, count, records, count);
    std::vector<float> x = unwritten(sizes.x), product = unwritten(sizes.product),
                       partials = unwritten(sizes.partials), logits = unwritten(sizes.logits);
    std::vector<uint16_t> operand = unwritten_bf16(sizes.operand), q = unwritten_bf16(sizes.q);
    const GpuScratch scratch = {x.data(), operand.data(),  product.data(),
                                q.data(), partials.data(), logits.data()};
    queue_layers(model_, step, scratch, queue_, nullptr);
    queue_logits(model_, {logit_rows.data(), count, draws.data(), drawn.data()}, scratch, queue_);
    return logits;
  }

 private:
  void plan(const std::vector<ops::gpu::RowPlace>& rows, GpuStep& step,
            std::vector<std::vector<ops::gpu::RowPlace>>& rows_of_window,
            std::vector<ops::gpu::LeafPlan>& plans) {
    std::vector<int32_t> windows;
    for (const LayerSpec& layer : model_.spec.layer_specs) {
      if (std::find(windows.begin(), windows.end(), layer.window) == windows.end())
        windows.push_back(layer.window);
    }
    for (const int32_t window : windows) {
      rows_of_window.push_back(rows);
      plans.push_back(ops::gpu::plan_leaves(rows_of_window.back(), window, kMostRows));
    }
    for (size_t w = 0; w < windows.size(); ++w) {
      step.attention.push_back({windows[w], step.count, 0, step.count, rows_of_window[w].data(),
                                plans[w].work.data(), static_cast<int32_t>(plans[w].work.size()), kMostRows});
    }
  }

  GpuModel model_;
  std::vector<std::vector<std::byte>> uploaded_;
  std::vector<std::vector<ops::gpu::KvPlace>> tables_;
  std::vector<uint32_t> done_;
  std::vector<std::byte> memory_;
  uint32_t groups_ = 0;
  MachineQueue queue_;
};

// What differs first from the reference decoder, over a prompt and some decoded tokens, or nothing.
std::string wrong_in(const test::TinyLlamaShape& shape, uint64_t seed, int prompt, int steps) {
  auto opened =
      ModelFile::from_bytes(test::tiny_llama_builder(shape, ops::WeightType::kBf16, seed).build(), "tiny");
  if (!opened.ok()) return opened.status().message();
  const std::unique_ptr<ModelFile> file = std::move(opened).value();
  const auto vocabulary = static_cast<size_t>(file->spec().vocab_size);
  Batch batch(*file, 2);
  std::vector<std::unique_ptr<test::GpuReferenceDecoder>> references;
  for (int s = 0; s < 2; ++s) {
    references.push_back(std::make_unique<test::GpuReferenceDecoder>(*file, kMostPositions,
                                                                     test::GpuReferenceDecoder::By::kTwin));
  }
  Random random(seed);
  const auto any_token = [&] { return static_cast<Token>(random.below(vocabulary)); };
  for (int step = 0; step < steps; ++step) {
    // The second sequence decodes from the beginning.
    std::vector<std::vector<Token>> tokens(2);
    for (int i = 0; i < (step == 0 ? prompt : 1); ++i) tokens[0].push_back(any_token());
    tokens[1].push_back(any_token());
    std::vector<int32_t> drawn, want_drawn;
    const std::vector<float> got = batch.run_step(tokens, drawn);
    std::vector<float> want = references[0]->run(tokens[0]);
    const std::vector<float> other = references[1]->run(tokens[1]);
    want.insert(want.end(), other.begin(), other.end());
    const std::string found = difference(got, want);
    if (!found.empty()) return "step " + std::to_string(step) + ": " + found;
    for (size_t r = 0; r * vocabulary < want.size(); ++r) {
      want_drawn.push_back(ops::reference::draw(want.data() + r * vocabulary, file->spec().vocab_size, {}));
    }
    if (drawn != want_drawn) return "step " + std::to_string(step) + ": other tokens";
  }
  return "";
}

TEST(ForwardPass, EveryArchitectureEqualsTheReferenceDecoder) {
  uint64_t seed = 0;
  for (const test::TinyLlamaShape& shape : test::tiny_architectures()) {
    EXPECT_EQ(wrong_in(shape, ++seed, kPrompt, 1 + kDecoded), "") << shape.architecture;
  }
}

// The smallest model that there is, for a prompt of two leaves.
test::TinyLlamaShape smallest(int32_t window) {
  test::TinyLlamaShape shape;
  shape.layers = 1;
  shape.dim = shape.ffn = 32;
  shape.heads = 2;
  shape.kv_heads = 1;
  shape.head_dim = 16;
  shape.vocab = 260;
  shape.window = window;
  return shape;
}
constexpr int kTwoLeaves = 270;

TEST(ForwardPass, PromptsOfTwoLeaves) {
  EXPECT_EQ(wrong_in(smallest(0), 1, kTwoLeaves, 2), "");
}

TEST(ForwardPass, AWindowShorterThanThePrompt) {
  EXPECT_EQ(wrong_in(smallest(200), 1, kTwoLeaves, 2), "");
}

#if !defined(KVASIR_ON_DEVICE)
TEST(ForwardPass, AFaultInOneInstructionIsFound) {
  const ScopedMachine other({.half_steps = true});
  EXPECT_NE(wrong_in(test::tiny_mha(), 1, kPrompt, 1), "");
}

TEST(ForwardPass, AWindowOfAPositionTooManyIsFound) {
  const ScopedMachine other({.fault = ops::gpu::Fault::kWindowOffByOne});
  EXPECT_NE(wrong_in(smallest(200), 1, kTwoLeaves, 1), "");
}
#endif

}  // namespace
}  // namespace kvasir::simt
