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

class MachineQueue final : public EachKernel<MachineQueue> {
 public:
  template <typename Args>
  void add(const Args& args) {
    run(args, ++seed_);
  }

 private:
  uint64_t seed_ = 0;
};

// Some sequences that run side by side.
class Batch {
 public:
  // keeps_x: X is all that is left of rows, and K and V of each history are made of it in every layer.
  Batch(const ModelFile& file, size_t sequences, bool keeps_x = false)
      : tables_(sequences), done_(sequences), keeps_x_(keeps_x) {
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
    kv_bytes_ = at;
    x_piece_ = gpu_x_bytes(spec) * kBlockTokens;
    const uint64_t cells = uint64_t{kMostPositions / kBlockTokens} * groups_ * sequences;
    memory_.assign(at + (keeps_x ? cells * kLayersPerGroup * x_piece_ : 0), std::byte{0xFF});
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
    std::vector<ops::gpu::XRun> runs;
    if (keeps_x_) plan_x(tokens, runs, step);
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
    const GpuScratch::Sizes sizes = GpuScratch::sizes(spec, std::max(count, most_projected_), records, count);
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
  // The cell of a block in a group.
  uint64_t x_at(size_t seq, uint32_t block, uint32_t group) const {
    const uint64_t cell = (uint64_t{block} * tables_.size() + seq) * groups_ + group;
    return kv_bytes_ + cell * kLayersPerGroup * x_piece_;
  }
  // Two products a layer, so that one block is in both.
  void plan_x(const std::vector<std::vector<Token>>& tokens, std::vector<ops::gpu::XRun>& runs,
              GpuStep& step) {
    std::fill_n(memory_.begin(), kv_bytes_, std::byte{0xFF});
    runs.reserve(1000);
    for (uint32_t group = 0; group < groups_; ++group) {
      const size_t first = runs.size();
      int32_t row = 0;
      for (uint32_t s = 0; s < tokens.size(); ++s) {
        for (uint32_t p = done_[s] - static_cast<uint32_t>(tokens[s].size()); p < done_[s]; ++p) {
          const uint32_t block = p / kBlockTokens;
          runs.push_back({x_at(s, block, group), {}, p, 1, row++, s});
        }
      }
      step.x_writes.push_back({runs.data() + first, static_cast<int32_t>(runs.size() - first)});
    }
    const ModelSpec& spec = model_.spec;
    const auto plane = static_cast<uint64_t>(2 * spec.kv_dim()) * kBlockTokens;
    for (uint32_t layer = 0; layer < static_cast<uint32_t>(spec.layers); ++layer) {
      const uint32_t group = layer / kLayersPerGroup, in_group = layer % kLayersPerGroup;
      GpuProjection pass = {layer, runs.data() + runs.size(), 0, 0};
      for (uint32_t s = 0; s < tokens.size(); ++s) {
        const uint32_t history = done_[s] - static_cast<uint32_t>(tokens[s].size());
        for (uint32_t p = 0; p < history;) {
          const uint32_t block = p / kBlockTokens;
          const uint32_t end = std::min({history, (block + 1) * kBlockTokens, p < 5 ? 5U : UINT32_MAX});
          const ops::gpu::KvPlace& frame = tables_[s][block * groups_ + group];
          runs.push_back({x_at(s, block, group) + in_group * x_piece_,
                          {frame.k + in_group * 2 * plane, frame.v + in_group * 2 * plane},
                          p,
                          end - p,
                          pass.rows,
                          s});
          ++pass.count;
          pass.rows += static_cast<int32_t>(end - p);
          most_projected_ = std::max(most_projected_, pass.rows);
          if (p == 0) {
            step.projections.push_back(pass);
            pass = {layer, runs.data() + runs.size(), 0, 0};
          }
          p = end;
        }
      }
      if (pass.count > 0) step.projections.push_back(pass);
    }
  }

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
  const bool keeps_x_;
  uint64_t kv_bytes_ = 0, x_piece_ = 0;
  int32_t most_projected_ = 0;
  MachineQueue queue_;
};

// What differs first from the reference decoder, over a prompt and some decoded tokens, or nothing.
std::string wrong_in(const test::TinyLlamaShape& shape, uint64_t seed, int prompt, int steps,
                     bool keeps_x = false) {
  auto opened =
      ModelFile::from_bytes(test::tiny_llama_builder(shape, ops::WeightType::kBf16, seed).build(), "tiny");
  if (!opened.ok()) return opened.status().message();
  const std::unique_ptr<ModelFile> file = std::move(opened).value();
  const auto vocabulary = static_cast<size_t>(file->spec().vocab_size);
  Batch batch(*file, 2, keeps_x);
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

// Norms of heads and of rows of K, a bias, K that begins in a tile with some of Q, and rows of X that are not
// whole pieces.
TEST(ForwardPass, HistoriesOfWhichOnlyXIsKept) {
  std::vector<test::TinyLlamaShape> shapes = {test::tiny_mha()};
  for (const test::TinyLlamaShape& shape : test::tiny_architectures()) {
    if (shape.architecture == "qwen3" || shape.architecture == "olmo2" || shape.architecture == "opt") {
      shapes.push_back(shape);
    }
  }
  test::TinyLlamaShape odd;
  odd.dim = 93;
  odd.heads = odd.kv_heads = 5;
  odd.head_dim = 16;
  shapes.push_back(odd);
  uint64_t seed = 40;
  for (const test::TinyLlamaShape& shape : shapes) {
    EXPECT_EQ(wrong_in(shape, ++seed, kPrompt, 3, /*keeps_x=*/true), "") << shape.architecture << shape.dim;
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
