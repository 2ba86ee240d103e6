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
  // As GroupScales has them: of both halves of a group with two scales, else [0].
  alignas(64) float scales[kBlockGroups][2][kPanel];
  alignas(64) float mins[kBlockGroups][2][kPanel];
};

// The bits of lines that hold kBits of a code, for quad kQuad and columns 16h.., put at bit kTo.
template <int kBits, int kQuad, int kHalf, int kTo>
KV_INLINE B unpack_bits(const uint8_t* lines) {
  constexpr int kQuads = 4 / kBits;  // in a line
  constexpr int kShift = kBits * (2 * (kQuad % kQuads) + kHalf) - kTo;
  return b_and(b_shift<kShift>(b_load(lines + kQuad / kQuads * kLineBytes)), ((1 << kBits) - 1) << kTo);
}

// Four k of sixteen columns as the unsigned bytes that a product multiplies with.
template <WeightType T, int kQuad, int kHalf>
KV_INLINE B unpack_bytes(const uint8_t* lines) {
  constexpr WeightTraits t = kTraitsOf<T>;
  if constexpr (t.low_bits == 8) {
    return b_load(lines + (2 * kQuad + kHalf) * kLineBytes);
  } else {
    B v = unpack_bits<t.low_bits, kQuad, kHalf, 0>(lines);
    if constexpr (t.high_bits > 0) {
      v = b_or(v, unpack_bits<t.high_bits, kQuad, kHalf, t.low_bits>(lines + t.low_lines * kLineBytes));
    }
    if constexpr (t.lookup != nullptr) v = b_lookup(t.lookup, v);
    return v;
  }
}

// What becomes of codes: bytes with the offset included, values with their sign, or nothing.
enum class Codes { kUnsigned, kSigned, kNone };

// All lines of a group from line kLine on. out: [kByteLines][64]
template <WeightType T, Codes kCodes, int kLine = 0>
inline void unpack_group(const uint8_t* lines, uint8_t* out) {
  if constexpr (kCodes != Codes::kNone && kLine < kByteLines) {
    B v = unpack_bytes<T, kLine / 2, kLine % 2>(lines);
    if constexpr (kCodes == Codes::kSigned && kTraitsOf<T>.offset > 0) v = b_sub(v, kTraitsOf<T>.offset);
    b_store(out + kLine * kLineBytes, v);
    unpack_group<T, kCodes, kLine + 1>(lines, out);
  }
}

// The scales and minima of one group, out of a panel: of sixteen columns from `at` on. s: the half of a group
// with two scales, else 0.
template <WeightType T>
class GroupScales {
 public:
  // tail: of the block's scales; the group is number `index` of the block.
  GroupScales(const uint8_t* tail, int64_t index)
      : tail_(tail),
        bytes_(tail + (kTraits.has_min ? 2 : 1) * kLineBytes + index * kTraits.scale_bytes * kPanel) {
    if constexpr (kShared) {
      b_store(nibbles_[0], b_and(b_load(bytes_), 15));
      b_store(nibbles_[1], b_and(b_shift<4>(b_load(bytes_)), 15));
    }
  }

  // What values are multiplied with.
  F scale(int64_t s, int64_t at) const {
    const F d = kTraits.bf16_scale ? f_load_bf16(tail_ + 2 * at) : f_load_f16(tail_ + 2 * at);
    if constexpr (kTraits.scale_bytes == 0) return d;
    return f_mul(d, f_load_i8((kShared ? nibbles_[0] : bytes_) + s * kPanel + at));
  }
  // What is added to them.
  F minimum(int64_t s, int64_t at) const {
    const F min = f_load_f16(tail_ + kLineBytes + 2 * at);
    if constexpr (kTraits.scaled_min) return f_mul(scale(s, at), min);
    if constexpr (kTraits.scale_bytes == 0) return min;
    const F factor = f_load_i8((kShared ? nibbles_[1] : bytes_ + kPanel) + s * kPanel + at);
    return f_mul(f_sub(f_set1(-0.0f), min), factor);  // K types subtract it
  }

 private:
  static constexpr WeightTraits kTraits = kTraitsOf<T>;
  static constexpr bool kShared = kTraits.scales == 2 && kTraits.has_min;  // bytes hold scale and minimum

