// The order of preemption: first the requests with a loose bound, much left to do and little memory to lose.
//
// Source: CacheOpt, Section 3.4. Each factor is divided into classes, so that nearly equal values count as
// equal:
//
//   factor            first to be preempted   classes
//   TBT bound         the loosest             up to 0.2 s, 0.5 s, 2 s, and beyond (or none)
//   remaining output  the longest             of 128 tokens
//   memory held       the least               of 128 tokens
//
// Of equals the latest arrival is preempted first.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "contract/view.h"

namespace kvasir {

// 0 for the tightest bounds.
uint32_t tbt_class(const Slo& slo);
uint32_t length_class_of(uint32_t tokens);

// The running sequences, the first to be preempted at the front. `rest`: the expected remaining output tokens
// of a sequence.
std::vector<const SeqView*> preemption_order(const View& view,
                                             const std::function<uint32_t(const SeqView&)>& rest);

}  // namespace kvasir
