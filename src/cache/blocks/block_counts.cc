// BlockMap: the counts of a block for its owners, and those of a tier for plans.
#include <algorithm>

#include "cache/blocks/block_map.h"

namespace kvasir {

// Counts the block again, for its owners and for what is coming.
void BlockMap::recount(Block& b) {
  std::array<LayerSet, kPlaces> several;
  bool shared = true;  // several owners keep each copy
  for (size_t p : existing_) {
    const Copies& copies = b.on[p];
    LayerSet once, staying;
    for (const Owner& o : b.owners) {
      several[p] |= once & o.wants[p];
      once |= o.wants[p];
      staying |= o.wants[p] - o.released[p];
      // With a popular prefix the first few owners decide; the others change nothing.
      if ((copies.present - several[p]).empty() && (copies.present - staying).empty()) break;
    }
    shared &= (copies.present - several[p]).empty();
    const bool stays = b.keepers > 0 || (b.attended && p == index_of(kHostKv));
    const uint32_t coming =
        stays ? 0 : ((copies.present - once - copies.idle) | ((once - staying) & copies.present)).count();
    coming_[p] += coming - b.coming[p];
    b.coming[p] = coming;
  }
  const Copies& device = b.at(kDeviceKv);
  const LayerSet filling = device.present - device.ready;
  // If all is shared and ready now, and was at the last count, no owner's counts change.
  shared &= filling.empty();
  if (shared && b.counted_shared) return;
  b.counted_shared = shared;
  for (Owner& o : b.owners) {
    bool changed = false;
    for (size_t p : existing_) {
      // Giving up a pinned block frees nothing yet.
      const bool frees_nothing = b.pins > 0 || (b.attended && p == index_of(kHostKv));
      const uint32_t own = frees_nothing ? 0 : (o.wants[p] - several[p]).count();
      changed |= own != o.own[p];
      o.holder->own[p] += own - o.own[p];
      o.own[p] = own;
    }
    const uint32_t coming = (o.at(kDeviceKv) & filling).count();
    changed |= coming != o.filling;
    o.holder->filling += coming - o.filling;
    o.filling = coming;
    if (changed) touched_.push_back(o.holder->seq);
  }
}

FrameBudget BlockMap::budget(Tier tier) const {
  const SlabPool& pool = pools_[index_of(tier)];
  FrameBudget budget;
  budget.slabs = pool.slabs();
  budget.spare_slabs = pool.spare_slabs();
  for (size_t f = 0; f < kForms; ++f) {
    budget.loose[f] = pool.loose_free(f) + pool.loose_idle(f);
    budget.per_slab[f] = pool.capacity() == 0 ? 0 : pool.frames_per_slab(f);
    budget.coming[f] = coming_[index_of(Place{static_cast<Form>(f), tier})];
  }
  return budget;
}

uint32_t BlockMap::used_cells(Tier tier, Form form) const {
  const SlabPool& pool = pools_[index_of(tier)];
  return pool.used_frames(index_of(form)) - pool.idle_frames(index_of(form));
}

uint64_t BlockMap::used_bytes(Tier tier) const {
  uint64_t bytes = 0;
  for (size_t f = 0; f < kForms; ++f) {
    bytes += used_cells(tier, static_cast<Form>(f)) * shape(tier).cell_bytes[f];
  }
  return bytes;
}

}  // namespace kvasir
