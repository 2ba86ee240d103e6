// The number of positions in one leaf of attention.
#pragma once

#include <cstdint>

namespace kvasir {

// A leaf is an aligned run of this many positions of a sequence. The kernels compute attention leaf by leaf
// (ops/attention_tree.h), so attention outside a sequence's own step covers whole leaves. Part of the
// numerics: another number gives other bits.
constexpr uint32_t kLeafTokens = 256;

}  // namespace kvasir
