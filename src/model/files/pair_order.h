// From RoPE's halves to its pairs: the order of the rows of Q and K.
#pragma once

#include <cstdint>
#include <vector>

#include "model/architectures/model_spec.h"

namespace kvasir {

// The order of rows that makes the values of each pair of RoPE neighbours: row i of the result is row
// order[i]. Of each head's first rope.dim rows the first half become the even ones. Empty: they are so
// already. Of this layer, whose heads may have a size of their own.
std::vector<int64_t> pair_order(const ModelSpec& spec, int32_t layer, int64_t rows);

}  // namespace kvasir
