// The committer's arithmetic over the frames of one tier, for whoever plans with it: what it says fits will
// commit.
#pragma once

#include <array>
#include <cstdint>

#include "contract/geometry.h"

namespace kvasir {

struct FrameBudget {
  // Per frame class: frames free in slabs that are carved for it; frames of blocks that no sequence
  // references (evicted on demand); frames that one slab is carved into.
  std::array<uint32_t, kFrameClasses> free{};
  std::array<uint32_t, kFrameClasses> idle{};
  std::array<uint32_t, kFrameClasses> per_slab{};
  uint32_t empty_slabs = 0;
  // Frames that promises hold for their owners: allocated or evicted for nobody else.
  std::array<uint32_t, kFrameClasses> promised{};
  // Frames that nobody references any more, but that steps or transfers in flight may still use, and those
  // that are given up as soon as another copy is ready: free or idle when those have ended.
  std::array<uint32_t, kFrameClasses> pinned{};
  std::array<uint32_t, kFrameClasses> total{};

  // Frames that anyone may still take: below zero only if promises exceed what there is, which is a bug.
  int64_t available(FrameClass c) const {
    const auto i = static_cast<size_t>(c);
    return int64_t{free[i]} + idle[i] + int64_t{empty_slabs} * per_slab[i] - promised[i];
  }
  int64_t available_cells() const { return available(FrameClass::kKvPlane) / kFramesPerKvCell; }
  int64_t coming_cells() const {
    return pinned[static_cast<size_t>(FrameClass::kKvPlane)] / kFramesPerKvCell;
  }
};

}  // namespace kvasir
