// BlockMap: what becomes of the bytes of copies, from the transfers that fill them to the steps that write
// them.
#include <algorithm>

#include "base/check.h"
#include "base/mutant.h"
#include "cache/block_map.h"

namespace kvasir {
namespace {

constexpr size_t kDeviceKvIndex = index_of(kDeviceKv);

}  // namespace

void BlockMap::add_filler(BlockId id, Place place, uint32_t group, TransferId filler) {
  Block& b = at(id);
  Copies& copies = b.on[index_of(place)];
  copies.ready.remove(group);
  copies.current.add(group);
  copies.by_group[group].fillers.push_back(filler);
  copies.by_group[group].tokens = b.tokens;
  recount(b);
}

// Nobody must read it any more.
void BlockMap::drop_copy(BlockId id, Place place, uint32_t group) {
  Block& b = at(id);
  Copies& copies = b.on[index_of(place)];
  copies.ready.remove(group);
  copies.current.remove(group);
  copies.by_group[group].tokens = 0;
  for (Owner& o : b.owners) {
    set_wants(o, place, o.at(place) - LayerSet::one(group));
    set_leaving(o, place, o.leaving[index_of(place)] - LayerSet::one(group));
    touched_.push_back(o.who->seq);
  }
}

void BlockMap::filler_ended(BlockId id, Place place, uint32_t group, TransferId filler, bool ok) {
  Block& b = at(id);
  Copies& copies = b.on[index_of(place)];
  Copy& copy = copies.by_group[group];
  std::erase(copy.fillers, filler);
  copy.failed |= !ok;
  if (!copy.failed && !copy.fillers.empty()) return;
  if (copy.failed) {
    // At once, also if others fill it still.
    drop_copy(id, place, group);
    copy.failed = !copy.fillers.empty();
  } else {
    copies.ready.add(group);
  }
  for (Owner& o : b.owners) {
    const uint32_t held = o.who->leaving;
    const std::array<LayerSet, kPlaces> before = o.leaving;
    settle_leaving(b, o);
    if (before != o.leaving || held != o.who->leaving) touched_.push_back(o.who->seq);
  }
  recount(b);
  settle(id);
}

void BlockMap::discard(BlockId id, Place place, uint32_t group) {
  Block& b = at(id);
  if (!b.on[index_of(place)].present.contains(group)) return;
  drop_copy(id, place, group);
  for (Owner& o : b.owners) settle_leaving(b, o);
  recount(b);
  settle(id);
}

void BlockMap::pin(BlockId id, Place place, uint32_t group) {
  Block& b = at(id);
  Copies& copies = b.on[index_of(place)];
  ++copies.by_group[group].pins;
  copies.pinned.add(group);
  const bool first = b.pins++ == 0;
  if (copies.idle.contains(group)) {
    set_idle(b, index_of(place), copies.idle - LayerSet::one(group));
    list_idle(id);
    recount(b);
    if (b.published) update_published(id);
  } else if (first) {
    recount(b);
  }
}

void BlockMap::unpin(BlockId id, Place place, uint32_t group) {
  Block& b = at(id);
  Copies& copies = b.on[index_of(place)];
  KV_CHECK(b.pins > 0 && copies.by_group[group].pins > 0, "block={} group={}", raw(id), group);
  if (--copies.by_group[group].pins == 0) copies.pinned.remove(group);
  if (--b.pins == 0) recount(b);
  settle(id);
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
    if (p == kDeviceKvIndex) continue;  // it is written in every group in which it is there
    Copies& copies = b.on[p];
    if (copies.present.empty()) continue;
    const Place place = place_at(p);
    LayerSet grows;
    if (place.tier == Tier::kDevice) grows = place.form == Form::kX ? writes.x : writes.h;
    if (mutant(Mutant::kStaleCopy) && place.form == Form::kKv) grows = all_;
    if (mutant(Mutant::kStaleX) && place.form == Form::kX) grows = all_;
    LayerSet stale;
    copies.present.for_each([&](uint32_t g) {
      uint32_t& has = copies.by_group[g].tokens;
      // From the block's first token on or not at all.
      if (grows.contains(g) && has == b.tokens) has = tokens;
      if (has < tokens) stale.add(g);
    });
    if (stale.empty()) continue;
    // It is no copy any more; it goes when nothing in flight uses it.
    outgrown = true;
    copies.current = copies.current - stale;
    for (Owner& o : b.owners) {
      set_wants(o, place, o.wants[p] - stale);
      set_leaving(o, place, o.leaving[p] - stale);
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
      copies.present.for_each([&](uint32_t g) {
        uint32_t& has = copies.by_group[g].tokens;
        has = std::min(has, b.tokens);
        // A block that is copied never has nothing; what has nothing is lost.
        if (has == b.tokens && has > 0) copies.current.add(g);
      });
    }
    // It will be written again, on the device.
    for (Owner& o : b.owners) set_leaving(o, place_at(p), {});
  }
  recount(b);
}

}  // namespace kvasir
