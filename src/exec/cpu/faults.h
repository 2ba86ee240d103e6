// Seeded faults of the decoder that take more than a line; see base/mutant.h. Never called in a release.
#pragma once

#include <cstdint>

#include "contract/geometry.h"
#include "contract/step.h"
#include "ops/cpu/kernels.h"

namespace kvasir {

// Replaces a row's partial record of the leaf that holds its own position by one that saw its own K and V
// as they were before they were rounded to the cache type. `args` is the leaf call for this row alone;
// k and v are the row's own f32 values [head_dim].
void attend_own_unrounded(const ops::Kernels& kernels, ops::AttentionLeafArgs args, const float* k,
                          const float* v);

// The planes of a block in a layer; of one that is staged, those of the layer after it.
KvPlanes planes_of_next_layer(const Step& step, const CacheGeometry& geometry, const StepSlice& slice,
                              uint32_t block, uint32_t layer);

}  // namespace kvasir
