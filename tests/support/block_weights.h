// GGUF's blocks once more, one element at a time and straight from the format's description: what the
// library's reading and every product are compared with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/random.h"
#include "ops/numerics.h"

namespace kvasir::test {

// What the codes of MXFP4 stand for, twice.
constexpr int kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
// What the codes of IQ4_NL and IQ4_XS stand for.
constexpr int kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// A quantised weight is (scale_factor × scale) × q, or that less or plus a minimum (min_factor × min).
struct BlockWeight {
  int q = 0;
  float scale = 0;       // the block's, from f16
  int scale_factor = 1;  // of the 16 or 32 values around it
  // From f16, times the scale where it is a zero point; negative where the format subtracts it.
  float min = 0;
  int min_factor = 1;

  float value() const;
};
// Element i of a row. REQUIRES: is_quantized(type)
BlockWeight block_weight(ops::WeightType type, const uint8_t* row, int64_t i);

// GGUF files do not have it.
bool is_of_folders(ops::WeightType type);

// What the format has: a minimum; a scale for each 16 values in place of 32.
bool has_minimum(ops::WeightType type);
bool has_scale_per_16(ops::WeightType type);

// Any bytes are blocks, but for their f16 numbers: places in a block of the scale and, or -1, the minimum.
// The scale of MXFP4 is a byte: it has the place of an f16's upper byte.
struct HalfPlaces {
  int64_t scale = 0;
  int64_t min = -1;
};
HalfPlaces half_places(ops::WeightType type);
// `blocks` blocks of any bits, with finite scales (of either sign for a K type's) and minima of a healthy
// size.
std::vector<uint8_t> random_blocks(Random& random, ops::WeightType type, int64_t blocks);

}  // namespace kvasir::test
