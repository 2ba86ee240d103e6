#include "exec/cpu/latent_pass.h"

#include <algorithm>

#include "base/mutant.h"
#include "exec/cpu/product.h"

namespace kvasir {

LatentPass::LatentPass(const PackedModel& model, const ops::Kernels& kernels, ProductRunner& products)
    : model_(model), kernels_(kernels), products_(products) {}

void LatentPass::grow(int64_t rows) {
  const ModelSpec& c = model_.spec();
  if (!c.is_latent()) return;
  const auto n = static_cast<size_t>(rows);
  int64_t widest = 0;
  for (const PackedLayer& layer : model_.layers()) widest = std::max(widest, layer.qkv.n);
  first_.resize(n * static_cast<size_t>(widest));
  if (latent().q_rank > 0)
    q_.resize(n * static_cast<size_t>(c.heads * (latent().nope_dim + latent().rope_dim)));
  by_head_.resize(n * static_cast<size_t>(c.heads * std::max(latent().rank, latent().value_dim)));
  first_of_head_.resize(static_cast<size_t>(c.heads) + 1);
  products_.grow_buckets(static_cast<size_t>(c.heads));
}

OperandBuffers::Extent LatentPass::extent(int64_t rows) const {
  const ModelSpec& c = model_.spec();
  if (!c.is_latent()) return {0, c.dim};
  return {rows * c.heads, std::max(latent().rank, latent().nope_dim)};
}

int64_t LatentPass::most_items(int64_t rows) const {
  const ModelSpec& c = model_.spec();
  int64_t most = c.is_latent() ? c.heads * rows : 0;
  for (const PackedLayer& layer : model_.layers()) {
    for (const auto* by_head : {&layer.absorb, &layer.value_up}) {
      int64_t items = 0;
      for (const Projection& p : *by_head) items += Product::block_count(rows) * Product::panel_count(p);
      most = std::max(most, items);
    }
    if (layer.q_b.n > 0) most = std::max(most, Product::block_count(rows) * Product::panel_count(layer.q_b));
  }
  return most;
}

void LatentPass::multiply(const PackedLayer& layer, const Operand& normed, int64_t rows) {
  products_.multiply(layer.qkv, normed, rows, first_.data(), layer.qkv.n, false);
}

void LatentPass::group_by_head(int64_t rows) {
  for (size_t h = 0; h < first_of_head_.size(); ++h) first_of_head_[h] = static_cast<int64_t>(h) * rows;
}

void LatentPass::make_qkv(const PackedLayer& layer, int64_t rows, float* qkv) {
  const ModelSpec& c = model_.spec();
  const int64_t rank = latent().rank, nope = latent().nope_dim, rope = latent().rope_dim;
  const int64_t row = c.head_dim, width = c.qkv_dim(), head_width = nope + rope;
  const float* q = first_.data();
  int64_t q_stride = layer.qkv.n;
  if (latent().q_rank > 0) {
    const Operand normed = products_.make_rows(layer.q_b, rows, [&](int64_t r, float* out) {
      kernels_.rms_norm(first_.data() + r * layer.qkv.n, layer.q_a_norm.data(), latent().q_rank,
                        c.norm_epsilon, out);
    });
    products_.multiply(layer.q_b, normed, rows, q_.data(), layer.q_b.n, false);
    q = q_.data();
    q_stride = layer.q_b.n;
  }
  group_by_head(rows);
  const int64_t other = mutant(Mutant::kAbsorbedByOtherHead) && rows == 1 ? 1 : 0;
  const Operand by_head = products_.make_rows(layer.absorb[0], c.heads * rows, [&](int64_t i, float* out) {
    const int64_t head = (i / rows + other) % c.heads;
    std::copy_n(q + i % rows * q_stride + head * head_width, nope, out);
  });
  products_.multiply(by_head, layer.absorb, first_of_head_, by_head_.data());
  products_.for_rows(rows, [&](Share mine, int) {
    for (int64_t r = mine.begin; r < mine.end; ++r) {
      float* out = qkv + r * width;
      for (int64_t h = 0; h < c.heads; ++h, out += row) {
        const int64_t from = (h + c.heads - other) % c.heads;
        std::copy_n(by_head_.data() + (from * rows + r) * rank, rank, out);
        std::copy_n(q + r * q_stride + h * head_width + nope, rope, out + rank);
        if (mutant(Mutant::kRopePartMissing) && rows == 1) std::fill_n(out + rank, rope, 0.0F);
      }
      std::copy_n(first_.data() + (r + 1) * layer.qkv.n - row, row, out);
    }
  });
}

Operand LatentPass::make_values(const PackedLayer& layer, const float* attended, int64_t stride,
                                int64_t rows) {
  const ModelSpec& c = model_.spec();
  const int64_t rank = latent().rank, value = latent().value_dim;
  group_by_head(rows);
  const Operand by_head = products_.make_rows(layer.value_up[0], c.heads * rows, [&](int64_t i, float* out) {
    std::copy_n(attended + i % rows * stride + i / rows * rank, rank, out);
  });
  products_.multiply(by_head, layer.value_up, first_of_head_, by_head_.data());
  return products_.make_rows(layer.attn_output, rows, [&](int64_t r, float* out) {
    for (int64_t h = 0; h < c.heads; ++h) {
      std::copy_n(by_head_.data() + (h * rows + r) * value, value, out + h * value);
    }
  });
}

uint64_t LatentPass::bytes() const {
  return (first_.size() + q_.size() + by_head_.size()) * sizeof(float);
}

}  // namespace kvasir
