#include "cache/blocks/block_map.h"

#include <algorithm>

#include "base/check.h"
#include "base/mutant.h"

namespace kvasir {
TierShape TierShape::of(const CacheGeometry& geometry, Tier tier, uint64_t bytes) {
  // With fewer slabs than this, the forms would often compete for the last free slab.
  constexpr uint64_t kFewestSlabs = 8;
  constexpr uint64_t kMostCells = 16;
  TierShape shape;
  shape.bytes = bytes;
  uint64_t largest = 0;
  for (Form form : kAllForms) {
    if (!geometry.has(form)) continue;
    shape.cell_bytes[index_of(form)] = geometry.cell_stride(form, tier);
    largest = std::max(largest, shape.cell_bytes[index_of(form)]);
  }
  const uint64_t kv = shape.cell_bytes[index_of(Form::kKv)];
  const uint64_t fewest = ceil_div(largest, kv);
  double least_waste = 2;
  for (uint64_t n = fewest; n < fewest + kMostCells; ++n) {
    const uint64_t slab = n * kv;
    if (n > fewest && bytes / slab < kFewestSlabs) break;
    double waste = 0;
    for (uint64_t cell : shape.cell_bytes) {
      if (cell == 0) continue;
      if (slab / cell > 64) waste = 1;
      waste = std::max(waste, static_cast<double>(slab % cell) / static_cast<double>(slab));
    }
    if (waste >= least_waste) continue;
    least_waste = waste;
    shape.slab_bytes = slab;
    if (waste <= 1.0 / 15) break;
  }
  return shape;
}

BlockMap::BlockMap(const CacheGeometry& geometry, const std::array<uint64_t, kTiers>& tier_bytes,
                   PrefixIndex& index)
    : geometry_(geometry),
      all_(LayerSet::all(geometry.groups())),
      lasting_(geometry.windowed == all_ ? all_ : all_ - geometry.windowed),
      shapes_{TierShape::of(geometry, Tier::kDevice, tier_bytes[0]),
              TierShape::of(geometry, Tier::kHost, tier_bytes[1]),
              TierShape::of(geometry, Tier::kDisk, tier_bytes[2])},
      pools_{SlabPool(tier_bytes[0], shapes_[0].slab_bytes, shapes_[0].cell_bytes),
             SlabPool(tier_bytes[1], shapes_[1].slab_bytes, shapes_[1].cell_bytes),
             SlabPool(tier_bytes[2], shapes_[2].slab_bytes, shapes_[2].cell_bytes)},
      index_(index),
      has_slower_tier_(tier_bytes[1] + tier_bytes[2] > 0) {
  for (size_t p = 0; p < kPlaces; ++p) {
    const Place place = place_at(p);
    if (pools_[index_of(place.tier)].capacity() > 0 && exists(place)) existing_.push_back(p);
  }
  for (const Place& place : kCheapestFirst) {
    if (std::count(existing_.begin(), existing_.end(), index_of(place)) > 0)
      cheapest_.push_back(index_of(place));
  }
}

// ---------------------------------------------------------------- blocks and owners

LayerSet BlockMap::Owner::covered() const {
  LayerSet sum = dead;
  for (size_t p = 0; p < kPlaces; ++p) sum |= wants[p];
  return sum;
}

BlockMap::Owner& BlockMap::owner_of(Block& b, const Holdings& holder) {
  auto it =
      std::find_if(b.owners.begin(), b.owners.end(), [&](const Owner& o) { return o.holder == &holder; });
  KV_CHECK(it != b.owners.end(), "seq={} does not name the block", raw(holder.seq));
  return *it;
}

const BlockMap::Owner& BlockMap::owner(BlockId id, const Holdings& holder) const {
  return const_cast<BlockMap*>(this)->owner_of(const_cast<Block&>(block(id)), holder);
}

BlockId BlockMap::new_block() {
  if (free_ids_.empty()) {
    blocks_.emplace_back().used = true;
    return static_cast<BlockId>(blocks_.size() - 1);
  }
  const BlockId id = free_ids_.back();
  free_ids_.pop_back();
  at(id).used = true;
  return id;
}

BlockId BlockMap::create(Holdings& holder, const Writes& device) {
  const BlockId id = new_block();
  at(id).owners.emplace_back().holder = &holder;
  at(id).owned_since_noted = true;
  holder.dropped += all_.count();
  const bool table_changed = holder.table_changed;
  const auto write = [&](Form form, const LayerSet& groups) {
    if (groups.empty()) return;
    want(id, holder, {form, Tier::kDevice}, groups);
    // No transfer fills it: rows write it.
    Copies& copies = at(id).on[index_of(Place{form, Tier::kDevice})];
    copies.ready = copies.current = groups;
  };
  write(Form::kKv, device.kv);
  write(Form::kX, device.x);
  holder.table_changed = table_changed;  // the table only becomes longer
  recount(at(id));
  return id;
}

void BlockMap::add_owner(BlockId id, Holdings& holder, const LayerSet& dead) {
  Block& b = at(id);
  KV_CHECK(b.published, "block={}", raw(id));
  Owner& o = b.owners.emplace_back();
  o.holder = &holder;
  b.owned_since_noted = true;
  holder.dropped += all_.count();
  if (!dead.empty()) let_die(o, dead);
  LayerSet left = all_ - dead;
  for (size_t p : cheapest_) {
    const LayerSet taken = left & b.on[p].usable();
    if (!taken.empty()) set_wants(o, place_at(p), taken);
    left = left - taken;
  }
  recount(b);
  settle(id);
}

void BlockMap::remove_owner(BlockId id, Holdings& holder) {
  Block& b = at(id);
  Owner& o = owner_of(b, holder);
  for (size_t p : existing_) {
    set_wants(o, place_at(p), {});
    set_released(o, place_at(p), {});
    holder.own[p] -= o.own[p];
  }
  holder.filling -= o.filling;
  holder.dropped -= (all_ - o.dead).count();
  holder.dead -= o.dead.count();
  o.dead.for_each([&](uint32_t g) { --holder.device_in_group[g]; });
  // Cells that it has let die may be idle for long; the block is used until now.
  if (!o.dead.empty()) {
    for (BlockList& idle : lru_) {
      if (idle.contains(id)) idle.erase(id);
    }
  }
  if (&o != &b.owners.back()) o = std::move(b.owners.back());
  b.owners.pop_back();
  recount(b);
  settle(id);
}

size_t BlockMap::restore(const BlockHash& hash, std::span<const Found> copies, Tier tier, bool attended) {
  if (index_.find(hash) != kNoBlock) return 0;
  SlabPool& pool = pools_[index_of(tier)];
  LayerSet found;
  size_t taken = 0;
  for (; taken < copies.size(); ++taken) {
    const Found& f = copies[taken];
    const Place place = {f.form, tier};
    if (f.group >= all_.count() || !exists(place)) break;
    if (!pool.claim(index_of(f.form), f.at)) break;
    found.add(f.group);
  }
  if (taken < copies.size() || !(lasting_ - found).empty()) {
    for (size_t i = 0; i < taken; ++i) pool.release(index_of(copies[i].form), copies[i].at);
    return 0;
  }
  const BlockId id = new_block();
  Block& b = at(id);
  b.tokens = geometry_.block_tokens;
  b.attended = attended;
  for (const Found& f : copies) {
    Copies& c = b.on[index_of(Place{f.form, tier})];
    c.by_group.set(f.group, {f.at, b.tokens});
    c.present.add(f.group);
    c.ready.add(f.group);
    c.current.add(f.group);
  }
  seal(id, &hash);
  settle(id);
  return taken;
}

BlockId BlockMap::create_filled(const BlockHash& hash) {
  const BlockId id = new_block();
  at(id).tokens = geometry_.block_tokens;
  seal(id, &hash);
  add_unowned(id, kDeviceKv, all_);
  return id;
}

// ---------------------------------------------------------------- holds

void BlockMap::set_wants(Owner& owner, Place place, const LayerSet& wants) {
  const size_t p = index_of(place);
  if (owner.wants[p] == wants) return;
  Holdings& holder = *owner.holder;
  const LayerSet before = owner.wants[p];
  const uint32_t covered = owner.covered().count();
  owner.wants[p] = wants;
  holder.dropped -= owner.covered().count() - covered;
  holder.cells[p] += wants.count() - before.count();
  if (place == kDeviceKv) {
    if (holder.device_in_group.empty()) holder.device_in_group.resize(geometry_.groups());
    (wants - before).for_each([&](uint32_t g) { ++holder.device_in_group[g]; });
    (before - wants).for_each([&](uint32_t g) { --holder.device_in_group[g]; });
    holder.table_changed = true;
  }
}

void BlockMap::set_released(Owner& owner, Place place, const LayerSet& released) {
  LayerSet& now = owner.released[index_of(place)];
  if (place == kDeviceKv) owner.holder->released += released.count() - now.count();
  now = released;
}

void BlockMap::allocate(std::span<const Wish> wishes, Place place) {
  const size_t p = index_of(place);
  LayerSet groups;
  size_t cells = 0;
  for (const Wish& wish : wishes) {
    const LayerSet fresh = wish.groups - block(wish.block).on[p].present;
    cells += fresh.count();
    groups |= fresh;
  }
  if (cells == 0) return;
  std::array<uint64_t, kMaxLayerGroups> few;  // one block needs at most so many
  std::vector<uint64_t> many(cells > few.size() ? cells : 0);
  const std::span<uint64_t> frames = many.empty() ? std::span(few).first(cells) : std::span(many);
  allocate(place, frames);
  size_t next = 0;
  groups.for_each([&](uint32_t g) {
    for (const Wish& wish : wishes) {
      Block& b = at(wish.block);
      Copies& copies = b.on[p];
      if (!wish.groups.contains(g) || copies.present.contains(g)) continue;
      // What fills it brings all of them.
      copies.by_group.set(g, {frames[next++], b.tokens});
      copies.present.add(g);
    }
  });
  if (place != kDeviceKv) return;
  for (const Wish& wish : wishes) {
    for (Owner& o : at(wish.block).owners) o.holder->table_changed = true;
  }
}

void BlockMap::want(std::span<const Wish> wishes, Holdings& holder, Place place) {
  const size_t p = index_of(place);
  // Copies that exist are needed from now on: allocating the others must not evict them.
  for (const auto& [id, groups] : wishes) {
    Block& b = at(id);
    Owner& o = owner_of(b, holder);
    set_wants(o, place, o.at(place) | (groups & b.on[p].present));
    set_idle(b, p, b.on[p].idle - groups);
    list_idle(id);
  }
  allocate(wishes, place);
  for (const auto& [id, groups] : wishes) {
    Block& b = at(id);
    Owner& o = owner_of(b, holder);
    set_wants(o, place, o.at(place) | groups);
    set_released(o, place, o.released[p] - groups);
    recount(b);
    if (b.published) update_published(id);
  }
}

void BlockMap::unwant(BlockId id, Holdings& holder, Place place, const LayerSet& groups) {
  Block& b = at(id);
  Owner& o = owner_of(b, holder);
  set_wants(o, place, o.at(place) - groups);
  set_released(o, place, o.released[index_of(place)] - groups);
  recount(b);
  settle(id);
}

void BlockMap::let_die(BlockId id, Holdings& holder, const LayerSet& groups) {
  Block& b = at(id);
  let_die(owner_of(b, holder), groups);
  recount(b);
  settle(id);
}

void BlockMap::let_die(Owner& o, const LayerSet& groups) {
  Holdings& holder = *o.holder;
  const LayerSet dying = groups - o.dead;
  holder.dropped -= (dying - o.covered()).count();
  holder.dead += dying.count();
  o.dead |= dying;
  for (size_t p : existing_) {
    set_wants(o, place_at(p), o.wants[p] - dying);
    set_released(o, place_at(p), o.released[p] - dying);
  }
  if (holder.device_in_group.empty()) holder.device_in_group.resize(geometry_.groups());
  dying.for_each([&](uint32_t g) { ++holder.device_in_group[g]; });
}

// The groups in which another copy serves as well as the one at `place`: one that the owner holds and does
// not release, or, if it need not be ready, one that the owner could take hold of.
LayerSet BlockMap::substitutes(const Block& b, const Owner& owner, Place place, bool ready) const {
  const bool full = b.tokens == geometry_.block_tokens;
  LayerSet sum;
  for (size_t p : existing_) {
    const Place other = place_at(p);
    if (other == place) continue;
    // Only full blocks have other copies than KV.
    if (other.form == Form::kX && !full) continue;
    const Copies& c = b.on[p];
    // X on another tier would pass the stage ring, which the plan did not foresee.
    const bool held_only = other.form == Form::kX && other.tier != Tier::kDevice;
    // An idle copy counts as free: a plan that wants it has to add it.
    LayerSet serves = (ready ? c.usable() : c.present & c.current) - owner.released[p] - c.idle;
    if (ready || held_only) serves = serves & owner.wants[p];
    sum |= serves;
  }
  return sum;
}

void BlockMap::release(BlockId id, Holdings& holder, Place place, const LayerSet& groups) {
  Block& b = at(id);
  Owner& o = owner_of(b, holder);
  LayerSet going = groups & o.at(place) & substitutes(b, o, place, /*ready=*/false);
  set_released(o, place, o.released[index_of(place)] | going);
  // The owner takes hold of one other copy of each cell, unless it holds one already.
  const bool full = b.tokens == geometry_.block_tokens;
  const auto held = [&](bool ready) {
    for (const Place& other : kCheapestFirst) {
      if (other == place || (other.form == Form::kX && !full)) continue;
      const size_t p = index_of(other);
      const Copies& c = b.on[p];
      LayerSet there = (ready ? c.usable() : c.present & c.current) - o.released[p] - c.idle;
      if (other.form == Form::kX && other.tier != Tier::kDevice) there = there & o.wants[p];
      going = going - (there & o.wants[p]);
      set_wants(o, other, o.wants[p] | (there & going));
      going = going - there;
    }
  };
  held(/*ready=*/true);
  held(/*ready=*/false);
  settle_released(b, o);
  if (mutant(Mutant::kTransferSourceFreedEarly)) {
    const LayerSet early = o.released[index_of(place)];
    set_released(o, place, {});
    set_wants(o, place, o.at(place) - early);
  }
  recount(b);
  settle(id);
}

void BlockMap::drop(BlockId id, Holdings& holder, Place place, const LayerSet& groups) {
  const Block& b = block(id);
  const Owner& o = owner(id, holder);
  LayerSet there, coming;
  for (size_t p : existing_) {
    const Place other = place_at(p);
    if (other == place) continue;
    const LayerSet held = (o.wants[p] & b.on[p].current) - o.released[p];
    there |= held & b.on[p].ready;
    coming |= held - b.on[p].ready;
  }
  const LayerSet later = groups & (coming - there);
  if (!later.empty()) release(id, holder, place, later);
  unwant(id, holder, place, groups - later);
}

void BlockMap::settle_released(Block& b, Owner& owner) {
  for (size_t p : existing_) {
    if (owner.released[p].empty()) continue;
    const Place place = place_at(p);
    const LayerSet ready = owner.released[p] & substitutes(b, owner, place, /*ready=*/true);
    // While a substitute is still being filled, the copy is held. Without one it is no longer released.
    const LayerSet coming = substitutes(b, owner, place, /*ready=*/false);
    set_released(owner, place, (owner.released[p] & coming) - ready);
    set_wants(owner, place, owner.wants[p] - ready);
  }
}

uint64_t BlockMap::take_frame(Place place) {
  uint64_t frame = 0;
  allocate(place, {&frame, 1});
  return frame;
}

void BlockMap::give_back_frame(Place place, uint64_t frame) {
  pools_[index_of(place.tier)].release(index_of(place.form), frame);
}

void BlockMap::attach(BlockId id, Holdings& holder, Place place, uint32_t group, uint64_t frame) {
  Block& b = at(id);
  Copies& copies = b.on[index_of(place)];
  if (owner_of(b, holder).dead.contains(group)) return give_back_frame(place, frame);
  if (copies.present.contains(group)) {
    give_back_frame(place, frame);
    if (!copies.usable().contains(group)) return;
  } else {
    copies.by_group.set(group, {frame, b.tokens});
    copies.present.add(group);
    copies.ready.add(group);
    copies.current.add(group);
    if (place == kDeviceKv) {
      for (Owner& o : b.owners) o.holder->table_changed = true;
    }
  }
  Owner& o = owner_of(b, holder);
  set_wants(o, place, o.at(place) | LayerSet::one(group));
  for (Owner& each : b.owners) settle_released(b, each);
  recount(b);
  settle(id);
}

}  // namespace kvasir
