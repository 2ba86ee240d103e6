// The activation functions of gated feed-forwards, of experts and of all rows alike.
#pragma once

#include <cstdint>

#include "base/check.h"
#include "model/architectures/model_spec.h"
#include "ops/cpu/kernels.h"

namespace kvasir {

// row: [2][ffn]: gate, up. out: [ffn].
inline void activate_gated(const ops::Kernels& kernels, Activation activation, const float* row, int64_t ffn,
                           float* out) {
  switch (activation) {
    case Activation::kSilu:
      return kernels.silu_mul(row, row + ffn, ffn, out);
    case Activation::kGelu:
      return kernels.gelu_mul(row, row + ffn, ffn, out);
    case Activation::kClampedSwiglu:
      return kernels.clamped_swiglu(row, row + ffn, kSwigluSlope, kSwigluLimit, ffn, out);
    case Activation::kRelu:
      break;
  }
  KV_CHECK(false, "a gated feed-forward with ReLU");
}

}  // namespace kvasir
