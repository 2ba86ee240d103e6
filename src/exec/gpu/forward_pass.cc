#include "exec/gpu/forward_pass.h"

#include <algorithm>

#include "base/check.h"
#include "ops/gpu/layouts.h"
#include "ops/gpu/reference.h"

namespace kvasir {
namespace {

using namespace ops::gpu;

Activate kind_of(const ModelSpec& spec) {
  if (!spec.gated) return Activate::kRelu;
  return spec.activation == Activation::kSilu ? Activate::kSilu : Activate::kGelu;
}

ops::Cap cap_of(const ops::reference::Cap& cap) {
  return {cap.limit, cap.factor};
}

class Pass {
 public:
  Pass(const GpuModel& model, const GpuStep& step, const GpuScratch& scratch, KernelQueue& queue)
      : model_(model), spec_(model.spec), step_(step), scratch_(scratch), queue_(queue) {}

  void run() {
    embed();
    for (size_t layer = 0; layer < model_.layers.size(); ++layer) {
      const GpuLayer& weights = model_.layers[layer];
      normalise(weights.attn_norm, nullptr, step_.count);
      multiply(weights.qkv, spec_.q_dim() + 2 * spec_.kv_dim(), spec_.dim, step_.count, scratch_.product,
               false);
      attend(layer);
      add_branch(weights.attn_output, spec_.q_dim(), weights.attn_branch);
      normalise(weights.ffn_norm, nullptr, step_.count);
      multiply(weights.ffn_in, spec_.ffn_inputs(), spec_.dim, step_.count, scratch_.product, false);
      activate(weights);
      add_branch(weights.ffn_down, spec_.ffn_dim, weights.ffn_branch);
    }
    if (step_.logit_count > 0) draw();
  }

 private:
  void embed() {
    EmbedArgs args = {};
    args.rows = step_.attention[0].rows;
    args.earlier = step_.earlier;
    args.table = model_.embedding;
    args.positions = model_.positions;
    args.position_offset = spec_.position_offset;
    args.scale = spec_.embedding_scale;
    args.x = scratch_.x;
    args.count = step_.count;
    args.dim = spec_.dim;
    queue_.launch(args);
  }

  void normalise(const NormArgs& norm, const int32_t* source, int32_t count) {
    NormRowsArgs args = {};
    args.x = scratch_.x;
    args.x_stride = spec_.dim;
    args.source = source;
    args.norm = norm;
    args.count = count;
    args.n = spec_.dim;
    args.image = scratch_.operand;
    queue_.launch(args);
  }

  void multiply(const uint16_t* weights, int32_t n, int32_t k, int32_t rows, float* out, bool accumulate) {
    GemmArgs args = {};
    args.weights = weights;
    args.x = scratch_.operand;
    args.out = out;
    args.out_stride = n;
    args.rows = rows;
    args.n = n;
    args.k = k;
    args.accumulate = accumulate ? 1 : 0;
    queue_.launch(args);
  }

  const GpuAttention& attention_of(size_t layer) const {
    const int32_t window = spec_.layer_specs[layer].window;
    const auto found = std::find_if(step_.attention.begin(), step_.attention.end(),
                                    [&](const GpuAttention& a) { return a.window == window; });
    KV_CHECK(found != step_.attention.end(), "no plan for the window {}", window);
    return *found;
  }

  KvLayer kv_of(size_t layer) const {
    KvLayer kv = step_.kv;
    kv.layer = static_cast<uint32_t>(layer);
    kv.group = kv.layer / step_.layers_per_group;
    const auto plane = static_cast<uint64_t>(spec_.kv_dim()) * kv.block_tokens * sizeof(uint16_t);
    kv.layer_offset = kv.layer % step_.layers_per_group * 2 * plane;
    kv.kv_heads = spec_.kv_heads;
    kv.head_dim = spec_.head_dim;
    return kv;
  }

