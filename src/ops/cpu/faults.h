// The seeded faults of the kernels (base/mutant.h) that need more than a changed argument. Used by tests
// only; in a release build nothing calls them.
#pragma once

#include <cstdint>

#include "ops/cpu/kernel_table.h"
#include "ops/kv_layout.h"

namespace kvasir::ops {

// Quantises again, with row 0's scales for every row (kBatchScale) or with scales that are rounded only after
// use (kScaleUnrounded).
void quantize_with_fault(const float* x, int64_t x_stride, const QuantizedRows& out, int64_t row_begin,
                         int64_t row_end);

// Spoils a row that was stored into a run of kQ8_0 (others stay as they are): its values come from the scale
// before that was rounded (kKvScaleUnrounded), or its scale replaces those of the tokens before it in the run
// (kKvScaleShared).
void store_kv_with_fault(const KvShape& shape, const float* row, int64_t lane, bool is_k, uint8_t* run);

// A token's scale of V becomes that of K, of runs of kQ8_0 (kKScaleForV).
void copy_scale_with_fault(const KvShape& shape, int64_t lane, const uint8_t* k_run, uint8_t* v_run);

// The product with the elements of every pair swapped, in rows and weights alike: the even one is then added
// first (kBf16PairSwapped).
void gemm_bf16_with_fault(const KernelTable& table, GemmArgs args);

// The product with the scales of the next group in each block of 256 (kScaleOfNextGroup).
void gemm_int8_with_fault(const KernelTable& table, GemmArgs args);

// Overwrites l of every record: the sum begins at the position of the call's first row and comes to the
// leaf's first positions last (kSumOrderByChunk).
void resum_with_fault(const KernelTable& table, const AttentionLeafArgs& args);

}  // namespace kvasir::ops
