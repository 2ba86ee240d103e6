#include "exec/gpu/forward_pass.h"

#include <algorithm>

#include "base/check.h"
#include "base/mutant.h"
#include "ops/gpu/layouts.h"
#include "ops/gpu/reference.h"

namespace kvasir {
namespace {

using namespace ops::gpu;

Activate kind_of(const ModelSpec& spec) {
  if (!spec.gated) return Activate::kRelu;
  switch (spec.activation) {
    case Activation::kSilu:
      return Activate::kSilu;
    case Activation::kGelu:
      return Activate::kGelu;
    case Activation::kRelu:
    case Activation::kClampedSwiglu:
      break;
  }
  KV_CHECK(false, "activation={}", static_cast<int>(spec.activation));
}

ops::Cap cap_of(const ops::reference::Cap& cap) {
  return {cap.limit, cap.factor};
}

NormRowsArgs normed_rows(const ModelSpec& spec, const NormArgs& norm, const GpuScratch& scratch,
                         int32_t count) {
  NormRowsArgs args = {};
  args.x = scratch.x;
  args.x_stride = spec.dim;
  args.norm = norm;
  args.count = count;
  args.n = spec.dim;
  return args;
}

GemmArgs product_of(const GpuScratch& scratch, const uint16_t* weights, int32_t n, int32_t k, int32_t rows) {
  GemmArgs args = {};
  args.weights = weights;
  args.x = scratch.operand;
  args.out_stride = n;
  args.rows = rows;
  args.n = n;
  args.k = k;
  return args;
}

// Everything that is launched for the layers of a step.
class Pass {
 public:
  Pass(const GpuModel& model, const GpuStep& step, const GpuScratch& scratch, KernelQueue& queue,
       PassPoints* points)
      : model_(model), spec_(model.spec), step_(step), scratch_(scratch), queue_(queue), points_(points) {}

  void run() {
    rows_ = step_.count;
    embed();
    for (size_t layer = 0; layer < model_.layers.size(); ++layer) {
      const GpuLayer& weights = model_.layers[layer];
      normalise(weights.attn_norm);
      multiply(weights.qkv, spec_.q_dim() + 2 * spec_.kv_dim(), spec_.dim, scratch_.product, false);
      write(layer);
      if (!step_.staying.empty()) rows_ = step_.staying[layer];
      if (rows_ == 0) break;
      attend(layer);
      add_branch(weights.attn_output, spec_.q_dim(), weights.attn_branch);
      normalise(weights.ffn_norm);
      multiply(weights.ffn_in, spec_.ffn_inputs(), spec_.dim, scratch_.product, false);
      activate(weights);
      add_branch(weights.ffn_down, spec_.ffn_dim, weights.ffn_branch);
    }
  }

 private:
  void embed() {
    EmbedArgs args = {};
    args.rows = step_.rows;
    args.earlier = step_.earlier;
    args.table = model_.embedding;
    args.positions = model_.positions;
    args.position_offset = spec_.position_offset;
    args.scale = spec_.embedding_scale;
    args.x = scratch_.x;
    args.count = rows_;
    args.dim = spec_.dim;
    queue_.launch(args);
  }

  void normalise(const NormArgs& norm) {
    NormRowsArgs args = normed_rows(spec_, norm, scratch_, rows_);
    args.image = scratch_.operand;
    queue_.launch(args);
  }

  void multiply(const uint16_t* weights, int32_t n, int32_t k, float* out, bool accumulate) {
    GemmArgs args = product_of(scratch_, weights, n, k, rows_);
    args.out = out;
    args.accumulate = accumulate ? 1 : 0;
    queue_.launch(args);
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
    const auto number = static_cast<uint32_t>(layer);
    const bool early = mutant(Mutant::kRingReusedEarly);
    if (early && points_ != nullptr) points_->attended(number);
    const int32_t window = spec_.layer_specs[layer].window;
    int32_t attended = 0;
    for (const GpuAttention& pass : step_.attention) {
      if (pass.window != window || pass.count != rows_) continue;
      launch_attention(layer, pass);
      attended = pass.end;
    }
    KV_CHECK(attended == rows_, "no plan for {} rows in the window {}", rows_, window);
    if (!early && points_ != nullptr) points_->attended(number);
  }

