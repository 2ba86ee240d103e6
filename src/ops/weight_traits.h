// What each weight type is: its blocks in GGUF, and how the CPU's panels hold it. The one place that says so.
//
// Data only, for the reason that cpu/views.h gives. packed_matrix.h draws the panels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/numerics.h"

namespace kvasir::ops {

// The values of lookup types, each plus the offset: of IQ4, and of MXFP4 (twice those of e2m1).
constexpr uint8_t kIq4Lookup[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
constexpr uint8_t kMxfp4Lookup[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};

// A quantised weight of a group of 32 is code - offset (lookup: a table's value) times a scale, plus a
// minimum where the type has one. The scale is d, or d times a small integer where the block has several.
// Blocks of 128 have one scale and one minimum for all their groups.
struct WeightTraits {
  WeightType type;
  const char* name;  // as GGUF writes it; of kZ4 and kZ4x128 ours
  int32_t block_values = 1;
  int32_t block_bytes = 0;  // of GGUF's block; kZ4, kZ4x128: d, m, and 16 bytes for each 32 as in Q4_1
  int32_t low_bits = 0;     // of a packed code: 2, 4 or 8, and as many more as high_bits says
  int32_t high_bits = 0;
  int32_t offset = 0;               // the unsigned value that products multiply with is larger by this
  const uint8_t* lookup = nullptr;  // [16]: the code is an index into it; null: it is the value
  bool bf16_scale = false;          // d is bf16, not f16: GGUF's block has its exponent
  bool has_min = false;             // f16, in K types subtracted
  bool scaled_min = false;          // the minimum is d times that
  int32_t scales = 1;               // scales in a group of 32: 2 means one for each 16
  int32_t scale_bytes = 0;          // for each column in a group, beside d and the minimum
  // Lines of 64 bytes in a panel, for 32 columns: low and all bits of a group's codes; all of a block.
  int32_t low_lines = 0;
  int32_t value_lines = 0;
  int32_t block_lines = 0;

  static consteval WeightTraits with_lines(WeightTraits t) {
    t.low_lines = 2 * t.low_bits;
    t.value_lines = t.low_lines + 2 * t.high_bits;
    const int32_t groups = t.block_values / 32;
    t.block_lines = groups * t.value_lines + 1 + (t.has_min ? 1 : 0) + groups * t.scale_bytes / 2;
    return t;
  }
};

// In the order of WeightType.
constexpr WeightTraits kWeightTraits[] = {
    {.type = WeightType::kF32, .name = "F32", .block_bytes = 4},
    {.type = WeightType::kF16, .name = "F16", .block_bytes = 2},
    {.type = WeightType::kBf16, .name = "BF16", .block_bytes = 2},
    WeightTraits::with_lines({.type = WeightType::kQ8_0,
                              .name = "Q8_0",
                              .block_values = 32,
                              .block_bytes = 34,
                              .low_bits = 8,
                              .offset = 128}),
    WeightTraits::with_lines({.type = WeightType::kQ4_0,
                              .name = "Q4_0",
                              .block_values = 32,
                              .block_bytes = 18,
                              .low_bits = 4,
                              .offset = 8}),
    WeightTraits::with_lines({.type = WeightType::kQ4_1,
                              .name = "Q4_1",
                              .block_values = 32,
                              .block_bytes = 20,
                              .low_bits = 4,
                              .has_min = true}),
    WeightTraits::with_lines({.type = WeightType::kQ5_0,
                              .name = "Q5_0",
                              .block_values = 32,
                              .block_bytes = 22,
                              .low_bits = 4,
                              .high_bits = 1,
                              .offset = 16}),
    WeightTraits::with_lines({.type = WeightType::kQ5_1,
                              .name = "Q5_1",
                              .block_values = 32,
                              .block_bytes = 24,
                              .low_bits = 4,
                              .high_bits = 1,
                              .has_min = true}),
    WeightTraits::with_lines({.type = WeightType::kQ2K,
                              .name = "Q2_K",
                              .block_values = 256,
                              .block_bytes = 84,
                              .low_bits = 2,
                              .has_min = true,
                              .scales = 2,
                              .scale_bytes = 2}),
    WeightTraits::with_lines({.type = WeightType::kQ3K,
                              .name = "Q3_K",
                              .block_values = 256,
                              .block_bytes = 110,
                              .low_bits = 2,
                              .high_bits = 1,
                              .offset = 4,
                              .scales = 2,
                              .scale_bytes = 2}),
    WeightTraits::with_lines({.type = WeightType::kQ4K,
                              .name = "Q4_K",
                              .block_values = 256,
                              .block_bytes = 144,
                              .low_bits = 4,
                              .has_min = true,
                              .scale_bytes = 2}),
    WeightTraits::with_lines({.type = WeightType::kQ5K,
                              .name = "Q5_K",
                              .block_values = 256,
                              .block_bytes = 176,
                              .low_bits = 4,
                              .high_bits = 1,
                              .has_min = true,
                              .scale_bytes = 2}),
    WeightTraits::with_lines({.type = WeightType::kQ6K,
                              .name = "Q6_K",
                              .block_values = 256,
                              .block_bytes = 210,
                              .low_bits = 4,
                              .high_bits = 2,
                              .offset = 32,
                              .scales = 2,
                              .scale_bytes = 2}),
    WeightTraits::with_lines({.type = WeightType::kIq4Nl,
                              .name = "IQ4_NL",
                              .block_values = 32,
                              .block_bytes = 18,
                              .low_bits = 4,
                              .offset = 128,
                              .lookup = kIq4Lookup}),
    WeightTraits::with_lines({.type = WeightType::kIq4Xs,
                              .name = "IQ4_XS",
                              .block_values = 256,
                              .block_bytes = 136,
                              .low_bits = 4,
                              .offset = 128,
                              .lookup = kIq4Lookup,
                              .scale_bytes = 1}),
    WeightTraits::with_lines({.type = WeightType::kMxfp4,
                              .name = "MXFP4",
                              .block_values = 32,
                              .block_bytes = 17,
                              .low_bits = 4,
                              .offset = 16,
                              .lookup = kMxfp4Lookup,
                              .bf16_scale = true}),
    // A group's zero point, negated, has the place of the minimum: d (q - z) without any rounding.
    WeightTraits::with_lines({.type = WeightType::kZ4,
                              .name = "Z4",
                              .block_values = 32,
                              .block_bytes = 20,
                              .low_bits = 4,
                              .has_min = true,
                              .scaled_min = true}),
    WeightTraits::with_lines({.type = WeightType::kZ4x128,
                              .name = "Z4_128",
                              .block_values = 128,
                              .block_bytes = 68,
                              .low_bits = 4,
                              .has_min = true,
                              .scaled_min = true}),
};
template <WeightType kType>
constexpr WeightTraits kTraitsOf = kWeightTraits[static_cast<size_t>(kType)];

}  // namespace kvasir::ops
