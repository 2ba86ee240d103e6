// One step of a Hopper tensor core in bf16, in integers: what mma.sync.m16n8k16 and wgmma.m64nNk16 with f32
// accumulators compute for each of their outputs.
//
// The rule is the published model of the instruction (MMA-Sim, arXiv 2511.10909), which its authors validated
// on hardware. It names no order inside the 16 products, so an output depends on its row, its column and its
// accumulator alone. Pure and thread-safe; independent of the floating-point mode.
#pragma once

#include <cstdint>

namespace kvasir::ops {

// Products of one step.
constexpr int64_t kFusedProducts = 16;

// accumulator + a[0] b[0] + ... + a[15] b[15], a and b in bf16:
//   1. Each factor is s 2^e with 1 <= |s| < 2; of a subnormal one, e is -126 and |s| < 1. A product has the
//      factors' s multiplied and e added, and is not normalised. The accumulator is s 2^e alike.
//   2. E is the largest e of the 17 summands that are not zero, and at least -133.
//   3. Each summand is cut toward zero to a multiple of 2^(E - 25). These are added without a rounding.
//   4. The sum is cut toward zero to f32, subnormal results included. From 2^128 on it is infinity; -0 is +0.
// A summand that is infinite makes the result so. Infinities of both signs, infinity times zero and a summand
// that is not a number give 0x7FFFFFFF.
float fused16(float accumulator, const uint16_t* a, const uint16_t* b);

}  // namespace kvasir::ops
