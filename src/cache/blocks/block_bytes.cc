// BlockMap: the bytes of copies, as transfers fill them and steps write them.
#include <algorithm>

#include "base/check.h"
#include "base/mutant.h"
#include "cache/blocks/block_map.h"

namespace kvasir {
namespace {

constexpr size_t kDeviceKvIndex = index_of(kDeviceKv);

}  // namespace

void BlockMap::add_filler(BlockId id, Place place, const LayerSet& groups, TransferId filler) {
  Block& b = at(id);
  Copies& copies = b.on[index_of(place)];
  const bool were_ready = !(copies.ready & groups).empty();
  copies.ready = copies.ready - groups;
  copies.current |= groups;
  copies.by_group.set_tokens(groups, copies.present, b.tokens);
  if (!copies.fillers.empty() && copies.fillers.back().transfer == filler) {
    copies.fillers.back().groups |= groups;
  } else {
    copies.fillers.push_back({filler, groups});
  }
  // Copies that no sequence holds were not counted when they were allocated.
  if (were_ready || b.owners.empty()) recount(b);
}

// Nothing may read them any more.
void BlockMap::drop_copies(Block& b, Place place, const LayerSet& groups) {
  Copies& copies = b.on[index_of(place)];
  copies.ready = copies.ready - groups;
  copies.current = copies.current - groups;
  copies.by_group.set_tokens(groups, copies.present, 0);
  for (Owner& o : b.owners) {
    set_wants(o, place, o.at(place) - groups);
    set_released(o, place, o.released[index_of(place)] - groups);
    touched_.push_back(o.holder->seq);
  }
}

void BlockMap::filler_ended(BlockId id, Place place, const LayerSet& groups, TransferId filler, bool ok) {
  Block& b = at(id);
  Copies& copies = b.on[index_of(place)];
  for (Filler& f : copies.fillers) {
    if (f.transfer == filler) f.groups = f.groups - groups;
  }
  std::erase_if(copies.fillers, [](const Filler& f) { return f.groups.empty(); });
  if (!ok) copies.failed |= groups;
  const LayerSet filling = copies.filling();
  // At once, even if other transfers still fill them.
  const LayerSet lost = groups & copies.failed;
  const LayerSet filled = groups - lost - filling;
  if (lost.empty() && filled.empty()) return;
  if (!lost.empty()) drop_copies(b, place, lost);
  copies.failed = copies.failed - (lost - filling);
  copies.ready |= filled;
  for (Owner& o : b.owners) {
    const std::array<LayerSet, kPlaces> before = o.released;
    settle_released(b, o);
    if (before != o.released) touched_.push_back(o.holder->seq);
  }
  recount(b);
  // A transfer that still uses them settles the block when it gives them back.
  b.unsettled = true;
  if (!(groups - copies.pinned).empty()) settle(id);
}

void BlockMap::discard(BlockId id, Place place, const LayerSet& groups) {
  Block& b = at(id);
  const LayerSet lost = groups & b.on[index_of(place)].present;
  if (lost.empty()) return;
  drop_copies(b, place, lost);
  for (Owner& o : b.owners) settle_released(b, o);
  recount(b);
  settle(id);
}

void BlockMap::pin(BlockId id, Place place, const LayerSet& groups) {
  Block& b = at(id);
  Copies& copies = b.on[index_of(place)];
  copies.pins.add(groups);
  copies.pinned |= groups;
  const bool first = b.pins == 0;
  b.pins += groups.count();
  if (!(copies.idle & groups).empty()) {
    set_idle(b, index_of(place), copies.idle - groups);
    list_idle(id);
    recount(b);
    if (b.published) update_published(id);
  } else if (first) {
    recount(b);
  }
}

void BlockMap::unpin(BlockId id, Place place, const LayerSet& groups) {
  Block& b = at(id);
  Copies& copies = b.on[index_of(place)];
  KV_CHECK(b.pins >= groups.count() + b.step_pins, "block={} pins={}", raw(id), b.pins);
  copies.pins.remove(groups);
  copies.pinned = copies.pins.counted();
  b.pins -= groups.count();
  if (b.pins == 0) recount(b);
  // Copies that a sequence holds stay as they are.
  LayerSet unheld = groups;
  for (const Owner& o : b.owners) {
    unheld = unheld - o.at(place);
    if (unheld.empty()) break;
  }
  if (b.unsettled || !unheld.empty()) settle(id);
}

void BlockMap::add_keeper(BlockId id) {
  Block& b = at(id);
  if (b.keepers++ == 0) recount(b);
}

void BlockMap::remove_keeper(BlockId id) {
  Block& b = at(id);
  KV_CHECK(b.keepers > 0, "block={} has no keeper", raw(id));
  if (--b.keepers == 0) recount(b);
}

void BlockMap::pin_for_step(BlockId id) {
  Block& b = at(id);
  ++b.step_pins;
  if (b.pins++ == 0) recount(b);
}

void BlockMap::unpin_for_step(BlockId id) {
  Block& b = at(id);
  --b.step_pins;
  if (--b.pins == 0) recount(b);
  settle(id);
}

void BlockMap::set_written(BlockId id, uint32_t tokens, const Writes& writes, StepId step) {
  Block& b = at(id);
  bool outgrown = false;
  for (size_t p : existing_) {
    if (p == kDeviceKvIndex) continue;  // steps write it in every group in which it is present
    Copies& copies = b.on[p];
    if (copies.present.empty()) continue;
    const Place place = place_at(p);
    LayerSet grows;
    if (place.tier == Tier::kDevice) grows = writes.x;
    if (mutant(Mutant::kStaleCopy) && place.form == Form::kKv) grows = all_;
    if (mutant(Mutant::kStaleX) && place.form == Form::kX) grows = all_;
    LayerSet grown, stale;
    copies.present.for_each([&](uint32_t g) {
      const uint32_t has = copies.by_group[g].tokens;
      // X is written from the block's first token on or not at all.
      const bool grows_with_it = grows.contains(g) && has == b.tokens;
      if (grows_with_it) grown.add(g);
      if ((grows_with_it ? tokens : has) < tokens) stale.add(g);
    });
    copies.by_group.set_tokens(grown, copies.present, tokens);
    if (stale.empty()) continue;
    // It is no longer a copy, and is freed when nothing in flight uses it.
    outgrown = true;
    copies.current = copies.current - stale;
    for (Owner& o : b.owners) {
      set_wants(o, place, o.wants[p] - stale);
      set_released(o, place, o.released[p] - stale);
    }
  }
  b.tokens = tokens;
  b.last_write = step;
  if (!outgrown) return;
  recount(b);
  settle(id);
}

bool BlockMap::has_other_copies(BlockId id) const {
  return std::any_of(existing_.begin(), existing_.end(),
                     [&](size_t p) { return p != kDeviceKvIndex && !block(id).on[p].present.empty(); });
}

void BlockMap::cut(BlockId id, uint32_t tokens) {
  Block& b = at(id);
  b.tokens = std::min(b.tokens, tokens);
  for (size_t p : existing_) {
    Copies& copies = b.on[p];
    if (p != kDeviceKvIndex) {
      LayerSet longer;
      copies.present.for_each([&](uint32_t g) {
        const uint32_t has = copies.by_group[g].tokens;
        if (has >= b.tokens) longer.add(g);
      });
      copies.by_group.set_tokens(longer, copies.present, b.tokens);
      // A block that is copied never has nothing; what has nothing is lost.
      if (b.tokens > 0) copies.current |= longer;
    }
    // Rows will write it again, on the device.
    for (Owner& o : b.owners) set_released(o, place_at(p), {});
  }
  recount(b);
}

}  // namespace kvasir