  const uint8_t* tail_;
  const uint8_t* bytes_;
  alignas(64) uint8_t nibbles_[2][kShared ? kLineBytes : 1];
};
// The same of groups that are unpacked.
class UnpackedScales {
 public:
  UnpackedScales(const UnpackedGroups& groups, int64_t group) : groups_(groups), group_(group) {}
  F scale(int64_t s, int64_t at) const { return f_load(groups_.scales[group_][s] + at); }
  F minimum(int64_t s, int64_t at) const { return f_load(groups_.mins[group_][s] + at); }

 private:
  const UnpackedGroups& groups_;
  const int64_t group_;
};

template <WeightType T>
inline void unpack_scales(const GroupScales<T>& from, int64_t i, UnpackedGroups* out) {
  for (int64_t s = 0; s < kTraitsOf<T>.scales; ++s) {
    for (int64_t at = 0; at < kPanel; at += 16) {
      f_store(out->scales[i][s] + at, from.scale(s, at));
      if constexpr (kTraitsOf<T>.has_min) f_store(out->mins[i][s] + at, from.minimum(s, at));
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

  static constexpr int64_t kShare = kBytes / kGroups;  // with scales

  static const uint8_t* lines(const uint8_t* panel, int64_t group) {
    return panel + group / kGroups * kBytes + group % kGroups * kStride;
  }
  static GroupScales<T> scales(const uint8_t* panel, int64_t group) {
    return {panel + group / kGroups * kBytes + kGroups * kTraits.value_lines * kLineBytes, group % kGroups};
  }
};

// Fetches a group's share of a panel.
template <WeightType T>
inline void fetch_group(const uint8_t* panel, int64_t group) {
  constexpr int64_t kShare = GroupPlaces<T>::kShare;
  for (int64_t line = 0; line < kShare; line += kLineBytes) __builtin_prefetch(panel + group * kShare + line);
}

// Groups [first, first + count) of a panel. What follows them in memory is fetched meanwhile.
// REQUIRES: count <= kBlockGroups; of blocks of 256, all in one
template <WeightType T, Codes kCodes>
void unpack_groups(const uint8_t* panel, int64_t first, int64_t count, UnpackedGroups* out) {
  for (int64_t i = 0; i < count; ++i) {
    fetch_group<T>(panel, first + i + kBlockGroups);
    unpack_group<T, kCodes>(GroupPlaces<T>::lines(panel, first + i), out->values[i][0]);
    unpack_scales<T>(GroupPlaces<T>::scales(panel, first + i), i, out);
  }
}
using UnpackGroups = void (*)(const uint8_t* panel, int64_t first, int64_t count, UnpackedGroups* out);

// A table by WeightType: of<T>() for each quantised type, an empty entry for the others.
template <typename Entry>
struct ByType {
  Entry entries[sizeof(kWeightTraits) / sizeof(kWeightTraits[0])] = {};
  const Entry& operator[](WeightType type) const { return entries[static_cast<int>(type)]; }
};
template <typename Entry, typename Of, int kType = 0>
constexpr void fill_by_type(ByType<Entry>& table, const Of& of) {
  constexpr int kTypes = sizeof(kWeightTraits) / sizeof(kWeightTraits[0]);
  if constexpr (kType < kTypes) {
    constexpr auto kThis = static_cast<WeightType>(kType);
    if constexpr (kTraitsOf<kThis>.block_values > 1) {
      table.entries[kType] = of.template operator()<kThis>();
    }
    fill_by_type<Entry, Of, kType + 1>(table, of);
  }
}
template <typename Entry, typename Of>
constexpr ByType<Entry> by_type(const Of& of) {
  ByType<Entry> table;
  fill_by_type(table, of);
  return table;
}

constexpr ByType<UnpackGroups> kUnpackGroups =
    by_type<UnpackGroups>([]<WeightType T>() -> UnpackGroups { return unpack_groups<T, Codes::kUnsigned>; });

inline const WeightTraits& traits_of(WeightType type) {
  return kWeightTraits[static_cast<int>(type)];
}

}  // namespace
}  // namespace kvasir::ops
