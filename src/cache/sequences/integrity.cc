// check_integrity() of the map: counts everything again from the ground.
#include <map>
#include <set>

#include "cache/sequences/kv_cache.h"

namespace kvasir {
namespace {

template <typename... Args>
Status bad(fmt::format_string<Args...> format, Args&&... args) {
  return error(ErrorCode::kCorrupt, format, std::forward<Args>(args)...);
}

}  // namespace

// The copies of block i at a place; where they lie joins the frames that are taken.
Status BlockMap::check_copies(uint32_t i, size_t p, std::set<uint64_t>& frames) const {
  const Block& b = blocks_[i];
  const Copies& copies = b.on[p];
  const Place place = place_at(p);
  const LayerSet wants = wanted(b, p);
  if (!((copies.ready | copies.current | copies.pinned | copies.idle | wants) - copies.present).empty()) {
    return bad("block {}: a copy of {} on {} is ready, pinned, idle or wanted and not there", i,
               name(place.form), name(place.tier));
  }
  if (!(copies.idle & (wants | copies.pinned)).empty() || !(copies.idle - copies.usable()).empty() ||
      (!copies.idle.empty() && !b.published)) {
    return bad("block {}: a copy on {} is idle and needed, or in a block that cannot be found", i,
               name(place.tier));
  }
  const bool held_by_step = place.tier == Tier::kDevice && b.step_pins > 0;
  if (!held_by_step && !(copies.present - wants - copies.pinned - copies.idle).empty()) {
    return bad("block {}: a copy on {} that nothing needs is still there", i, name(place.tier));
  }
  LayerSet kept;
  for (const Owner& o : b.owners) kept |= o.wants[p] - o.released[p];
  const bool stays = b.keepers > 0 || (b.attended && place == kHostKv);
  if (b.coming[p] != (stays ? 0 : (copies.present - kept - copies.idle).count())) {
    return bad("block {}: {} cells are coming, counted wrongly", i, b.coming[p]);
  }
  if (copies.pins.counted() != copies.pinned) return bad("block {}: pinned, listed wrongly", i);
  if (!((copies.filling() | copies.failed) - copies.pinned).empty()) {
    return bad("block {}: what fills a copy on {} does not use it", i, name(place.tier));
  }
  if (!((wants & copies.present) - copies.ready - copies.filling() - copies.pinned).empty()) {
    return bad("block {}: nothing fills its copy on {}", i, name(place.tier));
  }
  Status status;
  copies.present.for_each([&](uint32_t g) {
    const uint64_t at = copies.by_group[g].at;
    if (!frames.insert(at).second) status = bad("{} frame {} is used twice", name(place.tier), at);
  });
  return status;
}

Status BlockMap::check_integrity(const std::array<uint32_t, kPlaces>& loose_frames) const {
  for (const SlabPool& pool : pools_) KV_RETURN_IF_ERROR(pool.check_integrity());
  std::array<std::set<uint64_t>, kPlaces> frames;
  std::map<const Holdings*, Holdings> counted;
  size_t published = 0;
  std::array<uint32_t, kPlaces> coming{}, idle{};
  for (uint32_t i = 0; i < blocks_.size(); ++i) {
    const Block& b = blocks_[i];
    if (!b.used) continue;
    if (b.published) {
      ++published;
      if (index_.find(b.hash) != static_cast<BlockId>(i)) return bad("block {}: its hash finds another", i);
    }
    if (b.published && !can_be_found(b)) return bad("block {} is published and cannot be found", i);
    if (b.unsettled) return bad("block {} was not settled", i);
    if (b.owners.empty() && b.pins == 0 && !b.published) return bad("block {} has no owner, pin or hash", i);
    for (Tier tier : kAllTiers) {
      const bool some = !b.at({Form::kKv, tier}).idle.empty() || !b.at({Form::kX, tier}).idle.empty();
      if (some != lru_[index_of(tier)].contains(static_cast<BlockId>(i)))
        return bad("block {}: idle, listed wrongly", i);
    }
    uint64_t pins = b.step_pins;
    for (size_t p = 0; p < kPlaces; ++p) {
      coming[p] += b.coming[p];
      idle[p] += b.on[p].idle.count();
      KV_RETURN_IF_ERROR(check_copies(i, p, frames[p]));
      pins += b.on[p].pins.total();
    }
    for (const Owner& o : b.owners) {
      Holdings& sum = counted[o.holder];
      for (size_t p = 0; p < kPlaces; ++p) {
        sum.cells[p] += o.wants[p].count();
        sum.own[p] += o.own[p];
        if (!(o.released[p] - o.wants[p]).empty())
          return bad("block {}: releases a copy that it does not hold", i);
      }
      const Copies& device = b.at(kDeviceKv);
      sum.released += o.released[index_of(kDeviceKv)].count();
      sum.filling += (o.at(kDeviceKv) & (device.present - device.ready)).count();
      sum.dropped += (all_ - o.covered()).count();
      sum.dead += o.dead.count();
      sum.device_in_group.resize(geometry_.groups());
      (o.at(kDeviceKv) | o.dead).for_each([&](uint32_t g) { ++sum.device_in_group[g]; });
      for (size_t p = 0; p < kPlaces; ++p) {
        if (!(o.wants[p] & o.dead).empty()) return bad("block {}: a cell is held and dead", i);
      }
    }
    if (pins != b.pins) return bad("block {}: {} pins, counted {}", i, b.pins, pins);
  }
  for (auto& [holder, sum] : counted) {
    // None are counted before the first.
    if (holder->device_in_group.empty()) std::erase(sum.device_in_group, 0u);
    if (sum.cells != holder->cells || sum.own != holder->own || sum.released != holder->released ||
        sum.filling != holder->filling || sum.dropped != holder->dropped || sum.dead != holder->dead ||
        sum.device_in_group != holder->device_in_group) {
      return bad("sequence {}: its cells are counted wrongly", raw(holder->seq));
    }
  }
  if (coming != coming_) return bad("what is coming is counted wrongly");
  if (published != index_.published())
    return bad("{} blocks published, counted {}", published, index_.published());
  for (size_t p = 0; p < kPlaces; ++p) {
    const SlabPool& pool = pools_[index_of(place_at(p).tier)];
    const size_t form = index_of(place_at(p).form);
    if (frames[p].size() + loose_frames[p] != pool.used_frames(form) || idle[p] != pool.idle_frames(form)) {
      return bad("{} of {} on {}: {} frames in blocks and {} in steps, {} idle; the pool has {} and {}", p,
                 name(place_at(p).form), name(place_at(p).tier), frames[p].size(), loose_frames[p], idle[p],
                 pool.used_frames(form), pool.idle_frames(form));
    }
  }
  return {};
}

Status KvCache::check_integrity() const {
  std::array<uint32_t, kPlaces> loose = steps_.frames();
  for (Tier tier : kAllTiers) loose[index_of(Place{Form::kKv, tier})] += lent_[index_of(tier)];
  KV_RETURN_IF_ERROR(map_.check_integrity(loose));

  std::map<uint32_t, std::multiset<uint64_t>> owners;  // as the tables have them
  size_t listed = 0;                                   // transfers, by the sequences
  for (const auto& [id, seq] : sequences_) {
    for (BlockId b : seq.table) owners[raw(b)].insert(raw(id));
    if (seq.table.size() != options_.geometry.blocks_for(seq.ready_tokens)) {
      return bad("sequence {}: {} ready tokens in {} blocks", raw(id), seq.ready_tokens, seq.table.size());
    }
    if (seq.dead_blocks > options_.geometry.dead_blocks(seq.ready_tokens)) {
      return bad("sequence {}: {} dead blocks of {} tokens", raw(id), seq.dead_blocks, seq.ready_tokens);
    }
    for (uint32_t i = 0; i < seq.table.size(); ++i) {
      const LayerSet dead = i < seq.dead_blocks ? options_.geometry.windowed : LayerSet();
      if (map_.owner(seq.table[i], seq.holds).dead != dead) {
        return bad("sequence {}: of block {} others than the windowed cells are dead", raw(id), i);
      }
    }
    // Of a block that is not full there is KV of every group, somewhere.
    if (seq.ready_tokens % options_.geometry.block_tokens != 0) {
      const BlockMap::Owner& o = map_.owner(seq.table.back(), seq.holds);
      LayerSet kv;
      for (Tier tier : kAllTiers) kv |= o.at({Form::kKv, tier});
      if (kv != map_.all_groups()) {
        return bad("sequence {}: a cell of its last block {} has no KV", raw(id), raw(seq.table.back()));
      }
    }
    size_t transfers = 0;
    for (const TransferRecord* t = seq.transfers.first; t; t = t->next) {
      if (t->seq != &seq || transfers_.find(t->id) != t) {
        return bad("sequence {}: transfer {} is not its own", raw(id), raw(t->id));
      }
      ++transfers;
    }
    if (transfers != seq.transfers.size) {
      return bad("sequence {}: {} transfers, counted {}", raw(id), seq.transfers.size, transfers);
    }
    listed += transfers;
  }
  KV_RETURN_IF_ERROR(promises_.check_integrity());
  for (const Claim& c : promises_.claims()) {
    if (!sequences_.contains(c.creditor) || (!c.called && !sequences_.contains(c.debtor))) {
      return bad("a claim of {} on {}, of {} cells", raw(c.creditor), raw(c.debtor), c.cells);
    }
  }

  std::map<uint32_t, uint32_t> step_pins, transfer_pins;
  for (const StepsInFlight::Record& record : steps_.records()) {
    for (BlockId b : record.pinned) ++step_pins[raw(b)];
  }
  std::map<const SharedReads*, uint32_t> shared;
  for (const auto& [id, record] : transfers_) {
    if (record.seq) --listed;
    for (const Use& use : record.uses) transfer_pins[raw(use.block)] += use.groups.count();
    if (record.reads) ++shared[record.reads];
  }
  if (listed != 0) return bad("sequences list other transfers than those that name them");
  if (shared.size() + spare_reads_.size() != reads_.size()) return bad("shared reads are counted wrongly");
  for (const auto& [reads, transfers] : shared) {
    if (transfers != reads->transfers)
      return bad("{} transfers share reads, not {}", transfers, reads->transfers);
    for (const Use& use : reads->uses) transfer_pins[raw(use.block)] += use.groups.count();
  }
  for (const auto& [hold, blocks] : attended_) {
    for (const BlockId id : blocks) transfer_pins[raw(id)] += options_.geometry.groups();
  }
  std::map<uint32_t, uint32_t> keepers;
  for (const auto& [id, uses] : kept_prefixes_) {
    for (const Use& use : uses) {
      ++keepers[raw(use.block)];
      transfer_pins[raw(use.block)] += use.groups.count();
    }
  }
  for (uint32_t i = 0; i < map_.blocks().size(); ++i) {
    const BlockMap::Block& b = map_.blocks()[i];
    if (b.keepers != keepers[i]) return bad("block {}: {} keepers, counted {}", i, b.keepers, keepers[i]);
    std::multiset<uint64_t> names;
    for (const BlockMap::Owner& o : b.owners) names.insert(raw(o.holder->seq));
    if (names != owners[i]) {
      return bad("block {}: {} owners, {} tables name it", i, names.size(), owners[i].size());
    }
    if (b.step_pins != step_pins[i] || b.pins != step_pins[i] + transfer_pins[i]) {
      return bad("block {}: {} pins, counted {}", i, b.pins, step_pins[i] + transfer_pins[i]);
    }
  }
  for (Tier tier : kAllTiers) {
    if (budget(tier).available_cells() < 0) return bad("promises exceed what there is on {}", name(tier));
  }
  return {};
}

}  // namespace kvasir
