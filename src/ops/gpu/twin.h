// The host twin: products and attention of the GPU numerics with the bits of ops/gpu/reference.h, fast enough
// that whole models run on it. Pure and thread-safe. REQUIRES: as there, the thread keeps subnormals
#pragma once

#include <cstdint>
#include <vector>

#include "ops/gpu/fused16_lanes.h"
#include "ops/gpu/reference.h"

namespace kvasir::ops::twin {

// A matrix [n][k] as the lanes take it: panels of sixteen rows, [k][16] each, filled up with +0.
class Weights {
 public:
  // w: row-major. REQUIRES: n > 0, k > 0
  Weights(const uint16_t* w, int64_t n, int64_t k);
  int64_t n() const { return n_; }
  int64_t k() const { return k_; }

 private:
  friend void gemm(IsaClass isa, const uint16_t* x, const Weights& w, int64_t rows, float* out);
  int64_t n_, k_;
  int64_t padded_k_;
  std::vector<uint16_t> panels_;
};

// reference::gemm. x: [rows][k], out: [rows][n]. REQUIRES: is_supported(isa)
void gemm(IsaClass isa, const uint16_t* x, const Weights& w, int64_t rows, float* out);

// reference::leaf of `heads` query heads that share K and V. q: [heads][head_dim]; partials:
// [heads][partial_floats(head_dim)]. REQUIRES: is_supported(isa)
void leaf(IsaClass isa, const uint16_t* q, int64_t heads, const uint16_t* k, const uint16_t* v,
          int64_t stride, int64_t head_dim, int64_t first, int64_t end, const reference::Cap& with,
          float* partials);

// reference::attend of `heads` query heads that share K and V. q, out: [heads][head_dim]. REQUIRES:
// is_supported(isa)
void attend(IsaClass isa, const uint16_t* q, int64_t heads, const uint16_t* k, const uint16_t* v,
            int64_t stride, int64_t head_dim, int64_t first, int64_t end, const reference::Cap& with,
            uint16_t* out);

}  // namespace kvasir::ops::twin
