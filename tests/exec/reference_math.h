// What the parts of ReferenceDecoder share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "ops/cpu/kernels.h"

namespace kvasir::test {

// The engine's own exp: its error, its exact values and that all instruction sets agree have tests of their
// own. It takes sixteen lanes for one value, so the quickest set it is.
inline float exp_of(float x) {
  static const ops::Kernels& kernels = ops::kernels_for(ops::detect_isa());
  float out = 0;
  kernels.exp_shifted(&x, 0.0f, 1, &out);
  return out;
}

inline float tree_add(const float* lanes, int n) {
  float half[16];
  std::copy_n(lanes, n, half);
  for (int w = n / 2; w > 0; w /= 2) {
    for (int i = 0; i < w; ++i) half[i] = half[i] + half[i + w];
  }
  return half[0];
}

inline void add(std::vector<float>& values, const std::vector<float>& bias) {
  for (size_t i = 0; i < bias.size(); ++i) values[i] = values[i] + bias[i];
}

}  // namespace kvasir::test
