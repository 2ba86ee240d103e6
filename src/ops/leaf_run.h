// A run of whole leaves of a history, and the subtrees that make up an AttentionTree over it. Each executor
// of attention over a run (a thread, or an instance that lent the memory) returns one partial record per
// subtree.
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

// The number of these subtrees; 0 if the run has no leaves.
inline uint32_t subtrees_of(LeafRun run) {
  uint32_t count = 0;
  for_each_subtree(run, [&](int, uint32_t) { ++count; });
  return count;
}

}  // namespace kvasir::ops
