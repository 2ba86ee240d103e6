// Rows of f32 as GGUF's blocks of quantised weights.
//
// Pure functions: the bytes depend on type and values alone, not on threads, instruction set or
// floating-point mode. No file of activations ("importance matrix") is used: every value of a row counts the
// same.
//
// Blocks of 32 without search are those that the Python package gguf writes, bit for bit. With a the value of
// the largest magnitude (the first of several), and quotients, products and sums rounded to f32 one by one:
//   Q8_0        d = |a| / 127;          q = round(x · (1/d)), half away from zero
//   Q4_0, Q5_0  d = a / -n, n = 8, 16;  q = min(trunc(x · (1/d) + n + 0.5), 2n - 1)
//   Q4_1, Q5_1  d = (max - min) / n, n = 15, 31;  q = min(trunc((x - min) · (1/d) + 0.5), n)
// Where d is 0, or so small that 1/d is infinite, 0 stands for 1/d. d and min are then rounded to f16, to
// nearest even; codes are not chosen again.
//
// K types and IQ4 are found by a search for the least squared error, see group_fit.h and search_blocks.h.
#pragma once

#include <cstddef>
#include <span>

#include "base/status.h"
#include "ops/numerics.h"

namespace kvasir {

// Raised by every change of the bytes that quantize_row writes, or of the types that a recipe gives. Part of
// the numerics id of models that are quantised when they are loaded.
constexpr int kQuantizerVersion = 2;

// Writes row_bytes(type, row.size()) bytes to `out`, for any WeightType (F16 and BF16: rounded to nearest
// even). kInvalidArgument: a value is NaN or infinite, or too large for the type; the message begins with the
// value's place, as "value 17 is NaN". REQUIRES: the row is whole blocks of `type`.
Status quantize_row(ops::WeightType type, std::span<const float> row, std::byte* out);

}  // namespace kvasir
