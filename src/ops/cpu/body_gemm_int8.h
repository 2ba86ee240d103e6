// gemm_int8 over its tiles; included after the definitions of kInt8Rows, the rows of the largest tile, and of
// gemm_int8_tile<WeightType, rows>(args, row, panel, columns), which each instruction set has for itself.
#pragma once

#include <cstdint>

namespace kvasir::ops {
namespace {

// Calls the tile of exactly `rows` rows, 1 <= rows <= R.
template <WeightType T, int R>
inline void gemm_int8_rows(int64_t rows, const GemmArgs& g, int64_t row, int64_t panel, int64_t columns) {
  if (rows == R) {
    gemm_int8_tile<T, R>(g, row, panel, columns);
  } else if constexpr (R > 1) {
    gemm_int8_rows<T, R - 1>(rows, g, row, panel, columns);
  }
}

template <WeightType T>
void gemm_int8_typed(const GemmArgs& g) {
  for (int64_t panel = g.panel_begin; panel < g.panel_end; ++panel) {
    const int64_t columns = g.w.n - panel * kPanel < kPanel ? g.w.n - panel * kPanel : kPanel;
    for (int64_t row = g.row_begin; row < g.row_end;) {
      const int64_t rows = tile_rows(g.row_end - row, kInt8Rows);
      gemm_int8_rows<T, kInt8Rows>(rows, g, row, panel, columns);
      row += rows;
    }
  }
}

void gemm_int8(const GemmArgs& g) {
  if (g.w.type == WeightType::kQ8_0) gemm_int8_typed<WeightType::kQ8_0>(g);
  if (g.w.type == WeightType::kQ4_0) gemm_int8_typed<WeightType::kQ4_0>(g);
  if (g.w.type == WeightType::kQ4_1) gemm_int8_typed<WeightType::kQ4_1>(g);
}

}  // namespace
}  // namespace kvasir::ops