  void attend(size_t layer) {
    const GpuAttention& attention = attention_of(layer);
    finish_qkv(layer, attention);
    LeafArgs leaf = {};
    leaf.work = attention.work;
    leaf.q = scratch_.q;
    leaf.rows = attention.rows;
    leaf.partials = scratch_.partials;
    leaf.kv = kv_of(layer);
    leaf.heads = spec_.heads;
    leaf.window = attention.window;
    leaf.cap = cap_of(ops::reference::score_cap_of(spec_.score_cap));
    leaf.count = attention.work_count;
    leaf.most_rows = attention.most_rows;
    queue_.launch(leaf);
    MergeArgs merge = {};
    merge.partials = scratch_.partials;
    merge.rows = attention.rows;
    merge.slices = step_.kv.slices;
    merge.image = scratch_.operand;
    merge.heads = spec_.heads;
    merge.head_dim = spec_.head_dim;
    merge.window = attention.window;
    merge.count = step_.count;
    queue_.launch(merge);
  }

  void finish_qkv(size_t layer, const GpuAttention& attention) {
    const GpuLayer& weights = model_.layers[layer];
    const GpuRope rope = model_.rope(layer);
    FinishQkvArgs args = {};
    args.qkv = scratch_.product;
    args.rows = attention.rows;
    args.bias = weights.qkv_bias;
    args.q_norm = weights.q_norm;
    args.k_norm = weights.k_norm;
    args.norm_of_row = spec_.qk_norm == QkNorm::kRow ? 1 : 0;
    args.norm_epsilon = spec_.norm_epsilon;
    args.cos = rope.cos;
    args.sin = rope.sin;
    args.half = rope.half;
    args.heads = spec_.heads;
    args.q = scratch_.q;
    args.kv = kv_of(layer);
    args.count = step_.count;
    queue_.launch(args);
  }

  void activate(const GpuLayer& weights) {
    ActivateArgs args = {};
    args.kind = kind_of(spec_);
    args.in = scratch_.product;
    args.bias = weights.ffn_in_bias;
    args.image = scratch_.operand;
    args.count = step_.count;
    args.n = spec_.ffn_dim;
    queue_.launch(args);
  }

  // The product of the operand, and what happens to it before the residual
  // stream has it.
  void add_branch(const uint16_t* weights, int32_t k, const GpuBranch& branch) {
    if (model_.adds_at_once) {
      multiply(weights, spec_.dim, k, step_.count, scratch_.x, true);
      return;
    }
    multiply(weights, spec_.dim, k, step_.count, scratch_.product, false);
    AddBranchArgs args = {};
    args.y = scratch_.product;
    args.bias = branch.bias;
    args.norm = branch.norm;
    args.scale = spec_.residual_scale;
    args.x = scratch_.x;
    args.count = step_.count;
    args.n = spec_.dim;
    queue_.launch(args);
  }

  void draw() {
    normalise(model_.output_norm, step_.logit_rows, step_.logit_count);
    multiply(model_.output, spec_.vocab_size, spec_.dim, step_.logit_count, scratch_.logits, false);
    DrawArgs args = {};
    args.logits = scratch_.logits;
    args.scale = spec_.logit_scale;
    args.cap = cap_of(ops::reference::cap_of(spec_.logit_cap));
    args.draws = step_.draws;
    args.tokens = step_.tokens;
    args.count = step_.logit_count;
    args.vocabulary = spec_.vocab_size;
    queue_.launch(args);
  }

  const GpuModel& model_;
  const ModelSpec& spec_;
  const GpuStep& step_;
  const GpuScratch& scratch_;
  KernelQueue& queue_;
};

}  // namespace

GpuScratch::Sizes GpuScratch::sizes(const ModelSpec& spec, int64_t rows, int64_t records,
                                    int64_t logit_rows) {
  const int64_t operand = std::max({spec.dim, spec.q_dim(), spec.ffn_dim});
  const int64_t product = std::max({spec.q_dim() + 2 * spec.kv_dim(), spec.ffn_inputs(), spec.dim});
  return {rows * spec.dim,
          ops::operand_elements(std::max(rows, logit_rows), operand),
          rows * product,
          rows * spec.q_dim(),
          records * spec.heads * (2 + spec.head_dim),
          logit_rows * spec.vocab_size};
}

void queue_forward_pass(const GpuModel& model, const GpuStep& step, const GpuScratch& scratch,
                        KernelQueue& queue) {
  Pass(model, step, scratch, queue).run();
}

}  // namespace kvasir
