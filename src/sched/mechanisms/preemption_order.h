// Who is preempted first: a loose bound, much left to do, little memory to lose.
//
// Source: CacheOpt, Section 3.4. By classes, so that what is nearly the same counts as the same:
//
//   factor            first to be preempted   classes
//   TBT bound         the loosest             up to 0.2 s, 0.5 s, 2 s, and beyond (or none)
//   remaining output  the longest             of 128 tokens
//   memory held       the least               of 128 tokens
//
// Ties: the latest arrival.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "contract/view.h"

namespace kvasir {

// 0 for the tightest bounds.
uint32_t tbt_class(const Slo& slo);
uint32_t length_class_of(uint32_t tokens);

// The running sequences, the first of which is to be preempted first. `rest`: tokens of output that one is
// believed to have before it.
std::vector<const SeqView*> preemption_order(const View& view,
                                             const std::function<uint32_t(const SeqView&)>& rest);

}  // namespace kvasir
