// The seeded faults of the kernels (base/mutant.h) that need more than a changed argument. Used by tests
// only; in a release build nothing calls them.
#pragma once

#include <cstdint>

#include "ops/cpu/kernel_table.h"

namespace kvasir::ops {

// Quantises again, with row 0's scales for every row (kBatchScale) or with scales that are rounded only after
// use (kScaleUnrounded).
void quantize_with_fault(const float* x, int64_t x_stride, const QuantizedRows& out, int64_t row_begin,
                         int64_t row_end);

// The product with the elements of every pair swapped, in rows and weights alike: the even one is then added
// first (kBf16PairSwapped).
void gemm_bf16_with_fault(const KernelTable& table, GemmArgs args);

// Overwrites l of every record: the sum begins at the position of the call's first row and comes to the
// leaf's first positions last (kSumOrderByChunk).
void resum_with_fault(const KernelTable& table, const AttentionLeafArgs& args);

}  // namespace kvasir::ops
