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
#include "ops/cpu/body_kv.h"

namespace kvasir::ops {
namespace {

constexpr int kInt8Rows = 1;
// 1: with a minimum; 2: two scales in a group.
constexpr int int8_form(const WeightTraits& t) {
  return (t.has_min ? 1 : 0) + (t.scales == 2 ? 2 : 0);
}

// Exact integer sums of a row with 32 columns over quads [begin, end) of a group.
void quad_sums(const uint8_t (*lines)[kLineBytes], const int8_t* q, int begin, int end, int32_t start,
               int32_t* out) {
  for (int c = 0; c < kPanel; ++c) out[c] = start;
  for (int line = 2 * begin; line < 2 * end; ++line) {
    for (int c = 0; c < 16; ++c) {
      for (int j = 0; j < 4; ++j) out[line % 2 * 16 + c] += lines[line][4 * c + j] * q[line / 2 * 4 + j];
    }
  }
}
inline F to_floats(const int32_t* sums) {
  return each([&](int i) { return static_cast<float>(sums[i]); });
}

template <int kForm, int R>
void int8_tile(const Int8Tile& t) {
  constexpr bool kMin = kForm % 2 == 1, kTwo = kForm / 2 == 1;
  const UnpackedGroups& w = *t.weights;
  for (int64_t g = 0; g < t.groups; ++g) {
    const int8_t* q = t.q + g * kGroup;
    const F da = f_set1(t.scales[0][g]);
    int32_t sums[2][kPanel];
    for (int s = 0; s < (kTwo ? 2 : 1); ++s) {
      quad_sums(w.values[g], q, kTwo ? 4 * s : 0, kTwo ? 4 * s + 4 : 8, t.starts[0][kTwo ? 2 * g + s : g],
                sums[s]);
    }
    for (int64_t h = 0; h < kPanel; h += 16) {
      F acc = f_load(t.chains + h);
      if constexpr (kTwo) {
        F sum = f_mul(f_load(w.scales[g][0] + h), to_floats(sums[0] + h));
        sum = f_fma(f_load(w.scales[g][1] + h), to_floats(sums[1] + h), sum);
        acc = f_fma(f_mul(f_load(w.d + h), da), sum, acc);
        if constexpr (kMin) {
          F moment = f_mul(f_load(w.mins[g][0] + h), f_set1(t.sums[0][2 * g]));
          moment = f_fma(f_load(w.mins[g][1] + h), f_set1(t.sums[0][2 * g + 1]), moment);
          acc = f_fma(f_mul(f_load(w.min + h), da), moment, acc);
        }
      } else {
        acc = f_fma(f_mul(f_load(w.scales[g][0] + h), da), to_floats(sums[0] + h), acc);
        if constexpr (kMin) acc = f_fma(f_load(w.scales[g][1] + h), f_set1(t.moments[g]), acc);
      }
      f_store(t.chains + h, acc);
    }
  }
}

template <WeightType T, int R>
void int8_packed_tile(const Int8Tile& t) {
  UnpackedGroups weights = *t.weights;
  for (int64_t g = 0; g < t.groups; ++g) {
    unpack_group<T>(t.lines + g * GroupPlaces<T>::kStride, weights.values[g][0]);
  }
  Int8Tile unpacked = t;
  unpacked.weights = &weights;
  int8_tile<int8_form(kTraitsOf<T>), R>(unpacked);
}

}  // namespace
}  // namespace kvasir::ops

#include "ops/cpu/body_gemm_int8.h"
#include "ops/cpu/body_table.h"

extern "C" {
const kvasir::ops::KernelTable kvasir_kernels_portable = kvasir::ops::kTable;
}
