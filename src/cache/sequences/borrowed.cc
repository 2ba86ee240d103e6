// KvCache: what lies in memory that peers have lent to it, and memory that it has lent to peers.
#include <algorithm>
#include <tuple>
#include <unordered_set>

#include "base/check.h"
#include "base/mutant.h"
#include "cache/sequences/kv_cache.h"

namespace kvasir {
// ---------------------------------------------------------------- as a debtor

void KvCache::close_borrowed(std::span<const uint32_t> cells) {
  let_go_of(cells);
  if (borrowed_.close(cells) == 0) return;
  const int64_t missing = -budget(Tier::kHost).available_cells();
  if (missing <= 0) return;
  const std::vector<SeqId> broken = promises_.give_up(Tier::kHost, static_cast<uint32_t>(missing));
  touched_.insert(touched_.end(), broken.begin(), broken.end());
}

void KvCache::lose_borrowed(std::span<const uint32_t> cells) {
  if (cells.empty()) return;
  std::unordered_set<uint64_t> lost;
  for (uint32_t cell : cells) lost.insert(borrowed_.address(cell));
  // As it does where a disk gave back other bytes than it was given: the copies go, and then a sequence
  // that has nothing else of a cell has to recompute it.
  std::vector<Use> copies;
  for (uint32_t i = 0; i < map_.blocks().size(); ++i) {
    const BlockMap::Copies& host = map_.blocks()[i].at(kHostKv);
    if (!map_.blocks()[i].used) continue;
    LayerSet groups;
    host.present.for_each([&](uint32_t g) {
      if (lost.contains(host.by_group[g].at)) groups.add(g);
    });
    if (!groups.empty()) copies.push_back({static_cast<BlockId>(i), kHostKv, groups});
  }
  if (!mutant(Mutant::kLostCellKept)) discard_copies(copies);
  close_borrowed(cells);
}

std::vector<uint32_t> KvCache::longest_idle_borrowed(uint32_t cells) const {
  std::vector<uint32_t> found;
  for (const BlockId id : map_.idle(Tier::kHost)) {
    if (found.size() >= cells) break;
    const BlockMap::Copies& host = map_.block(id).at(kHostKv);
    host.idle.for_each([&](uint32_t g) {
      const uint64_t at = host.by_group[g].at;
      if (borrowed_.contains(kHostKv, at) && !borrowed_.contains_closed(kHostKv, at))
        found.push_back(borrowed_.cell_at(at));
    });
  }
  return found;
}

std::vector<PeersView::Recalled> KvCache::in_closed_borrowed() const {
  std::vector<PeersView::Recalled> runs;
  if (borrowed_.closed() == 0) return runs;
  for (const auto& [id, seq] : sequences_) {
    for (uint32_t g = 0; g < options_.geometry.groups(); ++g) {
      for (uint32_t b = 0; b < seq.table.size(); ++b) {
        const BlockMap::Copies& host = map_.block(seq.table[b]).at(kHostKv);
        if (!map_.owner(seq.table[b], seq.holds).at(kHostKv).contains(g)) continue;
        if (!borrowed_.contains_closed(kHostKv, host.by_group[g].at)) continue;
        PeersView::Recalled* last = runs.empty() ? nullptr : &runs.back();
        if (last && last->seq == id && last->group == g && last->block + last->blocks == b) {
          ++last->blocks;
        } else {
          runs.push_back({id, b, 1, g});
        }
      }
    }
  }
  // The map of sequences has no order that a plan could count on.
  std::sort(runs.begin(), runs.end(), [](const auto& a, const auto& b) {
    return std::tuple(raw(a.seq), a.group, a.block) < std::tuple(raw(b.seq), b.group, b.block);
  });
  return runs;
}

bool KvCache::lies_at_peers(const Holdings& holder, std::span<const BlockId> table, uint32_t leaf,
                            uint32_t group) const {
  const uint32_t per_leaf = options_.geometry.blocks_per_leaf();
  if ((leaf + 1) * per_leaf > table.size()) return false;
  for (BlockId id : table.subspan(leaf * per_leaf, per_leaf)) {
    const BlockMap::Block& b = map_.block(id);
    const BlockMap::Owner& owner = map_.owner(id, holder);
    const BlockMap::Copies& host = b.at(kHostKv);
    const bool there = (owner.at(kHostKv) & host.present & host.current).contains(group) &&
                       borrowed_.contains(kHostKv, host.by_group[group].at);
    if (b.tokens < block_tokens() || !there || owner.at(kDeviceKv).contains(group)) return false;
  }
  return true;
}

// Blocks that pass no ring, since they are attended where they lie: in the layer group that has fewest.
uint32_t KvCache::blocks_at_peers(const Sequence& seq) const {
  const uint32_t per_leaf = options_.geometry.blocks_per_leaf();
  const auto leaves = static_cast<uint32_t>(seq.table.size() / per_leaf);
  const auto blocks = static_cast<uint32_t>(seq.table.size());
  uint32_t most_staged = 0, most_missing = 0;
  for (uint32_t g = 0; g < options_.geometry.groups(); ++g) {
    const uint32_t on_device = seq.holds.device_in_group.empty() ? 0 : seq.holds.device_in_group[g];
    uint32_t at_peers = 0;
    for (uint32_t leaf = 0; leaf < leaves && on_device < blocks; ++leaf) {
      if (lies_at_peers(seq.holds, seq.table, leaf, g)) at_peers += per_leaf;
    }
    most_staged = std::max(most_staged, blocks - on_device - at_peers);
    most_missing = std::max(most_missing, blocks - on_device);
  }
  return most_missing - most_staged;
}

void KvCache::count_cached_at_peers(SeqId id, SequenceCells& cells) const {
  const PrefixIndex::Match cached = index_.match(id);
  if (!options_.has_peers_cells() || cached.what.cells[index_of(kHostKv)] == 0) return;
  const Sequence& seq = at(id);
  const uint32_t per_leaf = options_.geometry.blocks_per_leaf();
  const auto at_peers = [&](const BlockHash& hash) {
    const BlockMap::Block& b = map_.block(index_.find(hash));
    const BlockMap::Copies& host = b.at(kHostKv);
    // Of several copies it would adopt the one on the device.
    if (host.usable() != map_.all_groups() || !b.at(kDeviceKv).usable().empty() ||
        !b.at({Form::kX, Tier::kDevice}).usable().empty())
      return false;
    bool there = true;
    if (options_.own_host_cells() > 0)
      host.present.for_each([&](uint32_t g) { there &= borrowed_.contains(kHostKv, host.by_group[g].at); });
    return there;
  };
  for (uint32_t leaf = 0; (leaf + 1) * per_leaf <= cached.matched; ++leaf) {
    const auto first = seq.hashes.begin() + 1 + leaf * per_leaf;
    if (!std::all_of(first, first + per_leaf, at_peers)) continue;
    cells.cached_peer_blocks += per_leaf;
    cells.attended |= map_.block(index_.find(*first)).attended;
  }
}

uint32_t KvCache::first_device_block(const Sequence& seq) const {
  const auto here = [&](BlockId id) { return !map_.owner(id, seq.holds).at(kDeviceKv).empty(); };
  return static_cast<uint32_t>(std::find_if(seq.table.begin(), seq.table.end(), here) - seq.table.begin());
}

// ---------------------------------------------------------------- as a creditor

std::vector<uint64_t> KvCache::lend(Tier tier, uint32_t cells) {
  const int64_t free = std::max<int64_t>(0, budget(tier).available_cells());
  std::vector<uint64_t> frames;
  for (uint32_t n = static_cast<uint32_t>(std::min<int64_t>(cells, free)); n > 0; --n) {
    frames.push_back(map_.take_frame({Form::kKv, tier}));
  }
  lent_[index_of(tier)] += static_cast<uint32_t>(frames.size());
  return frames;
}

std::optional<std::vector<KvCache::Frame>> KvCache::lend_blocks(std::span<const BlockHash> chain) {
  const uint32_t groups = options_.geometry.groups();
  std::array<int64_t, kTiers> free{};
  for (Tier tier : {Tier::kDevice, Tier::kHost}) free[index_of(tier)] = budget(tier).available_cells();
  struct Found {
    BlockId id = kNoBlock;
    Tier tier = Tier::kDevice;
  };
  std::vector<Found> found;
  for (const BlockHash& hash : chain) {
    const BlockId id = index_.find(hash);
    if (id == kNoBlock) break;
    const BlockMap::Block& b = map_.block(id);
    std::optional<Tier> where;
    for (Tier tier : {Tier::kHost, Tier::kDevice}) {
      const BlockMap::Copies& copies = b.at({Form::kKv, tier});
      const bool own = tier == Tier::kDevice || options_.borrowed_bytes == 0;
      // What is idle counts as free, and may be promised.
      if (own && copies.idle == map_.all_groups() && free[index_of(tier)] >= groups) where = tier;
    }
    if (!where && (!b.owners.empty() || b.pins > 0)) return std::nullopt;
    if (!where) break;
    free[index_of(*where)] -= groups;
    found.push_back({id, *where});
  }
  std::vector<Frame> frames;
  frames.reserve(found.size() * groups);
  for (const Found& f : found) {
    for (const uint64_t at : map_.take_idle_frames(f.id, f.tier)) frames.push_back({f.tier, at});
    lent_[index_of(f.tier)] += groups;
  }
  return frames;
}

void KvCache::take_back(Tier tier, std::span<const uint64_t> frames) {
  KV_CHECK(frames.size() <= lent_[index_of(tier)], "{} of {} lent frames", frames.size(),
           lent_[index_of(tier)]);
  for (uint64_t at : frames) map_.give_back_frame({Form::kKv, tier}, at);
  lent_[index_of(tier)] -= static_cast<uint32_t>(frames.size());
}

}  // namespace kvasir
