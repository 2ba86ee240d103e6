// Which share of a device's threads computes dropped cells again while the others decode.
//
// Source: eLLM, Section 4.3.2, Equations 8 and 9: with V_K1 and V_K2, the work of the two kernels that are
// fused, of T threads delta = T V_K1 / (V_K1 + V_K2) go to the first, in warps of 32, at least one to each. A
// hint to executors: it never changes bits. Equation 8's output layer does not belong to it, and Equation 9's
// belongs to a token once.
#pragma once

#include <cstdint>

namespace kvasir {

constexpr uint32_t kWarpThreads = 32;
constexpr uint32_t kBlockThreads = 1024;

// Threads of `total` for what is computed again; 0: there is nothing of it. REQUIRES: total is a multiple of
// 32 and at least 64
uint32_t again_threads(double again_work, double decode_work, uint32_t total = kBlockThreads);

}  // namespace kvasir
