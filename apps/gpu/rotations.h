// Tables of RoPE without libm, which a bare machine may have in another version.
#pragma once

#include <cstddef>
#include <vector>

namespace kvasir::gpu_program {

struct Rotations {
  std::vector<float> cosines, sines;  // [positions][pairs]
};
// Pair i turns by base^(-i / pairs) from a position to the next. REQUIRES: base >= 1
Rotations rotations(size_t positions, size_t pairs, double base);

}  // namespace kvasir::gpu_program
