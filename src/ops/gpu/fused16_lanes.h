// fused16 for sixteen outputs side by side, with the same bits: the core of the host twin.
#pragma once

#include <cstdint>

#include "ops/cpu/isa.h"

namespace kvasir::ops {

// Outputs that are computed side by side.
constexpr int64_t kFusedLanes = 16;

// Chains of fused16 over k, ascending, 16 at a time: `rows` rows by the sixteen columns of a panel.
// x: row 0 of [rows][k], x_stride elements apart; panel: [k][16]; out: row 0 of [rows][16] accumulators,
// out_stride floats apart, which are read and written. Any values are allowed; those that are rare in models
// are slow. Pure, thread-safe, and independent of whether subnormals are flushed. REQUIRES: k is a multiple
// of 16
using Fused16Chains = void (*)(const uint16_t* x, int64_t x_stride, int64_t rows, const uint16_t* panel,
                               int64_t k, float* out, int64_t out_stride);

// Of an instruction set; all give the same bits. REQUIRES: is_supported(isa)
Fused16Chains fused16_chains(IsaClass isa);

}  // namespace kvasir::ops

// Each from a source of its own; fused16_chains() is the way to them.
extern "C" {
extern const kvasir::ops::Fused16Chains kvasir_fused16_portable;
extern const kvasir::ops::Fused16Chains kvasir_fused16_avx2;
extern const kvasir::ops::Fused16Chains kvasir_fused16_avx512;
}
