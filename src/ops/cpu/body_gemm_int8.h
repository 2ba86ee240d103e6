// gemm_int8 over its tiles; included after the definitions of kInt8Rows, the rows of the largest tile, and of
// gemm_int8_tile<WeightType, rows>(args, row, panel, columns, ahead), which each instruction set has for
// itself.
#pragma once

#include <cstdint>

namespace kvasir::ops {
namespace {

// Calls the tile of exactly `rows` rows, 1 <= rows <= R.
template <WeightType T, int R>
inline void gemm_int8_rows(int64_t rows, const GemmArgs& g, int64_t row, int64_t panel, int64_t columns,
                           const Ahead& ahead) {
  if (rows == R) {
    gemm_int8_tile<T, R>(g, row, panel, columns, ahead);
  } else if constexpr (R > 1) {
    gemm_int8_rows<T, R - 1>(rows, g, row, panel, columns, ahead);
  }
}

template <WeightType T>
void gemm_int8_typed(const GemmArgs& g) {
  const int64_t tiles = (g.row_end - g.row_begin + kInt8Rows - 1) / kInt8Rows;
  for (int64_t panel = g.panel_begin; panel < g.panel_end; ++panel) {
    const int64_t columns = g.w.n - panel * kPanel < kPanel ? g.w.n - panel * kPanel : kPanel;
    int64_t tile = 0;
    for (int64_t row = g.row_begin; row < g.row_end; ++tile) {
      const int64_t rows = tile_rows(g.row_end - row, kInt8Rows);
      gemm_int8_rows<T, kInt8Rows>(rows, g, row, panel, columns, fetches_of(tile, tiles, g.panel_stride));
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
