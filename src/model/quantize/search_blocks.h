// Blocks of quantised weights: one block of f32 values to the bytes of GGUF.
//
// Pure functions. x: block_values(type) values, all finite. out: the block's bytes. False: a scale or minimum
// does not fit in f16.
#pragma once

#include <cstdint>

#include "ops/numerics.h"

namespace kvasir {

// Q8_0, Q4_0, Q4_1, Q5_0, Q5_1: the formulas of quantize_row.h. REQUIRES: type is one of them.
bool quantize_plain_block(ops::WeightType type, const float* x, uint8_t* out);

// K types and IQ4, by search. A block's groups of 16 or 32 values are fitted one by one (group_fit.h). With F
// the largest factor that the type stores for a group and s, m the groups' scales and minima:
//
//   1. d = s* / F in f16, s* being the scale of the largest magnitude (F is negative in types without
//      minima), and likewise for the minima;
//   2. each group's factors are those within 1 of s / d and m / dmin that leave the least squared error, with
//      codes chosen anew; of equal ones those nearest to s / d and m / dmin;
//   3. d and dmin become those that suit factors and codes best by the normal equations, and step 2 is
//      repeated about the factors that there are; what is better counts. Twice.
//
// IQ4_NL has a group to a block and no factors: steps 1 and 3 are about its own scale.
// REQUIRES: type is one of them; no magnitude exceeds kLargestOfSearch.
bool quantize_by_search(ops::WeightType type, const float* x, uint8_t* out);

// Of 32 codes: the low four bits of code i in the low half of byte i, those of code i + 16 in the high half.
void put_nibbles(const uint8_t* codes, uint8_t* out);

// More than any block of these types can hold, and so small that squares stay finite.
constexpr float kLargestOfSearch = 1073741824.0F;  // 2^30

}  // namespace kvasir
