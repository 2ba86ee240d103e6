// Rows of K and V into their runs of 16 tokens (kv_layout.h), written once over sixteen lanes; included after
// body_vector.h, whose rules it follows.
#pragma once

#include <cstdint>

namespace kvasir::ops {
namespace {

// Rounds a row to the cache type and hands it on, sixteen elements at a time: put(first index, elements).
// Returns the bits of its scale where the type has one.
template <typename Put>
inline uint16_t round_row(KvType type, const float* row, int64_t head_dim, Put put) {
  if (type == KvType::kF32) {
    for (int64_t i = 0; i < head_dim; i += kLanes) put(i, row + i);
    return 0;
  }
  if (type == KvType::kBf16) {
    for (int64_t i = 0; i < head_dim; i += kLanes) {
      alignas(64) uint16_t half[kLanes];
      f_store_bf16(half, f_load(row + i));
      put(i, half);
    }
    return 0;
  }
  F largest = f_zero();
  // NaN loses every comparison with the second operand, so it is not in the maximum.
  for (int64_t i = 0; i < head_dim; i += kLanes) largest = f_max(f_abs(f_load(row + i)), largest);
  const Int8Scales scales = int8_scales(f_set1(f_tree_max(largest)));
  for (int64_t i = 0; i < head_dim; i += kLanes) {
    alignas(64) int8_t q[2 * kLanes];
    f_store_i8(q, to_int8_range(f_load(row + i), scales.factor[0]));
    put(i, q);
  }
  return scales.bits[0];
}

inline void store_scale(KvType type, uint16_t bits, int64_t head_dim, int64_t lane, uint8_t* run) {
  if (type == KvType::kQ8_0) __builtin_memcpy(run + kLanes * head_dim + 2 * lane, &bits, sizeof(bits));
}

// K: the row is a column of the run, lane `lane`.
void store_k(KvType type, const float* row, int64_t head_dim, int64_t lane, uint8_t* run) {
  const uint16_t scale = round_row(type, row, head_dim, [&](int64_t first, const auto* elements) {
    constexpr auto kBytes = static_cast<int64_t>(sizeof(*elements));
    uint8_t* to = run + (first * kLanes + lane) * kBytes;
    for (int64_t i = 0; i < kLanes; ++i) __builtin_memcpy(to + i * kLanes * kBytes, elements + i, kBytes);
  });
  store_scale(type, scale, head_dim, lane, run);
}

void store_v(KvType type, const float* row, int64_t head_dim, int64_t lane, uint8_t* run) {
  const uint16_t scale = round_row(type, row, head_dim, [&](int64_t first, const auto* elements) {
    constexpr auto kBytes = static_cast<int64_t>(sizeof(*elements));
    __builtin_memcpy(run + (lane * head_dim + first) * kBytes, elements, kLanes * kBytes);
  });
  store_scale(type, scale, head_dim, lane, run);
}

}  // namespace
}  // namespace kvasir::ops
