// Cosines and sines of rotary position embedding, by true position.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvasir::ops {

struct RopeSpec {
  int64_t max_positions = 0;
  int64_t head_dim = 0;        // rotated dimensions of a head; even
  double freq_base = 10000.0;  // angle of pair i at position p: p * freq_base^(-2i / head_dim)
  double linear_factor = 1.0;  // positions are divided by it (GGUF: rope.scaling.factor, type linear)
  std::span<const float> freq_factors;  // empty, or [head_dim / 2]: pair i's frequency is divided by it
  double attention_factor = 1.0;        // multiplies cosines and sines
};

// Immutable once made, so readers need no lock.
struct RopeTable {
  int64_t max_positions = 0;
  int64_t half = 0;        // head_dim / 2, the length of one row
  std::vector<float> cos;  // [max_positions][half]
  std::vector<float> sin;  // [max_positions][half]

  // REQUIRES: 0 <= position < max_positions
  const float* cos_row(int64_t position) const { return cos.data() + position * half; }
  const float* sin_row(int64_t position) const { return sin.data() + position * half; }
};

// REQUIRES: max_positions > 0; head_dim even and > 0; freq_base, linear_factor and every factor > 0;
// freq_factors empty or of head_dim / 2 elements.
RopeTable make_rope_table(const RopeSpec& spec);

}  // namespace kvasir::ops
