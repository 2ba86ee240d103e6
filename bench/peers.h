// Matrix products of other libraries, at the shapes of kernels_bench and on one thread. Each library is
// optional: a build that did not find it registers nothing.
//
// They are compared as plain products. Neither library has weights of 4 bits or a scale for each group of 32:
// their int8 product has none of the conversions and multiplications that a quantised model needs, so it is
// the lighter task, and their f32 and bf16 products read whole weights, which is the heavier one in memory.
// Weights are brought into the library's preferred layout before the clock starts, as ours are.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "machine_limits.h"

namespace kvasir::bench {

// oneDNN: f32, bf16 to f32, and u8 by s8 to s32. `limits` outlives the benchmarks.
void register_onednn(ThreadLimits* limits);
// libxsmm: f32, and bf16 to f32.
void register_libxsmm(ThreadLimits* limits);

struct Shape {
  int64_t n, k;
  std::vector<int64_t> rows;
  const char* name;
};
// The shapes of kernels_bench: one that stays in the caches, and one whose weights do not (60 to 400 MB by
// type).
inline std::vector<Shape> peer_shapes() {
  return {{1536, 576, {1, 8, 64, 512}, "k576_n1536"}, {24576, 4096, {1}, "k4096_n24576"}};
}

// Whether c[row][col] is the product of a [m][k] and w [k][n], at some places: a library that is called
// wrongly can be very fast. Small integers, so that every type and order of summation gives the same.
inline float peer_activation(int64_t row, int64_t i) {
  return static_cast<float>((row + 3 * i) % 4);
}
inline float peer_weight(int64_t i, int64_t col) {
  return static_cast<float>((5 * i + col) % 7 - 3);
}
template <typename T>
bool peer_is_right(const T* c, int64_t m, int64_t n, int64_t k) {
  for (int64_t row : {int64_t{0}, m / 2, m - 1}) {
    for (int64_t col : {int64_t{0}, int64_t{17}, n / 2 + 5, n - 1}) {
      float sum = 0;
      for (int64_t i = 0; i < k; ++i) sum += peer_activation(row, i) * peer_weight(i, col);
      if (std::fabs(static_cast<float>(c[row * n + col]) - sum) > 0.5f) return false;
    }
  }
  return true;
}

}  // namespace kvasir::bench
