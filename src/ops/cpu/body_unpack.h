// Panels of quantised weights, undone: codes as bytes, scales as floats, the same for every type. Written
// once over 64 bytes and sixteen lanes; included after body_gemm.h.
#pragma once

#include <cstdint>

#include "ops/weight_traits.h"

namespace kvasir::ops {
namespace {

constexpr int64_t kBlockGroups = 8;  // a block of 256 k, or eight blocks of 32
constexpr int64_t kByteLines = 16;   // of a group whose codes are bytes: line 2i + h as in packed_matrix.h

// Up to eight groups of a panel.
struct UnpackedGroups {
  alignas(64) uint8_t values[kBlockGroups][kByteLines][kLineBytes];  // unsigned, offset included
  // One scale a group: [0] d times the group's scale, [1] its minimum, to be added.
  // Two: the scales of both halves, which are integers, and of their minima; then d and the minimum's factor.
  alignas(64) float scales[kBlockGroups][2][kPanel];
  alignas(64) float mins[kBlockGroups][2][kPanel];
  alignas(64) float d[kPanel];
  alignas(64) float min[kPanel];
};

// The bits of lines that hold kBits of a code, for quad kQuad and columns 16h.., put at bit kTo.
template <int kBits, int kQuad, int kHalf, int kTo>
inline B unpack_bits(const uint8_t* lines) {
  constexpr int kQuads = 4 / kBits;  // in a line
  constexpr int kShift = kBits * (2 * (kQuad % kQuads) + kHalf) - kTo;
  return b_and(b_shift<kShift>(b_load(lines + kQuad / kQuads * kLineBytes)), ((1 << kBits) - 1) << kTo);
}

// Four k of sixteen columns as the unsigned bytes that a product multiplies with.
template <WeightType T, int kQuad, int kHalf>
inline B unpack_bytes(const uint8_t* lines) {
  constexpr WeightTraits t = kTraitsOf<T>;
  if constexpr (t.low_bits == 8) {
    return b_load(lines + (2 * kQuad + kHalf) * kLineBytes);
  } else {
    B v = unpack_bits<t.low_bits, kQuad, kHalf, 0>(lines);
    if constexpr (t.high_bits > 0) {
      v = b_or(v, unpack_bits<t.high_bits, kQuad, kHalf, t.low_bits>(lines + t.low_lines * kLineBytes));
    }
    if constexpr (t.lookup) v = b_lookup(kLookupValues, v);
    return v;
  }
}

// All lines of a group from line kLine on. out: [kByteLines][64]
template <WeightType T, int kLine = 0>
inline void unpack_group(const uint8_t* lines, uint8_t* out) {
  if constexpr (kLine < kByteLines) {
    b_store(out + kLine * kLineBytes, unpack_bytes<T, kLine / 2, kLine % 2>(lines));
    unpack_group<T, kLine + 1>(lines, out);
  }
}

// Scales and minima of group `index` of a block, whose tail is given, into place i.
template <WeightType T>
inline void unpack_scales(const uint8_t* tail, int64_t index, int64_t i, UnpackedGroups* out) {
  constexpr WeightTraits t = kTraitsOf<T>;
  const uint8_t* bytes = tail + (t.has_min ? 2 : 1) * kLineBytes + index * t.scale_bytes * kPanel;
  alignas(64) uint8_t halves[2][kLineBytes];  // of bytes that hold a scale and a minimum
  if constexpr (t.scales == 2 && t.has_min) {
    b_store(halves[0], b_and(b_load(bytes), 15));
    b_store(halves[1], b_and(b_shift<4>(b_load(bytes)), 15));
  }
  for (int64_t h = 0; h < kPanel; h += 16) {
    const F d = f_load_f16(tail + 2 * h);
    F min = f_zero();
    if constexpr (t.has_min) {
      min = f_load_f16(tail + kLineBytes + 2 * h);
      if constexpr (t.scale_bytes > 0) min = f_mul(min, f_set1(-1.0f));
    }
    if constexpr (t.scales == 2) {
      f_store(out->d + h, d);
      f_store(out->min + h, min);
      for (int64_t s = 0; s < 2; ++s) {
        const uint8_t* from = t.has_min ? halves[0] : bytes;
        f_store(out->scales[i][s] + h, f_load_i8(from + s * kPanel + h));
        if constexpr (t.has_min) f_store(out->mins[i][s] + h, f_load_i8(halves[1] + s * kPanel + h));
      }
    } else {
      if constexpr (t.scale_bytes == 0) {
        f_store(out->scales[i][0] + h, d);
        if constexpr (t.has_min) f_store(out->scales[i][1] + h, min);
      } else {
        f_store(out->scales[i][0] + h, f_mul(d, f_load_i8(bytes + h)));
        if constexpr (t.has_min) {
          f_store(out->scales[i][1] + h, f_mul(min, f_load_i8(bytes + kPanel + h)));
        }
      }
    }
  }
}

// Where groups of a panel are: their codes at lines + i * kLines, the tail of their block's scales.
template <WeightType T>
struct GroupPlaces {
  static constexpr WeightTraits kTraits = kTraitsOf<T>;
  static constexpr int64_t kGroups = kTraits.block_values / kGroup;  // in a block
  static constexpr int64_t kBytes = kTraits.block_lines * kLineBytes;
  static constexpr int64_t kStride = kGroups == 1 ? kBytes : kTraits.value_lines * kLineBytes;

