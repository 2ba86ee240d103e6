#include "exec/cpu/qkv_finish.h"

#include "base/mutant.h"

namespace kvasir {

void QkvFinisher::finish_q(uint32_t layer, int64_t position, float* q) const {
  const ModelSpec& spec = model_.spec();
  const HeadShape heads = spec.heads_of(layer);
  const PackedLayer& weights = model_.layers()[layer];
  if (!weights.qkv_bias.empty()) kernels_.add(q, weights.qkv_bias.data(), heads.q_dim(), q);
  normalise(layer, weights.q_norm, heads.q_dim(), q);
  rotate(layer, position, heads.heads, q);
  const bool as_first = mutant(Mutant::kTemperatureOfOrigin);
  kernels_.scale(q, model_.query_scale(layer, as_first ? 0 : position), heads.q_dim(), q);
}

void QkvFinisher::finish_kv(uint32_t layer, int64_t position, float* kv, bool with_bias) const {
  const ModelSpec& spec = model_.spec();
  const HeadShape heads = spec.heads_of(layer);
  const PackedLayer& weights = model_.layers()[layer];
  if (!weights.qkv_bias.empty() && with_bias) {
    kernels_.add(kv, weights.qkv_bias.data() + heads.q_dim(), int64_t{2} * heads.kv_dim(), kv);
  }
  if (!mutant(Mutant::kValuesNotNormed))
    normalise(layer, weights.v_norm, heads.kv_dim(), kv + heads.kv_dim());
  if (mutant(Mutant::kNormAfterRope)) {
    rotate(layer, position, heads.kv_heads, kv);
    normalise(layer, weights.k_norm, heads.kv_dim(), kv);
    return;
  }
  if (spec.is_latent())
    kernels_.rms_norm(kv, weights.kv_a_norm.data(), spec.latent.rank, spec.norm_epsilon, kv);
  normalise(layer, weights.k_norm, heads.kv_dim(), kv);
  rotate(layer, position, heads.kv_heads, kv);
}

void QkvFinisher::normalise(uint32_t layer, const std::vector<float>& weight, int64_t n, float* x) const {
  const ModelSpec& spec = model_.spec();
  if (weight.empty()) return;
  const int64_t each = spec.qk_norm == QkNorm::kRow ? n : spec.heads_of(layer).head_dim;
  for (int64_t i = 0; i < n; i += each)
    kernels_.rms_norm(x + i, weight.data(), each, spec.norm_epsilon, x + i);
}

void QkvFinisher::rotate(uint32_t layer, int64_t position, int64_t heads, float* x) const {
  const ops::RopeTable* rope = model_.rope(layer);
  if (rope == nullptr) return;
  const ModelSpec& spec = model_.spec();
  const float *cos = rope->cos_row(position), *sin = rope->sin_row(position);
  if (!spec.is_latent()) {
    kernels_.rope(x, heads, spec.heads_of(layer).head_dim, cos, sin, rope->half);
    return;
  }
  for (int64_t h = 0; h < heads; ++h) {
    kernels_.rope(x + h * spec.head_dim + spec.latent.rank, 1, spec.latent.rope_dim, cos, sin, rope->half);
  }
}

}  // namespace kvasir
