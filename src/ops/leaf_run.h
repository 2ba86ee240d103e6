// A run of whole leaves of a history, and the subtrees of which an AttentionTree over it consists. Whoever
// attends to a run anywhere (a thread, an instance that lent the memory) hands over one partial record for
// each of these subtrees.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace kvasir::ops {

// Leaves [first, end), not empty.
struct LeafRun {
  uint32_t first = 0;
  uint32_t end = 0;
  uint32_t leaves() const { return end - first; }
  friend bool operator==(const LeafRun&, const LeafRun&) = default;
};

// The level of the maximal aligned subtree of `run` that begins at its first leaf: it has 2^level leaves.
inline int first_subtree_level(LeafRun run) {
  const int fits = std::bit_width(run.leaves()) - 1;
  return run.first == 0 ? fits : std::min(fits, std::countr_zero(run.first));
}

// The maximal aligned subtrees of a run, left to right: those that an AttentionTree holds after the run's
// leaves. visit(level, first leaf)
template <typename Visit>
void for_each_subtree(LeafRun run, Visit visit) {
  while (run.first < run.end) {
    const int level = first_subtree_level(run);
    visit(level, run.first);
    run.first += uint32_t{1} << level;
  }
}

// How many they are; 0 of no leaves.
inline uint32_t subtrees_of(LeafRun run) {
  uint32_t count = 0;
  for_each_subtree(run, [&](int, uint32_t) { ++count; });
  return count;
}

}  // namespace kvasir::ops
