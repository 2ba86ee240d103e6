// BlockMap's counting: of a block for its owners, and of a tier for plans.
#include <algorithm>

#include "cache/blocks/block_map.h"

namespace kvasir {

// Counts the block again, for its owners and for what is coming.
void BlockMap::recount(Block& b) {
  std::array<LayerSet, kPlaces> several;
  bool shared = true;  // every copy, by owners that keep it
  for (size_t p : existing_) {
    const Copies& copies = b.on[p];
    LayerSet once, staying;
    for (const Owner& o : b.owners) {
      several[p] |= once & o.wants[p];
      once |= o.wants[p];
      staying |= o.wants[p] - o.released[p];
      // Of a popular prefix the first few owners tell all there is to know.
      if ((copies.present - several[p]).empty() && (copies.present - staying).empty()) break;
    }
    shared &= (copies.present - several[p]).empty();
    const uint32_t coming =
        ((copies.present - once - copies.idle) | ((once - staying) & copies.present)).count();
    coming_[p] += coming - b.coming[p];
    b.coming[p] = coming;
  }
  const Copies& device = b.at(kDeviceKv);
  const LayerSet filling = device.present - device.ready;
  // Then no owner has anything alone, or is waiting, and that was so before.
  shared &= filling.empty();
  if (shared && b.counted_shared) return;
  b.counted_shared = shared;
  for (Owner& o : b.owners) {
    bool changed = false;
    for (size_t p : existing_) {
      // Of a pinned block, giving up frees nothing yet.
      const uint32_t own = b.pins > 0 ? 0 : (o.wants[p] - several[p]).count();
      changed |= own != o.own[p];
      o.who->own[p] += own - o.own[p];
      o.own[p] = own;
    }
    const uint32_t coming = (o.at(kDeviceKv) & filling).count();
    changed |= coming != o.filling;
    o.who->filling += coming - o.filling;
    o.filling = coming;
    if (changed) touched_.push_back(o.who->seq);
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