  static const uint8_t* lines(const uint8_t* panel, int64_t group) {
    return panel + group / kGroups * kBytes + group % kGroups * kStride;
  }
  static const uint8_t* tail(const uint8_t* panel, int64_t group) {
    return panel + group / kGroups * kBytes + kGroups * kTraits.value_lines * kLineBytes;
  }
};

// Fetches a group's share of a panel. lines: of a block's first group
template <WeightType T>
inline void fetch_group(const uint8_t* lines, int64_t group) {
  constexpr int64_t kShare = GroupPlaces<T>::kBytes / GroupPlaces<T>::kGroups;
  for (int64_t line = 0; line < kShare; line += kLineBytes) __builtin_prefetch(lines + group * kShare + line);
}

// Scales alone of groups [first, first + count) of a panel. REQUIRES: as unpack_groups
template <WeightType T>
void unpack_scales_of(const uint8_t* panel, int64_t first, int64_t count, UnpackedGroups* out) {
  using Places = GroupPlaces<T>;
  for (int64_t i = 0; i < count; ++i) {
    unpack_scales<T>(Places::tail(panel, first + i), (first + i) % Places::kGroups, i, out);
  }
}

// Groups [first, first + count) of a panel. What follows them in memory is fetched meanwhile.
// REQUIRES: count <= kBlockGroups; of blocks of 256, all in one
template <WeightType T>
void unpack_groups(const uint8_t* panel, int64_t first, int64_t count, UnpackedGroups* out) {
  for (int64_t i = 0; i < count; ++i) {
    fetch_group<T>(panel, first + i + kBlockGroups);
    unpack_group<T>(GroupPlaces<T>::lines(panel, first + i), out->values[i][0]);
  }
  unpack_scales_of<T>(panel, first, count, out);
}
using UnpackGroups = void (*)(const uint8_t* panel, int64_t first, int64_t count, UnpackedGroups* out);

// In the order of WeightType.
constexpr UnpackGroups kUnpackGroups[] = {nullptr,
                                          nullptr,
                                          nullptr,
                                          unpack_groups<WeightType::kQ8_0>,
                                          unpack_groups<WeightType::kQ4_0>,
                                          unpack_groups<WeightType::kQ4_1>,
                                          unpack_groups<WeightType::kQ5_0>,
                                          unpack_groups<WeightType::kQ5_1>,
                                          unpack_groups<WeightType::kQ2K>,
                                          unpack_groups<WeightType::kQ3K>,
                                          unpack_groups<WeightType::kQ4K>,
                                          unpack_groups<WeightType::kQ5K>,
                                          unpack_groups<WeightType::kQ6K>,
                                          unpack_groups<WeightType::kIq4Nl>,
                                          unpack_groups<WeightType::kIq4Xs>};

// What a tile of int8 rows takes: up to eight groups of K. Pointers to rows begin at the tile's first.
struct Int8Tile {
  const UnpackedGroups* weights;
  const uint8_t* lines;  // the first group in the panel, for tiles that read codes there
  int64_t groups;
  const int8_t* q;  // at the first group
  int64_t k;        // from one row of q to the next
  const float (*scales)[2 * kBlockGroups];
  const int32_t (*starts)[2 * kBlockGroups];  // of each group, or of both its halves
  const float (*sums)[2 * kBlockGroups];      // of q over both halves
  const float* moments;                       // at the first group
  int64_t row_groups;                         // from one row of moments to the next
  float* chains;                              // [rows][32]
};

inline const WeightTraits& traits_of(WeightType type) {
  return kWeightTraits[static_cast<int>(type)];
}

}  // namespace
}  // namespace kvasir::ops
