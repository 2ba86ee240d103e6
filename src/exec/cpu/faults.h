// Seeded faults of the decoder that take more than a line; see base/mutant.h. Not called in a release build.
#pragma once

#include <cstdint>

#include "contract/geometry.h"
#include "contract/step.h"
#include "ops/cpu/kernels.h"

namespace kvasir {

// Replaces a row's partial record of the leaf that holds its own position by one for which its own K and V
// were not rounded to the cache type. `args` is the leaf call for this row alone;
// k and v are the row's own f32 values [head_dim].
void attend_own_unrounded(const ops::Kernels& kernels, ops::AttentionLeafArgs args, const float* k,
                          const float* v);

// A partial record of no position: merging it changes nothing.
void nothing_attended(int64_t heads, int64_t head_dim, float* record);

// The planes of a block in a layer; if it is staged, those of the layer after it.
KvPlanes planes_of_next_layer(const Step& step, const CacheGeometry& geometry, const StepSlice& slice,
                              uint32_t block, uint32_t layer);

// Writes a token's row of X from the f32 row, rounded in another way than the operand of a product: int8 by a
// scale that is rounded to f16 after use, bf16 towards zero, f32 to bf16.
void write_x_with_fault(ops::ActivationType type, const float* row, int64_t k, int64_t token,
                        int64_t block_tokens, void* piece);

}  // namespace kvasir