  void launch_attention(size_t layer, const GpuAttention& pass) {
    LeafArgs leaf = {};
    leaf.work = pass.work;
    leaf.q = scratch_.q;
    leaf.rows = pass.rows;
    leaf.partials = scratch_.partials;
    leaf.kv = kv_of(layer);
    leaf.heads = spec_.heads;
    leaf.window = pass.window;
    leaf.cap = cap_of(ops::reference::score_cap_of(spec_.score_cap));
    leaf.count = pass.work_count;
    leaf.most_rows = pass.most_rows;
    queue_.launch(leaf);
    MergeArgs merge = {};
    merge.partials = scratch_.partials;
    merge.rows = pass.rows + pass.first;
    merge.slices = step_.kv.slices;
    merge.image = scratch_.operand + ops::operand_elements(pass.first, spec_.q_dim());
    merge.heads = spec_.heads;
    merge.head_dim = spec_.head_dim;
    merge.window = pass.window;
    merge.count = pass.end - pass.first;
    queue_.launch(merge);
  }

  void write(size_t layer) {
    const auto number = static_cast<uint32_t>(layer);
    if (points_ != nullptr) points_->before_write(number);
    const bool early = mutant(Mutant::kMarkBeforeWrite);
    if (early && points_ != nullptr) points_->written(number);
    write_x(layer);
    finish_qkv(layer);
    project(layer);
    if (!early && points_ != nullptr) points_->written(number);
  }

  CopyXArgs copy_of(const XRun* runs, int32_t count) const {
    CopyXArgs args = {};
    args.runs = runs;
    args.slices = step_.kv.slices;
    args.memory = step_.kv.memory;
    args.block_tokens = step_.kv.block_tokens;
    args.image = scratch_.operand;
    args.count = count;
    args.dim = spec_.dim;
    return args;
  }

  // The operand is still that of the product of Q, K and V.
  void write_x(size_t layer) {
    if (step_.x_writes.empty()) return;
    const GpuXWrites& writes = step_.x_writes[layer / step_.layers_per_group];
    if (writes.count == 0) return;
    CopyXArgs args = copy_of(writes.runs, writes.count);
    const auto row = static_cast<uint64_t>(ops::x_row_elements(spec_.dim)) * sizeof(uint16_t);
    args.layer_offset = layer % step_.layers_per_group * row * step_.kv.block_tokens;
    queue_.launch(args);
  }

  // Q, K and V of the step's rows are finished, so that operand and product are free.
  void project(size_t layer) {
    const GpuLayer& weights = model_.layers[layer];
    const int32_t q_dim = spec_.q_dim(), first_tile = q_dim / ops::kTileRows;
    // Weights of K begin in a tile that may have some of Q.
    const int32_t first_k = q_dim - first_tile * ops::kTileRows, columns = first_k + 2 * spec_.kv_dim();
    for (const GpuProjection& projection : step_.projections) {
      if (projection.layer != layer) continue;
      CopyXArgs copy = copy_of(projection.runs, projection.count);
      copy.to_image = 1;
      queue_.launch(copy);
      const int64_t tile_row = ops::operand_elements(ops::kTileRows, spec_.dim);
      GemmArgs product =
          product_of(scratch_, weights.qkv + first_tile * tile_row, columns, spec_.dim, projection.rows);
      product.out = scratch_.product;
      queue_.launch(product);
      finish_kv(layer, projection, first_k, columns);
    }
  }

