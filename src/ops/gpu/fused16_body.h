// Chains of fused16 in sixteen lanes, by the compilers' vector types. Included once by each fused16_<isa>.cc,
// which defines KV_VECTOR_BYTES and is compiled for its instruction set; all in an unnamed namespace, so that
// no function compiled for a wide set can stand in for a common one.
//
// Ordinary numbers only: where a chain meets infinities, subnormals or sums that 31 bits do not hold, it says
// so, and is computed once more by fused16.
#pragma once

#include <cstdint>
#include <cstring>

#include "ops/gpu/fused16.h"
#include "ops/gpu/fused16_lanes.h"

namespace kvasir::ops {
namespace {

constexpr int kWidth = KV_VECTOR_BYTES / 4;
constexpr int kSteps = kFusedProducts;
constexpr int kRowTile = 4;  // rows that share the decoding of a panel
// Exponents that stand for zero and for what is not finite: sums of one of them with any other are still
// beyond all ordinary ones, and a sum of both counts as not finite.
constexpr int kOfZero = -10000;
constexpr int kOfNotFinite = 30000;
constexpr int kLeastExponent = -133;
// The largest exponents of a step for which its result is 0 or a normal number, or infinite where it is too
// large.
constexpr int kLowest = -100, kHighest = 152;

using Floats = float __attribute__((vector_size(KV_VECTOR_BYTES)));
using Ints = int32_t __attribute__((vector_size(KV_VECTOR_BYTES)));
using Halves = uint16_t __attribute__((vector_size(KV_VECTOR_BYTES / 2)));

#define KV_ALWAYS_INLINE __attribute__((always_inline)) inline

// Elements as significand * 2^(exponent + 1), |significand| < 1.
struct Decoded {
  Floats significand;
  Ints exponent;
};

KV_ALWAYS_INLINE Ints larger_of(const Ints& a, const Ints& b) {
  return a > b ? a : b;
}

KV_ALWAYS_INLINE void decode(const uint16_t* from, Decoded& out) {
  Halves halves;
  std::memcpy(&halves, from, sizeof(halves));
  const Ints bits = __builtin_convertvector(halves, Ints);
  const Ints field = (bits >> 7) & 0xFF;
  const Ints fraction = bits & 0x7F;
  const Ints whole = field == 0 ? fraction : (fraction | 0x80);
  const Floats magnitude = __builtin_convertvector(whole, Floats) * 0x1p-8f;
  out.significand = (Floats)((Ints)magnitude | ((bits & 0x8000) << 16));
  const Ints finite = whole == 0 ? Ints{} + kOfZero : larger_of(field, Ints{} + 1) - 127;
  out.exponent = field == 0xFF ? Ints{} + kOfNotFinite : finite;
}

// significand * 2^places, cut toward zero. REQUIRES: |significand| < 2, places <= 27
KV_ALWAYS_INLINE Ints cut(const Floats& significand, const Ints& places) {
  // Far below one it is 0 whatever its scale; so no product is subnormal.
  return __builtin_convertvector(significand * (Floats)((larger_of(places, Ints{} - 100) + 127) << 23), Ints);
}

// One step: x is sixteen elements of a row, w those of the columns. Lanes of `unordinary` become not 0 where
// the result is not right.
KV_ALWAYS_INLINE void step(const float* x, const int32_t* x_exponent, const Decoded* w, Floats& acc,
                           Ints& unordinary) {
  const Ints bits = (Ints)acc;
  const Ints field = (bits >> 23) & 0xFF;
  const Ints exponent = field - 127;
  Ints largest = field == 0 ? Ints{} + kLeastExponent : exponent;
  for (int k = 0; k < kSteps; ++k) largest = larger_of(w[k].exponent + x_exponent[k], largest);
  // In units of 2^(largest - 25).
  Ints sum = {};
  for (int k = 0; k < kSteps; ++k) {
    sum += cut(w[k].significand * x[k], w[k].exponent + (x_exponent[k] + 27) - largest);
  }
  const Floats significand = (Floats)((bits & (INT32_MIN | 0x7FFFFF)) | 0x3F800000);
  const Ints own = field == 0 ? Ints{} : cut(significand, exponent - largest + 25);
  const Ints total = sum + own;
  const Ints sign = total >> 31;
  const Ints magnitude = (total ^ sign) - sign;
  // To nearest, and one step back where that is above it.
  const Floats nearest = __builtin_convertvector(magnitude, Floats);
  const Ints above = (magnitude - __builtin_convertvector(nearest, Ints)) >> 31;
  const Ints bounded = larger_of(largest, Ints{} + kLowest);
  const Floats scale = (Floats)((bounded + (127 - 25)) << 23);
  acc = (Floats)((Ints)((Floats)((Ints)nearest + above) * scale) | (sign & INT32_MIN));
  // Nearly 16 times 4 2^25: `own` does not fit beside it.
  const Ints high = (sum ^ (sum >> 31)) > 0x7B000000;
  unordinary |= high | (largest > kHighest) | ((largest < kLowest) & (total != 0)) | (field == 0xFF) |
                ((field == 0) & ((bits & 0x7FFFFF) != 0));
}

// The lanes from `lane` on, as many as a vector has. acc: the accumulators before and after. True: all right.
KV_ALWAYS_INLINE bool chain_vector(const uint16_t* const* x, int64_t rows, const uint16_t* panel, int64_t k,
                                   Floats* acc) {
  Ints unordinary = {};
  for (int64_t i = 0; i < k; i += kSteps) {
    Decoded w[kSteps];
    for (int s = 0; s < kSteps; ++s) decode(panel + (i + s) * kFusedLanes, w[s]);
    for (int64_t r = 0; r < rows; ++r) {
      float significand[kSteps];
      int32_t exponent[kSteps];
      for (int s = 0; s < kSteps; s += kWidth) {
        Decoded part;
        decode(x[r] + i + s, part);
        std::memcpy(significand + s, &part.significand, sizeof(part.significand));
        std::memcpy(exponent + s, &part.exponent, sizeof(part.exponent));
      }
      step(significand, exponent, w, acc[r], unordinary);
    }
  }
  int32_t any = 0;
  for (int j = 0; j < kWidth; ++j) any |= unordinary[j];
  return any == 0;
}

void chain_by_step(const uint16_t* x, const uint16_t* panel, int64_t k, float* acc) {
  for (int64_t i = 0; i < k; i += kSteps) {
    uint16_t column[kSteps];
    for (int s = 0; s < kSteps; ++s) column[s] = panel[(i + s) * kFusedLanes];
    *acc = fused16(*acc, x + i, column);
  }
}

void chains(const uint16_t* x, int64_t x_stride, int64_t rows, const uint16_t* panel, int64_t k, float* out,
            int64_t out_stride) {
  for (int64_t first = 0; first < rows; first += kRowTile) {
    const int64_t count = rows - first < kRowTile ? rows - first : kRowTile;
    const uint16_t* row[kRowTile];
    for (int64_t r = 0; r < count; ++r) row[r] = x + (first + r) * x_stride;
    for (int64_t lane = 0; lane < kFusedLanes; lane += kWidth) {
      float* at = out + first * out_stride + lane;
      Floats acc[kRowTile];
      for (int64_t r = 0; r < count; ++r) std::memcpy(&acc[r], at + r * out_stride, sizeof(Floats));
      if (chain_vector(row, count, panel + lane, k, acc)) {
        for (int64_t r = 0; r < count; ++r) std::memcpy(at + r * out_stride, &acc[r], sizeof(Floats));
        continue;
      }
      for (int64_t r = 0; r < count; ++r) {
        for (int64_t j = 0; j < kWidth; ++j) {
          chain_by_step(row[r], panel + lane + j, k, at + r * out_stride + j);
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvasir::ops
