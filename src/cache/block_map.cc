#include "cache/block_map.h"

#include <algorithm>

#include "base/check.h"
#include "base/mutant.h"

namespace kvasir {
namespace {

constexpr size_t kKvClass = static_cast<size_t>(FrameClass::kKvPlane);
constexpr size_t kDevice = index_of(Tier::kDevice);
constexpr size_t kHost = index_of(Tier::kHost);

SlabPool make_device_pool(const CacheGeometry& geometry, uint64_t bytes) {
  // K and V planes are the largest frames there are; a slab holds one, so that a budget is used to the byte.
  const std::array<uint64_t, kFrameClasses> frames = {geometry.frame_bytes(FrameClass::kKvPlane)};
  return SlabPool(bytes, frames[0], frames);
}

}  // namespace

BlockMap::BlockMap(const CacheGeometry& geometry, uint64_t device_bytes, uint64_t host_bytes,
                   PrefixIndex& index)
    : geometry_(geometry),
      all_(LayerSet::all(geometry.groups())),
      device_(make_device_pool(geometry, device_bytes)),
      host_(host_bytes, geometry.kv_cell_bytes()),
      index_(index) {}

// ---------------------------------------------------------------- names

BlockMap::Owner& BlockMap::owner_of(Block& b, const Holdings& who) {
  auto it = std::find_if(b.owners.begin(), b.owners.end(), [&](const Owner& o) { return o.who == &who; });
  KV_CHECK(it != b.owners.end(), "seq={} does not name the block", raw(who.seq));
  return *it;
}

const BlockMap::Owner& BlockMap::owner(BlockId id, const Holdings& who) const {
  return const_cast<BlockMap*>(this)->owner_of(const_cast<Block&>(block(id)), who);
}

BlockId BlockMap::create(Holdings& who, const LayerSet& device) {
  BlockId id{};
  if (free_ids_.empty()) {
    id = static_cast<BlockId>(blocks_.size());
    blocks_.emplace_back();
  } else {
    id = free_ids_.back();
    free_ids_.pop_back();
  }
  at(id).used = true;
  at(id).owners.emplace_back().who = &who;
  who.table_changed = true;  // even without frames: the table has a place for each block
  std::optional<uint64_t> nowhere;
  want(id, who, Tier::kDevice, device, nowhere);
  // Nothing comes over a link: rows write it.
  at(id).on[kDevice].ready = device;
  recount(at(id));
  return id;
}

void BlockMap::add_owner(BlockId id, Holdings& who) {
  Block& b = at(id);
  KV_CHECK(complete_on_device(id), "block={}", raw(id));
  if (b.idle) leave_idle(id);
  Owner& o = b.owners.emplace_back();
  o.who = &who;
  set_wants(o, Tier::kDevice, all_);
  recount(b);
  // While it was nobody's it kept every copy; those on the host are still nobody's.
  settle(id);
}

void BlockMap::remove_owner(BlockId id, Holdings& who) {
  Block& b = at(id);
  Owner& o = owner_of(b, who);
  for (Tier tier : kCopyTiers) set_wants(o, tier, {});
  set_leaving(o, {});
  for (Tier tier : kCopyTiers) who.own[index_of(tier)] -= o.own[index_of(tier)];
  who.filling -= o.filling;
  b.owners.erase(b.owners.begin() + (&o - b.owners.data()));
  recount(b);
  settle(id);
}

// ---------------------------------------------------------------- interests

void BlockMap::set_wants(Owner& owner, Tier tier, const LayerSet& wants) {
  LayerSet& now = owner.wants[index_of(tier)];
  Holdings& who = *owner.who;
  who.cells[index_of(tier)] += wants.count() - now.count();
  if (tier == Tier::kDevice) {
    if (who.device_in_group.empty()) who.device_in_group.resize(geometry_.groups());
    (wants - now).for_each([&](uint32_t g) { ++who.device_in_group[g]; });
    (now - wants).for_each([&](uint32_t g) { --who.device_in_group[g]; });
    who.table_changed |= now != wants;
  }
  now = wants;
}

void BlockMap::set_leaving(Owner& owner, const LayerSet& leaving) {
  owner.who->leaving += leaving.count() - owner.leaving.count();
  owner.leaving = leaving;
}

void BlockMap::want(BlockId id, Holdings& who, Tier tier, const LayerSet& groups,
                    std::optional<uint64_t>& near) {
  Block& b = at(id);
  Copies& copies = b.on[index_of(tier)];
  const LayerSet fresh = groups - copies.present;
  if (copies.by_group.empty() && !groups.empty()) copies.by_group.resize(geometry_.groups());
  fresh.for_each([&](uint32_t g) {
    Copy& copy = copies.by_group[g];
    copy = Copy{};
    if (tier == Tier::kDevice) {
      copy.at = allocate_on_device();
    } else {
      const auto offset = host_.allocate(near);
      KV_CHECK(offset.has_value(), "the host tier is full: a plan took more than there is");
      near = offset;
      copy.at = {*offset, *offset + geometry_.frame_bytes(FrameClass::kKvPlane)};
    }
  });
  copies.present |= fresh;
  if (tier == Tier::kDevice && !fresh.empty()) {
    for (Owner& o : b.owners) o.who->table_changed = true;
  }
  Owner& o = owner_of(b, who);
  set_wants(o, tier, o.wants[index_of(tier)] | groups);
  if (tier == Tier::kDevice) set_leaving(o, o.leaving - groups);
  recount(b);
}

void BlockMap::unwant(BlockId id, Holdings& who, Tier tier, const LayerSet& groups) {
  Block& b = at(id);
  Owner& o = owner_of(b, who);
  set_wants(o, tier, o.wants[index_of(tier)] - groups);
  if (tier == Tier::kDevice) set_leaving(o, o.leaving - groups);
  recount(b);
  settle(id);
}

void BlockMap::leave_device(BlockId id, Holdings& who, const LayerSet& groups) {
  Block& b = at(id);
  Owner& o = owner_of(b, who);
  const Copies& host = b.on[kHost];
  // Only where the other copy has all that the device's has, or will have it.
  LayerSet current;
  (groups & o.wants[kDevice] & host.present).for_each([&](uint32_t g) {
    if (host.by_group[g].tokens >= b.tokens) current.add(g);
  });
  set_wants(o, Tier::kHost, o.wants[kHost] | current);
  const LayerSet saved = mutant(Mutant::kTransferSourceFreedEarly) ? current : current & host.ready;
  set_leaving(o, o.leaving | (current - saved));
  recount(b);
  unwant(id, who, Tier::kDevice, saved);
}

void BlockMap::leave_host(BlockId id, Holdings& who, const LayerSet& groups) {
  const Block& b = block(id);
  const Owner& o = owner(id, who);
  const LayerSet elsewhere = (b.on[kDevice].ready & o.wants[kDevice]) - o.leaving;
  unwant(id, who, Tier::kHost, groups & o.wants[kHost] & elsewhere);
}

// ---------------------------------------------------------------- bytes

void BlockMap::add_filler(BlockId id, Tier tier, uint32_t group, TransferId filler) {
  Block& b = at(id);
  Copies& copies = b.on[index_of(tier)];
  copies.ready.remove(group);
  copies.by_group[group].fillers.push_back(filler);
  copies.by_group[group].tokens = b.tokens;
  recount(b);
}

void BlockMap::filler_ended(BlockId id, Tier tier, uint32_t group, TransferId filler, bool ok) {
  Block& b = at(id);
  Copy& copy = b.on[index_of(tier)].by_group[group];
  std::erase(copy.fillers, filler);
  copy.failed |= !ok;
  if (!copy.failed && !copy.fillers.empty()) return;
  LayerSet one;
  one.add(group);
  if (copy.failed) {
    // At once, also if others fill it still: nobody must read what comes.
    copy.tokens = 0;
    for (Owner& o : b.owners) {
      set_wants(o, tier, o.wants[index_of(tier)] - one);
      set_leaving(o, o.leaving - one);
      touched_.push_back(o.who->seq);
    }
    copy.failed = !copy.fillers.empty();
  } else {
    b.on[index_of(tier)].ready.add(group);
    for (Owner& o : b.owners) {
      if (tier != Tier::kHost || !o.leaving.contains(group)) continue;
      set_leaving(o, o.leaving - one);
      set_wants(o, Tier::kDevice, o.wants[kDevice] - one);
      touched_.push_back(o.who->seq);
    }
    if (tier == Tier::kDevice) try_publish(id);
  }
  recount(b);
  settle(id);
}

void BlockMap::pin(BlockId id, Tier tier, uint32_t group) {
  Block& b = at(id);
  Copies& copies = b.on[index_of(tier)];
  ++copies.by_group[group].pins;
  copies.pinned.add(group);
  if (b.pins++ == 0) recount(b);
}

void BlockMap::unpin(BlockId id, Tier tier, uint32_t group) {
  Block& b = at(id);
  Copies& copies = b.on[index_of(tier)];
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

void BlockMap::set_written(BlockId id, uint32_t tokens, StepId step) {
  Block& b = at(id);
  b.tokens = tokens;
  b.last_write = step;
}

void BlockMap::cut(BlockId id, uint32_t tokens) {
  Block& b = at(id);
  b.tokens = std::min(b.tokens, tokens);
  b.on[kHost].present.for_each([&](uint32_t g) {
    uint32_t& has = b.on[kHost].by_group[g].tokens;
    has = std::min(has, tokens);
  });
  // It will be written again, on the device.
  for (Owner& o : b.owners) set_leaving(o, {});
  recount(b);
}

// ---------------------------------------------------------------- what is needed no more

void BlockMap::settle(BlockId id) {
  Block& b = at(id);
  if (b.owners.empty()) {
    if (b.pins > 0 || b.idle) return;
    if (!b.published) return free_block(id);
    free_copies(b, Tier::kHost, b.on[kHost].present);
    b.idle = true;
    b.lru = lru_.insert(lru_.end(), id);
    index_.set_idle(b.hash, true);
    recount(b);
    return;
  }
  for (Tier tier : kCopyTiers) {
    Copies& copies = b.on[index_of(tier)];
    LayerSet wanted;
    for (const Owner& o : b.owners) wanted |= o.wants[index_of(tier)];
    LayerSet unused = copies.present - wanted - copies.pinned;
    // A step in flight may still read what is on the device.
    if (tier == Tier::kDevice && b.step_pins > 0) unused = {};
    if (unused.empty()) continue;
    free_copies(b, tier, unused);
    recount(b);
  }
}

void BlockMap::free_copies(Block& b, Tier tier, LayerSet groups) {
  if (groups.empty()) return;
  Copies& copies = b.on[index_of(tier)];
  groups.for_each([&](uint32_t g) {
    const KvPlanes at = copies.by_group[g].at;
    if (tier == Tier::kDevice) {
      device_.release(kKvClass, at.k);
      device_.release(kKvClass, at.v);
    } else {
      host_.release(at.k);
    }
    copies.by_group[g] = Copy{};
  });
  copies.present = copies.present - groups;
  copies.ready = copies.ready - groups;
  if (tier == Tier::kDevice) {
    for (Owner& o : b.owners) o.who->table_changed = true;
    unpublish(b);
  }
}

KvPlanes BlockMap::allocate_on_device() {
  auto frame = [&] {
    for (;;) {
      if (auto offset = device_.allocate(kKvClass)) return *offset;
      evict_oldest();
    }
  };
  KvPlanes planes;
  planes.k = frame();
  planes.v = frame();
  return planes;
}

void BlockMap::evict_oldest() {
  KV_CHECK(!lru_.empty(), "no frame is free and no block is idle: a plan took more than there is");
  free_block(lru_.front());
}

void BlockMap::free_block(BlockId id) {
  Block& b = at(id);
  if (b.idle) lru_.erase(b.lru);
  for (Tier tier : kCopyTiers) free_copies(b, tier, b.on[index_of(tier)].present);
  unpublish(b);
  coming_ -= b.coming;
  b = Block{};
  free_ids_.push_back(id);
}

// ---------------------------------------------------------------- being found

void BlockMap::seal(BlockId id, const BlockHash* hash) {
  Block& b = at(id);
  KV_CHECK(!b.published, "block={} is published twice", raw(id));
  b.sealed = hash != nullptr;
  if (!hash) return;
  b.hash = *hash;
  try_publish(id);
}

void BlockMap::try_publish(BlockId id) {
  Block& b = at(id);
  if (!b.sealed || b.published || !complete_on_device(id)) return;
  b.published = index_.publish(b.hash, id, /*idle=*/false);
}

void BlockMap::unpublish(Block& b) {
  if (!b.published) return;
  index_.unpublish(b.hash);
  b.published = false;
}

void BlockMap::leave_idle(BlockId id) {
  Block& b = at(id);
  b.idle = false;
  lru_.erase(b.lru);
  index_.set_idle(b.hash, false);
}

}  // namespace kvasir