  void finish_kv(size_t layer, const GpuProjection& projection, int32_t first_k, int32_t columns) {
    const GpuLayer& weights = model_.layers[layer];
    const GpuRope rope = model_.rope(layer);
    const bool has_bias = weights.qkv_bias != nullptr && !mutant(Mutant::kXBiasMissing);
    FinishKvArgs args = {};
    args.product = scratch_.product;
    args.stride = columns;
    args.first_k = first_k;
    args.runs = projection.runs;
    args.bias = has_bias ? weights.qkv_bias + spec_.q_dim() : nullptr;
    args.k_norm = weights.k_norm;
    args.norm_of_row = spec_.qk_norm == QkNorm::kRow ? 1 : 0;
    args.norm_epsilon = spec_.norm_epsilon;
    args.cos = rope.cos;
    args.sin = rope.sin;
    args.half = rope.half;
    args.kv = kv_of(layer);
    args.count = projection.count;
    queue_.launch(args);
  }

  void finish_qkv(size_t layer) {
    const GpuLayer& weights = model_.layers[layer];
    const GpuRope rope = model_.rope(layer);
    FinishQkvArgs args = {};
    args.qkv = scratch_.product;
    args.rows = step_.rows;
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
    args.count = rows_;
    queue_.launch(args);
  }

  void activate(const GpuLayer& weights) {
    ActivateArgs args = {};
    args.kind = kind_of(spec_);
    args.in = scratch_.product;
    args.bias = weights.ffn_in_bias;
    args.image = scratch_.operand;
    args.count = rows_;
    args.n = spec_.ffn_dim;
    queue_.launch(args);
  }

  // The product of the operand, and what happens to it before the residual
  // stream has it.
  void add_branch(const uint16_t* weights, int32_t k, const GpuBranch& branch) {
    if (model_.adds_at_once) {
      multiply(weights, spec_.dim, k, scratch_.x, true);
      return;
    }
    multiply(weights, spec_.dim, k, scratch_.product, false);
    AddBranchArgs args = {};
    args.y = scratch_.product;
    args.bias = branch.bias;
    args.norm = branch.norm;
    args.scale = spec_.residual_scale;
    args.x = scratch_.x;
    args.count = rows_;
    args.n = spec_.dim;
    queue_.launch(args);
  }

  const GpuModel& model_;
  const ModelSpec& spec_;
  const GpuStep& step_;
  const GpuScratch& scratch_;
  KernelQueue& queue_;
  PassPoints* const points_;
  int32_t rows_ = 0;  // that are in the layer at hand
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

void queue_layers(const GpuModel& model, const GpuStep& step, const GpuScratch& scratch, KernelQueue& queue,
                  PassPoints* points) {
  Pass(model, step, scratch, queue, points).run();
}

void queue_logits(const GpuModel& model, const GpuLogits& logits, const GpuScratch& scratch,
                  KernelQueue& queue) {
  const ModelSpec& spec = model.spec;
  NormRowsArgs norm = normed_rows(spec, model.output_norm, scratch, logits.count);
  norm.source = logits.rows;
  norm.image = scratch.operand;
  queue.launch(norm);
  GemmArgs product = product_of(scratch, model.output, spec.vocab_size, spec.dim, logits.count);
  product.out = scratch.logits;
  queue.launch(product);
  DrawArgs draw = {};
  draw.logits = scratch.logits;
  draw.scale = spec.logit_scale;
  draw.cap = cap_of(ops::reference::cap_of(spec.logit_cap));
  draw.draws = logits.draws;
  draw.tokens = logits.tokens;
  draw.count = logits.count;
  draw.vocabulary = spec.vocab_size;
  queue.launch(draw);
}

void queue_hidden(const GpuModel& model, const int32_t* rows, int32_t count, const GpuScratch& scratch,
                  float* out, KernelQueue& queue) {
  NormRowsArgs norm = normed_rows(model.spec, model.output_norm, scratch, count);
  norm.source = rows;
  norm.values = out;
  queue.launch(norm);
}

}  // namespace kvasir
