// BlockMap: copies that no sequence needs, which of them are kept, and which blocks can be found by hash.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "cache/blocks/block_map.h"

namespace kvasir {
namespace {

// The frames of the copies in these groups, in ascending order of the groups.
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

// The groups whose copies lie in closed slabs: these copies are not kept.
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
    // With a popular prefix the first few owners hold everything.
    if (sum == b.on[place].present) break;
  }
  return sum;
}

void BlockMap::settle(BlockId id) {
  Block& b = at(id);
  b.unsettled = false;
  // Freeing a copy can make the block unfindable, and then it keeps no idle copies either: so repeat.
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
      // A step in flight may still read any copy on the device that is not idle already.
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

// Adds the block to the lists of evictable blocks, or removes it.
void BlockMap::list_idle(BlockId id) {
  Block& b = at(id);
  std::array<bool, kTiers> idle_on{};
  for (size_t p : existing_) idle_on[index_of(place_at(p).tier)] |= !b.on[p].idle.empty();
  for (Tier tier : kAllTiers) {
    const size_t t = index_of(tier);
    const bool idle = idle_on[t];
    if (idle == lru_[t].contains(id)) continue;
    if (!idle) {
      lru_[t].erase(id);
      continue;
    }
    lru_[t].push_back(id);
    // A block that became idle again after it was saved is not saved again: if the slower tier is smaller
    // than what is idle here, that would never end.
    if (tier != Tier::kDevice || !b.owners.empty() || !has_slower_tier_ || !b.owned_since_noted) continue;
    b.owned_since_noted = false;
    newly_idle_.push_back(id);
  }
}

void BlockMap::free_copies(Block& b, Place place, const LayerSet& groups) {
  if (groups.empty()) return;
  pools_[index_of(place.tier)].release(index_of(place.form), Frames(b.at(place), groups));
  forget_copies(b, place, groups);
}

// Their frames are no longer the block's.
void BlockMap::forget_copies(Block& b, Place place, const LayerSet& groups) {
  Copies& copies = b.on[index_of(place)];
  copies.failed = copies.failed - groups;
  copies.present = copies.present - groups;
  if (copies.present.empty()) copies.by_group.clear();
  if (place == kHostKv && copies.present.empty()) b.attended = false;
  copies.ready = copies.ready - groups;
  copies.current = copies.current - groups;
  copies.idle = copies.idle - groups;
  if (place == kDeviceKv) {
    for (Owner& o : b.owners) o.holder->table_changed = true;
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
    // First the loose room, in slabs that are in use already: only this form can use it. Spare slabs stay for
    // all forms.
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

std::vector<uint64_t> BlockMap::take_idle_frames(BlockId id, Tier tier) {
  Block& b = at(id);
  const Place place = {Form::kKv, tier};
  KV_CHECK(b.at(place).idle == all_, "block={}", raw(id));
  std::vector<uint64_t> frames;
  all_.for_each([&](uint32_t g) { frames.push_back(b.at(place).by_group[g].at); });
  set_idle(b, index_of(place), {});
  forget_copies(b, place, all_);
  recount(b);
  settle(id);
  return frames;
}

void BlockMap::close_host_slabs(std::span<const uint32_t> slabs) {
  SlabPool& pool = pools_[index_of(Tier::kHost)];
  if (slabs.empty()) return;
  std::set<uint32_t> closed(slabs.begin(), slabs.end());
  for (uint32_t slab : closed) pool.close(slab);
  // Idle copies there count as free, so nothing else would ever evict them.
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
  // The next block with this number reuses the vectors' memory.
  for (size_t p : existing_) {
    Copies& c = b.on[p];
    c.fillers.clear();
    c.pins.clear();
    c.ready = c.current = c.pinned = c.failed = {};
  }
  b.owners.clear();
  static_cast<BlockState&>(b) = {};
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
  for (size_t p : existing_) sum |= b.on[p].usable();
  return (lasting_ - sum).empty();
}

Adoptable BlockMap::adoptable(const Block& b) const {
  Adoptable what;
  LayerSet left = all_;
  for (size_t p : cheapest_) {
    const Copies& copies = b.on[p];
    const LayerSet taken = left & copies.usable();
    what.cells[p] = taken.count();
    what.idle[p] = (taken & copies.idle).count();
    what.windowed_cells[p] = (taken & geometry_.windowed).count();
    what.windowed_idle[p] = (taken & copies.idle & geometry_.windowed).count();
    left = left - taken;
  }
  what.lacks_windowed = !left.empty();
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
    if (!b.published) replace_slower(id);
  }
}

void BlockMap::replace_slower(BlockId id) {
  Block& b = at(id);
  const BlockId slower = index_.find(b.hash);
  Block& other = at(slower);
  const bool unused = other.owners.empty() && other.pins == 0;
  const Adoptable theirs = adoptable(other), ours = adoptable(b);
  if (ours.lacks_windowed && !theirs.lacks_windowed) return;
  const bool completes = theirs.lacks_windowed && !ours.lacks_windowed;
  if (!completes && (!unused || theirs.slowest() <= ours.slowest())) return;
  index_.replace(b.hash, id, adoptable(b));
  b.published = true;
  other.published = false;
  for (size_t p : existing_) {
    if (unused && b.on[p].present.empty()) std::swap(b.on[p], other.on[p]);
  }
  settle(slower);
  recount(b);
  list_idle(id);
  index_.update(id, adoptable(b));
}

}  // namespace kvasir
