// BlockMap's counting: of a block for its owners, and of a tier for whoever plans.
#include <algorithm>

#include "cache/block_map.h"

namespace kvasir {
namespace {

constexpr size_t kKvClass = static_cast<size_t>(FrameClass::kKvPlane);
constexpr size_t kDevice = index_of(Tier::kDevice);
constexpr size_t kHost = index_of(Tier::kHost);

}  // namespace

// Counts the block again, for its owners and for what is coming.
void BlockMap::recount(Block& b) {
  std::array<LayerSet, kCopyTierCount> once, several;
  LayerSet staying;
  for (const Owner& o : b.owners) {
    for (size_t t = 0; t < kCopyTierCount; ++t) {
      several[t] |= once[t] & o.wants[t];
      once[t] |= o.wants[t];
    }
    staying |= o.wants[kDevice] - o.leaving;
  }
  const LayerSet filling = b.on[kDevice].present - b.on[kDevice].ready;
  for (Owner& o : b.owners) {
    bool changed = false;
    for (size_t t = 0; t < kCopyTierCount; ++t) {
      // Of a pinned block, giving up frees nothing yet.
      const uint32_t own = b.pins > 0 ? 0 : (o.wants[t] - several[t]).count();
      changed |= own != o.own[t];
      o.who->own[t] += own - o.own[t];
      o.own[t] = own;
    }
    const uint32_t coming = (o.wants[kDevice] & filling).count();
    changed |= coming != o.filling;
    o.who->filling += coming - o.filling;
    o.filling = coming;
    if (changed) touched_.push_back(o.who->seq);
  }
  uint32_t coming = 0;
  if (b.owners.empty()) {
    coming = b.pins > 0 ? b.on[kDevice].present.count() : 0;
  } else {
    const LayerSet leaving = (once[kDevice] - staying) & b.on[kHost].present;
    coming = ((b.on[kDevice].present - once[kDevice]) | leaving).count();
  }
  coming_ += coming - b.coming;
  b.coming = coming;
}

FrameBudget BlockMap::budget(Tier tier) const {
  FrameBudget budget;
  if (tier == Tier::kHost) {
    budget.free[kKvClass] = host_.free_units() * kFramesPerKvCell;
    budget.per_slab[kKvClass] = kFramesPerKvCell;
    budget.total[kKvClass] = host_.units() * kFramesPerKvCell;
    return budget;
  }
  budget.free[kKvClass] = device_.free_frames(kKvClass);
  budget.idle[kKvClass] = idle_blocks() * geometry_.kv_frames_per_block();
  budget.per_slab[kKvClass] = device_.frames_per_slab(kKvClass);
  budget.empty_slabs = device_.empty_slabs();
  budget.pinned[kKvClass] = coming_ * kFramesPerKvCell;
  budget.total[kKvClass] = device_.slabs() * device_.frames_per_slab(kKvClass);
  return budget;
}

uint32_t BlockMap::total_cells(Tier tier) const {
  return budget(tier).total[kKvClass] / kFramesPerKvCell;
}

uint32_t BlockMap::used_cells(Tier tier) const {
  if (tier == Tier::kHost) return host_.units() - host_.free_units();
  return device_.used_frames(kKvClass) / kFramesPerKvCell - idle_blocks() * geometry_.groups();
}

}  // namespace kvasir
