// The kernels for any CPU.
#include "ops/cpu/kernel_table.h"
#include "ops/cpu/lanes_portable.h"
#include "ops/weight_traits.h"
#define KV_OPS_LANES
#include "ops/cpu/body_vector.h"
// After the lanes and the helpers that they use.
#include "ops/cpu/body_attention.h"
#include "ops/cpu/body_gemm.h"
#include "ops/cpu/body_gemm_float.h"
#include "ops/cpu/body_int8_tile.h"
#include "ops/cpu/body_kv.h"
#include "ops/cpu/body_recurrent.h"

namespace kvasir::ops {
namespace {

constexpr TileHeights tile_heights(int) {
  return {1, 1, 1};
}
// 1: with a minimum, and without an offset; 2: two scales in a group.
constexpr int int8_form(const WeightTraits& t) {
  return (t.has_min ? 1 : 0) + (t.scales == 2 ? 2 : 0);
}

// Exact integer sums of a row with 32 columns over quads [kQuad, kEnd) of a group.
template <int kQuad, int kEnd, typename Source>
inline void quad_sums(const Source& source, int64_t group, const int8_t* q, int32_t* out) {
  if constexpr (kQuad < kEnd) {
    const B halves[2] = {source.template bytes<kQuad, 0>(group), source.template bytes<kQuad, 1>(group)};
    for (int c = 0; c < kPanel; ++c) {
      for (int j = 0; j < 4; ++j) out[c] += halves[c / 16].v[c % 16 * 4 + j] * q[4 * kQuad + j];
    }
    quad_sums<kQuad + 1, kEnd>(source, group, q, out);
  }
}
inline F to_floats(const int32_t* sums) {
  return each([&](int i) { return static_cast<float>(sums[i]); });
}

template <int kForm, int R, typename Source>
void int8_tile(const Int8Tile& t, const Source& source) {
  constexpr bool kMin = kForm % 2 == 1, kTwo = kForm / 2 == 1;
  for (int64_t g = 0; g < t.groups; ++g) {
    const int8_t* q = t.q + g * kGroup;
    const F da = f_set1(t.scale(0, g));
    int32_t sums[2][kPanel];
    for (int c = 0; c < kPanel; ++c) {
      sums[0][c] = kTwo ? t.half_start(0, g, 0) : t.start(0, g);
      sums[1][c] = t.half_start(0, g, 1);
    }
    quad_sums<0, kTwo ? 4 : 8>(source, g, q, sums[0]);
    if constexpr (kTwo) quad_sums<4, 8>(source, g, q, sums[1]);
    const auto from = source.scales(g);
    for (int64_t at = 0; at < kPanel; at += 16) {
      F acc = f_load(t.chains + at);
      if constexpr (kTwo) {
        F sum = f_mul(from.scale(0, at), to_floats(sums[0] + at));
        sum = f_fma(from.scale(1, at), to_floats(sums[1] + at), sum);
        if constexpr (kMin) {
          sum = f_fma(from.minimum(0, at), f_set1(t.half_sum(0, g, 0)), sum);
          sum = f_fma(from.minimum(1, at), f_set1(t.half_sum(0, g, 1)), sum);
        }
        acc = f_fma(da, sum, acc);
      } else {
        acc = f_fma(f_mul(from.scale(0, at), da), to_floats(sums[0] + at), acc);
        if constexpr (kMin) acc = f_fma(from.minimum(0, at), f_set1(t.moment(0, g)), acc);
      }
      f_store(t.chains + at, acc);
    }
  }
}

}  // namespace
}  // namespace kvasir::ops

#include "ops/cpu/body_gemm_int8.h"
#include "ops/cpu/body_table.h"

extern "C" {
const kvasir::ops::KernelTable kvasir_kernels_portable = kvasir::ops::kTable;
}
