// Helpers of all matrix products, written once over sixteen lanes; included after body_vector.h, whose rules
// it follows.
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

}  // namespace
}  // namespace kvasir::ops
