// Shares memory among requests that together want more than there is.
//
// Source: CacheOpt, Section 3.3.2, the third case. The paper calls w the weight of the *cut* and then gives
// A_i = A' w_i / sum w, which gives most to the request that it wants to cut most. Here the excess is shared:
//
//   A_i = M_i - E w_i / sum w,  E = sum M - A',  w_i = (RT_i / sum RT) (s_i / sum s),
//
// within [least_i, M_i]: if a request cannot be cut by so much, the others bear the rest.
//
//   symbol   here                      unit
//   M_i      MemoryDemand::wanted      cells
//   A'       `available`               cells
//   w_i      MemoryDemand::weight      any, the same for all: slack times expected output
//
// share_by_weight() is the formula as printed, in which s_i is the length of the prompt.
#pragma once

#include <cstdint>
#include <vector>

namespace kvasir {

struct MemoryDemand {
  uint32_t wanted = 0;
  uint32_t least = 0;  // no more than `wanted`
  double weight = 0;   // not below 0; if all requests that can be cut have 0, they are cut equally
};

// A_i of each, in order. Their sum is at most `available`; if the sum of `least` exceeds it, each gets
// `least`.
std::vector<uint32_t> share_excess(const std::vector<MemoryDemand>& demands, uint64_t available);

// A_i = A' w_i / sum w, within [least_i, M_i]: what a request cannot have beyond M_i, or must have beyond its
// share, comes of the others by their weights. The same bounds on the sum.
std::vector<uint32_t> share_by_weight(const std::vector<MemoryDemand>& demands, uint64_t available);

}  // namespace kvasir
