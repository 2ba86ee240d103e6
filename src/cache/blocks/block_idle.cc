// BlockMap: copies that no sequence needs, which of them are kept, and which blocks can be found by hash.
#include <algorithm>

#include "base/check.h"
#include "cache/blocks/block_map.h"

namespace kvasir {
namespace {

// Where the copies of these groups lie, in ascending order of the groups.
class Frames {
 public:
  Frames(const BlockMap::Copies& copies, const LayerSet& groups) {
    groups.for_each([&](uint32_t g) { at_[count_++] = copies.by_group[g].at; });
  }
  operator std::span<const uint64_t>() const { return {at_.data(), count_}; }

 private:
  std::array<uint64_t, kMaxLayerGroups> at_;
  size_t count_ = 0;
};

// Copies in a slab that is to go are not worth keeping.
LayerSet in_closed_slabs(const SlabPool& pool, const BlockMap::Copies& copies, const LayerSet& groups) {
  LayerSet closed;
  groups.for_each([&](uint32_t g) {
    if (pool.is_closed(static_cast<uint32_t>(copies.by_group[g].at / pool.slab_bytes()))) closed.add(g);
  });
  return closed;
}

}  // namespace

LayerSet BlockMap::wanted(const Block& b, size_t place) const {
  LayerSet sum;
  for (const Owner& o : b.owners) {
    sum |= o.wants[place];
    // Of a popular prefix the first few owners tell all there is to know.
    if (sum == b.on[place].present) break;
  }
  return sum;
}

void BlockMap::settle(BlockId id) {
  Block& b = at(id);
  b.unsettled = false;
  // Without a copy that others count on it may not be found any more, and then keeps nothing idle.
  for (bool again = true; again;) {
    bool changed = false;
    for (size_t p : existing_) {
      Copies& copies = b.on[p];
      if (copies.present.empty()) continue;
      const Place place = place_at(p);
      LayerSet unused = copies.present - wanted(b, p) - copies.pinned;
      LayerSet keep = b.published ? unused & copies.usable() : LayerSet();
      if (place.tier == Tier::kHost)
        keep = keep - in_closed_slabs(pools_[index_of(place.tier)], copies, keep);
      // A step in flight may still read what is on the device, but for what is idle already.
      if (place.tier == Tier::kDevice && b.step_pins > 0) unused = unused & copies.idle;
      keep = keep & unused;
      changed |= keep != copies.idle || unused != keep;
      set_idle(b, p, keep);
      free_copies(b, place, unused - keep);
    }
    if (changed) recount(b);
    const bool found = b.published;
    update_published(id);
    again = found != b.published;
  }
  if (b.owners.empty() && b.pins == 0 && !b.published) return free_block(id);
  list_idle(id);
}

void BlockMap::set_idle(Block& b, size_t place, const LayerSet& idle) {
  Copies& copies = b.on[place];
  if (copies.idle == idle) return;
  const Place where = place_at(place);
  SlabPool& pool = pools_[index_of(where.tier)];
  pool.set_idle(index_of(where.form), Frames(copies, copies.idle - idle), false);
  pool.set_idle(index_of(where.form), Frames(copies, idle - copies.idle), true);
  copies.idle = idle;
}

// Puts the block on the lists of what can be evicted, or takes it off.
void BlockMap::list_idle(BlockId id) {
  Block& b = at(id);
  for (Tier tier : kAllTiers) {
    const size_t t = index_of(tier);
    const bool idle = !b.at({Form::kKv, tier}).idle.empty() || !b.at({Form::kX, tier}).idle.empty();
    if (idle == lru_[t].contains(id)) continue;
    if (!idle) {
      lru_[t].erase(id);
      continue;
    }
    lru_[t].push_back(id);
    // One that is idle again because it has been saved is not worth saving again: where less fits on the
    // slower tier than is idle here, that would never end.
    if (tier != Tier::kDevice || !b.owners.empty() || !has_slower_tier_ || !b.owned_since_noted) continue;
    b.owned_since_noted = false;
    newly_idle_.push_back(id);
  }
}

void BlockMap::free_copies(Block& b, Place place, const LayerSet& groups) {
  if (groups.empty()) return;
  Copies& copies = b.on[index_of(place)];
  pools_[index_of(place.tier)].release(index_of(place.form), Frames(copies, groups));
  copies.failed = copies.failed - groups;
  copies.present = copies.present - groups;
  copies.ready = copies.ready - groups;
  copies.current = copies.current - groups;
  copies.idle = copies.idle - groups;
  if (place == kDeviceKv) {
    for (Owner& o : b.owners) o.who->table_changed = true;
  }
}

void BlockMap::allocate(Place place, std::span<uint64_t> frames) {
  SlabPool& pool = pools_[index_of(place.tier)];
  const size_t form = index_of(place.form);
  const BlockList& idle = lru_[index_of(place.tier)];
  const auto has_loose = [&](BlockId id) {
    const Copies& copies = block(id).at(place);
    bool loose = false;
    copies.idle.for_each([&](uint32_t g) { loose |= !pool.in_spare_slab(copies.by_group[g].at); });
    return loose;
  };
  std::optional<uint64_t> near;
  while (!frames.empty()) {
    // A slab that others need too has room for this form alone; the spare ones are left to all.
    size_t most = frames.size();
    if (pool.loose_idle(form) > 0) {
      if (pool.loose_free(form) == 0) {
        const auto oldest = std::find_if(idle.begin(), idle.end(), has_loose);
        KV_CHECK(oldest != idle.end(), "{} loose cells are idle, and in no block", pool.loose_idle(form));
        evict(*oldest, place.tier);
      }
      most = std::min<size_t>(most, std::max(1u, pool.loose_free(form)));
    }
    const size_t taken = pool.allocate(form, near, frames.first(most));
    if (taken > 0) {
      near = frames[taken - 1];
      frames = frames.subspan(taken);
      continue;
    }
    KV_CHECK(!idle.empty(), "the {} tier is full, and nothing on it is idle: a plan took more than there is",
             name(place.tier));
    evict(idle.front(), place.tier);
  }
}

void BlockMap::evict(BlockId id, Tier tier) {
  Block& b = at(id);
  for (Form form : kAllForms) {
    const Place place = {form, tier};
    free_copies(b, place, b.at(place).idle);
  }
  recount(b);
  settle(id);
}

void BlockMap::close_host_slabs(std::span<const uint32_t> slabs) {
  SlabPool& pool = pools_[index_of(Tier::kHost)];
  if (slabs.empty()) return;
  std::set<uint32_t> closed(slabs.begin(), slabs.end());
  for (uint32_t slab : closed) pool.close(slab);
  // What is idle there counts as free, and would never be evicted for anything.
  const BlockList& idle = lru_[index_of(Tier::kHost)];
  for (BlockId id : std::vector<BlockId>(idle.begin(), idle.end())) {
    const Copies& copies = block(id).at({Form::kKv, Tier::kHost});
    bool there = false;
    copies.idle.for_each([&](uint32_t g) {
      there |= closed.contains(static_cast<uint32_t>(copies.by_group[g].at / pool.slab_bytes()));
    });
    if (there) evict(id, Tier::kHost);
  }
}

void BlockMap::free_block(BlockId id) {
  Block& b = at(id);
  for (size_t p : existing_) {
    set_idle(b, p, {});
    free_copies(b, place_at(p), b.on[p].present);
    coming_[p] -= b.coming[p];
  }
  list_idle(id);
  // What the vectors have allocated is for the next block with this number.
  std::array<Copies, kPlaces> on = std::move(b.on);
  std::vector<Owner> owners = std::move(b.owners);
  for (Copies& c : on) {
    c.fillers.clear();
    c.pins.clear();
    c.ready = c.current = c.pinned = c.failed = {};
  }
  b = Block{};
  b.on = std::move(on);
  b.owners = std::move(owners);
  free_ids_.push_back(id);
}

// ---------------------------------------------------------------- being found

void BlockMap::seal(BlockId id, const BlockHash* hash) {
  Block& b = at(id);
  KV_CHECK(!b.published, "block={} is published twice", raw(id));
  b.sealed = hash != nullptr;
  if (!hash) return;
  b.hash = *hash;
  update_published(id);
}

bool BlockMap::can_be_found(const Block& b) const {
  LayerSet sum;
  for (size_t p = 0; p < kPlaces; ++p) sum |= b.on[p].usable();
  return sum == all_;
}

Adoptable BlockMap::adoptable(const Block& b) const {
  Adoptable what;
  LayerSet left = all_;
  for (const Place& place : kCheapestFirst) {
    const Copies& copies = b.at(place);
    const LayerSet taken = left & copies.usable();
    what.cells[index_of(place)] = taken.count();
    what.idle[index_of(place)] = (taken & copies.idle).count();
    left = left - taken;
  }
  return what;
}

void BlockMap::update_published(BlockId id) {
  Block& b = at(id);
  if (!b.sealed) return;
  const bool found = can_be_found(b);
  if (b.published && found) return index_.update(id, adoptable(b));
  if (b.published) {
    index_.unpublish(b.hash);
    b.published = false;
  } else if (found) {
    b.published = index_.publish(b.hash, id, adoptable(b));
  }
}

}  // namespace kvasir
