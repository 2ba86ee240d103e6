// What happens to Q, K and V of a position between their product and attention. The forward pass and the
// computation of K and V from X both call this, so both give the same bits.
#pragma once

#include <cstdint>

#include "exec/cpu/packed_model.h"
#include "ops/cpu/kernels.h"

namespace kvasir {

// In this order: bias, norm of Q, K and V, RoPE; Q is then scaled. In latent attention the norm is that of a
// row's first values, and RoPE turns the others. Stateless; threads call it for different rows.
class QkvFinisher {
 public:
  // Both outlive it.
  QkvFinisher(const PackedModel& model, const ops::Kernels& kernels) : model_(model), kernels_(kernels) {}

  // q: [q_dim]
  void finish_q(uint32_t layer, int64_t position, float* q) const;
  // kv: K and V, [2 * kv_dim], or the one row of latent attention. with_bias is false only under a mutant.
  void finish_kv(uint32_t layer, int64_t position, float* kv, bool with_bias = true) const;

 private:
  void normalise(uint32_t layer, const std::vector<float>& weight, int64_t n, float* x) const;
  void rotate(uint32_t layer, int64_t position, int64_t heads, float* x) const;

  const PackedModel& model_;
  const ops::Kernels& kernels_;
};

}  // namespace kvasir
