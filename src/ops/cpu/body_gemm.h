// Helpers of both matrix products, and gemm_f32 written once over sixteen lanes; included after
// body_vector.h, whose rules it follows.

#pragma once

#include <cstdint>

namespace kvasir::ops {
namespace {

constexpr int64_t kLineBytes = 64;

inline int64_t value_lines(WeightType type) {
  return type == WeightType::kQ8_0 ? 16 : 8;
}
inline int64_t group_bytes(WeightType type) {
  return (value_lines(type) + (type == WeightType::kQ4_1 ? 2 : 1)) * kLineBytes;
}

// Writes one row of a tile of C; only the columns that exist.
inline void store_columns(float* c, const F& left, const F& right, int64_t columns, bool accumulate) {
  const F part[2] = {left, right};
  for (int64_t h = 0; h < 2; ++h) {
    const int64_t count = columns - 16 * h < 16 ? columns - 16 * h : 16;
    if (count <= 0) return;
    float* p = c + 16 * h;
    store_up_to(p, accumulate ? f_add(load_up_to(p, count), part[h]) : part[h], count);
  }
}

// Rows of the next tile, so that the last tiles are of about equal height.
inline int64_t tile_rows(int64_t left, int64_t limit) {
  const int64_t tiles = (left + limit - 1) / limit;
  return (left + tiles - 1) / tiles;
}

// Up to 32 k of a panel as floats, [k][32]: in place for f32, else into buffer.
inline const float* panel_floats(const PackedMatrix& w, const uint8_t* panel, int64_t k0, int64_t count,
                                 float* buffer) {
  if (w.type == WeightType::kF32) return reinterpret_cast<const float*>(panel) + k0 * kPanel;
  if (w.type == WeightType::kF16 || w.type == WeightType::kBf16) {
    const uint8_t* line = panel + k0 * kPanel * 2;
    for (int64_t i = 0; i < 2 * count; ++i, line += 32) {
      f_store(buffer + 16 * i, w.type == WeightType::kF16 ? f_load_f16(line) : f_load_bf16(line));
    }
    return buffer;
  }
  const uint8_t* line = panel + k0 / kGroup * group_bytes(w.type);
  const uint8_t* tail = line + value_lines(w.type) * kLineBytes;
  for (int64_t h = 0; h < 2; ++h) {
    const F d = f_load_f16(tail + 32 * h);
    const F m = w.type == WeightType::kQ4_1 ? f_load_f16(tail + kLineBytes + 32 * h) : f_zero();
    for (int64_t k = 0; k < kGroup; ++k) {
      const int shift = static_cast<int>(8 * (k % 4));
      const int nibble = shift + static_cast<int>(4 * h);
      F v;
      if (w.type == WeightType::kQ8_0) {
        v = f_mul(d, f_from_bytes(line + (k / 4 * 2 + h) * kLineBytes, shift, 255, 128));
      } else if (w.type == WeightType::kQ4_0) {
        v = f_mul(d, f_from_bytes(line + k / 4 * kLineBytes, nibble, 15, 8));
      } else {
        v = f_fma(d, f_from_bytes(line + k / 4 * kLineBytes, nibble, 15, 0), m);
      }
      f_store(buffer + k * kPanel + 16 * h, v);
    }
  }
  return buffer;
}

template <int R>
void gemm_f32_tile(const GemmArgs& g, int64_t row, int64_t panel, int64_t columns) {
  alignas(64) float buffer[kGroup * kPanel];
  const uint8_t* data = g.w.data + panel * g.panel_stride;
  const float* a = g.af + row * g.lda;
  F acc[R][2];
  KV_UNROLL
  for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = f_zero();
  for (int64_t k0 = 0; k0 < g.w.k; k0 += kGroup) {
    const int64_t count = g.w.k - k0 < kGroup ? g.w.k - k0 : kGroup;
    const float* w = panel_floats(g.w, data, k0, count, buffer);
    for (int64_t k = 0; k < count; ++k) {
      const F w0 = f_load(w + k * kPanel);
      const F w1 = f_load(w + k * kPanel + 16);
      KV_UNROLL
      for (int r = 0; r < R; ++r) {
        const F x = f_set1(a[r * g.lda + k0 + k]);
        acc[r][0] = f_fma(x, w0, acc[r][0]);
        acc[r][1] = f_fma(x, w1, acc[r][1]);
      }
    }
  }
  float* c = g.c + row * g.ldc + panel * kPanel;
  for (int r = 0; r < R; ++r) store_columns(c + r * g.ldc, acc[r][0], acc[r][1], columns, g.accumulate);
}

// Calls the tile of exactly `rows` rows, 1 <= rows <= R.
template <int R>
inline void gemm_f32_rows(int64_t rows, const GemmArgs& g, int64_t row, int64_t panel, int64_t columns) {
  if (rows == R) {
    gemm_f32_tile<R>(g, row, panel, columns);
  } else if constexpr (R > 1) {
    gemm_f32_rows<R - 1>(rows, g, row, panel, columns);
  }
}

void gemm_f32(const GemmArgs& g) {
  for (int64_t panel = g.panel_begin; panel < g.panel_end; ++panel) {
    const int64_t columns = g.w.n - panel * kPanel < kPanel ? g.w.n - panel * kPanel : kPanel;
    for (int64_t row = g.row_begin; row < g.row_end;) {
      const int64_t rows = tile_rows(g.row_end - row, kGemmF32Rows);
      gemm_f32_rows<kGemmF32Rows>(rows, g, row, panel, columns);
      row += rows;
    }
  }
}

}  // namespace
}  // namespace kvasir::ops
