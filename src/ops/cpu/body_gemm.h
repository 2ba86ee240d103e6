// Helpers of all matrix products, written once over sixteen lanes; included after body_vector.h, whose rules
// it follows.
#pragma once

#include <cstdint>

namespace kvasir::ops {
namespace {

constexpr int64_t kLineBytes = 64;

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

// Tiles of rows that follow one another over the same weights leave memory idle: all but the first read from
// the caches. So they fetch what comes `distance` bytes behind those weights, shared out among them: at step
// `next`, and from there at every `every`-th one.
struct Ahead {
  int64_t next = -1;
  int64_t every = 0;
  int64_t distance = 0;
};
inline Ahead fetches_of(int64_t tile, int64_t tiles, int64_t distance) {
  if (tile == 0) return {};
  return {tile - 1, tiles - 1, distance};
}
// At `step`, whose weights are these kBytes.
template <int64_t kBytes>
inline void fetch_ahead(Ahead& ahead, int64_t step, const uint8_t* weights) {
  if (step != ahead.next) return;
  ahead.next += ahead.every;
  for (int64_t i = 0; i < kBytes; i += kLineBytes) __builtin_prefetch(weights + ahead.distance + i);
}

// Rows of the next tile, so that the last tiles are of about equal height.
inline int64_t tile_rows(int64_t left, int64_t limit) {
  const int64_t tiles = (left + limit - 1) / limit;
  return (left + tiles - 1) / tiles;
}

}  // namespace
}  // namespace kvasir::ops
