// Outputs of products of synthetic operands, computed on the host by chains of fused16.
#pragma once

#include <cstdint>
#include <functional>

#include "apps/gpu/parts.h"

namespace kvasir::gpu_program {

constexpr uint64_t kWeightSeed = 1000;  // of the first copy
constexpr uint64_t kRowSeed = 7;
constexpr int64_t kSampledOutputs = 96;

// An output of the product of synthetic weights and rows, over all of k.
float chained_output(const Product& product, int64_t row, int64_t feature);

// How many of `samples` outputs differ from the chain: the corners, and others that are drawn.
// output(i): what was computed for index row * features + feature.
int64_t wrong_outputs(const Product& product, int64_t rows, int64_t samples,
                      const std::function<float(int64_t)>& output);

}  // namespace kvasir::gpu_program
