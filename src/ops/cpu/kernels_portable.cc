// The kernels for any CPU.
#include "ops/cpu/kernel_table.h"
#include "ops/cpu/lanes_portable.h"
#define KV_OPS_LANES
#include "ops/cpu/body_vector.h"
// After the lanes and the helpers that they use.
#include "ops/cpu/body_attention.h"
#include "ops/cpu/body_gemm.h"
#include "ops/cpu/body_gemm_float.h"
#include "ops/cpu/body_kv.h"

namespace kvasir::ops {
namespace {

// Exact integer sums of one row's group with 32 columns, offsets of unsigned weights taken off.
void group_sums(WeightType type, const uint8_t* lines, const int8_t* q, int32_t sum, int32_t* out) {
  const int32_t offset = type == WeightType::kQ8_0 ? 128 : type == WeightType::kQ4_0 ? 8 : 0;
  for (int c = 0; c < kPanel; ++c) out[c] = -offset * sum;
  for (int quad = 0; quad < 8; ++quad) {
    for (int c = 0; c < 16; ++c) {
      for (int j = 0; j < 4; ++j) {
        const int32_t x = q[4 * quad + j];
        const int byte = 4 * c + j;
        if (type == WeightType::kQ8_0) {
          out[c] += x * lines[(2 * quad) * kLineBytes + byte];
          out[c + 16] += x * lines[(2 * quad + 1) * kLineBytes + byte];
        } else {
          const int32_t pair = lines[quad * kLineBytes + byte];
          out[c] += x * (pair & 15);
          out[c + 16] += x * (pair >> 4);
        }
      }
    }
  }
}

void gemm_int8_row(const GemmArgs& g, int64_t row, int64_t panel) {
  const int64_t groups_per_row = g.a.k / kGroup;
  const uint8_t* lines = g.w.data + panel * g.panel_stride;
  F acc[2] = {f_zero(), f_zero()};
  for (int64_t i = 0; i < g.groups; ++i, lines += group_bytes(g.w.type)) {
    const int64_t at = row * groups_per_row + i;
    int32_t sums[kPanel];
    group_sums(g.w.type, lines, g.a.q + at * kGroup, g.a.sums[at], sums);
    const F da = f_set1(s_from_f16(g.a.d[at]));
    const uint8_t* tail = lines + value_lines(g.w.type) * kLineBytes;
    for (int h = 0; h < 2; ++h) {
      const F isum = each([&](int l) { return static_cast<float>(sums[16 * h + l]); });
      acc[h] = f_fma(f_mul(f_load_f16(tail + 32 * h), da), isum, acc[h]);
      if (g.w.type == WeightType::kQ4_1) {
        const F mw = f_load_f16(tail + kLineBytes + 32 * h);
        acc[h] = f_fma(mw, f_set1(g.a.moments[at]), acc[h]);
      }
    }
  }
  const int64_t columns = g.w.n - panel * kPanel < kPanel ? g.w.n - panel * kPanel : kPanel;
  store_columns(g.c + row * g.ldc + panel * kPanel, acc[0], acc[1], columns, g.accumulate);
}

void gemm_int8(const GemmArgs& g) {
  for (int64_t panel = g.panel_begin; panel < g.panel_end; ++panel) {
    for (int64_t row = g.row_begin; row < g.row_end; ++row) gemm_int8_row(g, row, panel);
  }
}

}  // namespace
}  // namespace kvasir::ops

#include "ops/cpu/body_table.h"

extern "C" {
const kvasir::ops::KernelTable kvasir_kernels_portable = kvasir::ops::kTable;
}
