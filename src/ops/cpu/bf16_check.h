// Whether a CPU's product of bf16 pairs gives the bits that the numerics promise.
//
// vdpbf16ps is specified as two fma, the odd element first, subnormals flushed. A CPU that did it otherwise
// (a single rounding, the even element first) would be seen here, and two fma used in its place.
#pragma once

#include <cstdint>

namespace kvasir::ops {

// Sixteen lanes of out = fma(x even, w even, fma(x odd, w odd, acc)); a dword of x or w is a pair of bf16,
// the even element in its low half. out does not overlap the inputs.
using DotPairs = void (*)(const float* acc, const uint32_t* x, const uint32_t* w, float* out);

// True if `dot` gives the bits of two fma under flush-to-zero (not a number is that, whatever its bits) in
// some two thousand fixed cases: ordinary ones, cancellations, results about the smallest normal, subnormal
// inputs, zeros, infinities. Takes well under a millisecond; thread-safe; leaves the calling thread's
// floating-point mode as it was.
bool gives_pair_chain(DotPairs dot);

}  // namespace kvasir::ops
