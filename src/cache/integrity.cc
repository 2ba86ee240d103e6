// check_integrity() of the map: counts everything again from the ground.
#include <map>
#include <set>

#include "cache/kv_cache.h"

namespace kvasir {
namespace {

template <typename... Args>
Status bad(fmt::format_string<Args...> format, Args&&... args) {
  return error(ErrorCode::kCorrupt, format, std::forward<Args>(args)...);
}

}  // namespace

// The copies of block i on a tier, of which its owners want some; their places join those that are taken.
Status BlockMap::check_copies(uint32_t i, Tier tier, const LayerSet& wanted,
                              std::set<uint64_t>& places) const {
  const Block& b = blocks_[i];
  const Copies& copies = b.on[index_of(tier)];
  if (!(wanted - copies.present).empty()) {
    return bad("block {}: a copy on {} is wanted and not there", i, name(tier));
  }
  const bool kept = b.idle || (b.owners.empty() && b.pins > 0) || (tier == Tier::kDevice && b.step_pins > 0);
  if (!kept && !(copies.present - wanted - copies.pinned).empty()) {
    return bad("block {}: a copy on {} is there for nobody", i, name(tier));
  }
  if (!((copies.ready | copies.pinned) - copies.present).empty()) {
    return bad("block {}: a copy on {} is ready or pinned and not there", i, name(tier));
  }
  Status status;
  copies.present.for_each([&](uint32_t g) {
    const Copy& copy = copies.by_group[g];
    if ((copy.pins > 0) != copies.pinned.contains(g)) status = bad("block {}: pinned, listed wrongly", i);
    if (!copies.ready.contains(g) && copy.fillers.empty() && !copies.pinned.contains(g) &&
        wanted.contains(g)) {
      status = bad("block {}: nothing fills its copy on {}", i, name(tier));
    }
    for (uint64_t offset : {copy.at.k, copy.at.v}) {
      if (!places.insert(offset).second) status = bad("{} frame {} is used twice", name(tier), offset);
    }
  });
  return status;
}

Status BlockMap::check_integrity() const {
  KV_RETURN_IF_ERROR(device_.check_integrity());
  KV_RETURN_IF_ERROR(host_.check_integrity());
  const std::set<BlockId> idle(lru_.begin(), lru_.end());
  std::array<std::set<uint64_t>, kCopyTierCount> places;
  std::map<const Holdings*, Holdings> counted;
  size_t published = 0;
  uint32_t coming = 0;
  for (uint32_t i = 0; i < blocks_.size(); ++i) {
    const Block& b = blocks_[i];
    if (!b.used) continue;
    if (b.idle != idle.contains(static_cast<BlockId>(i))) return bad("block {}: idle, listed wrongly", i);
    if (b.idle != (b.owners.empty() && b.pins == 0)) return bad("block {}: idle and needed, or neither", i);
    if (b.published) {
      ++published;
      if (index_.find(b.hash) != static_cast<BlockId>(i)) return bad("block {}: its hash finds another", i);
      if (b.on[index_of(Tier::kDevice)].ready != all_)
        return bad("block {} is published and not complete", i);
    }
    if (b.idle && (!b.published || !b.on[index_of(Tier::kHost)].present.empty())) {
      return bad("block {} is idle but cannot be found, or has copies on the host", i);
    }
    coming += b.coming;
    uint32_t pins = b.step_pins;
    std::array<LayerSet, kCopyTierCount> wanted;
    for (const Owner& o : b.owners) {
      Holdings& sum = counted[o.who];
      for (Tier tier : kCopyTiers) {
        wanted[index_of(tier)] |= o.wants[index_of(tier)];
        sum.cells[index_of(tier)] += o.wants[index_of(tier)].count();
        sum.own[index_of(tier)] += o.own[index_of(tier)];
      }
      sum.leaving += o.leaving.count();
      sum.filling += (o.wants[index_of(Tier::kDevice)] &
                      (b.on[index_of(Tier::kDevice)].present - b.on[index_of(Tier::kDevice)].ready))
                         .count();
      if (!(o.leaving - o.wants[index_of(Tier::kDevice)]).empty())
        return bad("block {}: leaves where it is not", i);
    }
    for (Tier tier : kCopyTiers) {
      KV_RETURN_IF_ERROR(check_copies(i, tier, wanted[index_of(tier)], places[index_of(tier)]));
      b.on[index_of(tier)].present.for_each(
          [&](uint32_t g) { pins += b.on[index_of(tier)].by_group[g].pins; });
    }
    if (pins != b.pins) return bad("block {}: {} pins, counted {}", i, b.pins, pins);
  }
  for (const auto& [who, sum] : counted) {
    if (sum.cells != who->cells || sum.own != who->own || sum.leaving != who->leaving ||
        sum.filling != who->filling) {
      return bad("sequence {}: its cells are counted wrongly", raw(who->seq));
    }
  }
  if (coming != coming_) return bad("{} cells are coming, counted {}", coming_, coming);
  if (published != index_.published())
    return bad("{} blocks published, counted {}", published, index_.published());
  const uint32_t on_device = device_.used_frames(static_cast<size_t>(FrameClass::kKvPlane));
  if (places[0].size() != on_device)
    return bad("{} frames in blocks, {} in the pool", places[0].size(), on_device);
  const size_t on_host = size_t{kFramesPerKvCell} * (host_.units() - host_.free_units());
  if (places[1].size() != on_host)
    return bad("{} host frames in blocks, {} in the pool", places[1].size(), on_host);
  return {};
}

Status KvCache::check_integrity() const {
  KV_RETURN_IF_ERROR(map_.check_integrity());

  std::map<uint32_t, std::multiset<uint64_t>> owners;  // as the tables have them
  std::array<uint32_t, kCopyTierCount> promised{};
  for (const auto& [id, seq] : sequences_) {
    for (size_t t = 0; t < kCopyTierCount; ++t) promised[t] += seq.promised[t];
    for (BlockId b : seq.table) owners[raw(b)].insert(raw(id));
    if (seq.table.size() != options_.geometry.blocks_for(seq.ready_tokens)) {
      return bad("sequence {}: {} ready tokens in {} blocks", raw(id), seq.ready_tokens, seq.table.size());
    }
    for (BlockId b : seq.table) {
      const BlockMap::Owner& o = map_.owner(b, seq.holds);
      if ((o.wants[0] | o.wants[1]) != map_.all_groups()) {
        return bad("sequence {}: a cell of block {} is on no tier", raw(id), raw(b));
      }
    }
    uint32_t transfers = 0;
    for (const auto& [transfer, record] : transfers_) transfers += record.seq == id ? 1 : 0;
    if (transfers != seq.transfers) {
      return bad("sequence {}: {} transfers, counted {}", raw(id), seq.transfers, transfers);
    }
  }
  if (promised != promised_cells_) return bad("promises are counted wrongly");

  std::map<uint32_t, uint32_t> step_pins, transfer_pins;
  for (const StepRecord& record : in_flight_) {
    for (BlockId b : record.pinned) ++step_pins[raw(b)];
  }
  for (const auto& [id, record] : transfers_) {
    for (const Use& use : record.uses) ++transfer_pins[raw(use.block)];
  }
  for (uint32_t i = 0; i < map_.blocks().size(); ++i) {
    const BlockMap::Block& b = map_.blocks()[i];
    std::multiset<uint64_t> names;
    for (const BlockMap::Owner& o : b.owners) names.insert(raw(o.who->seq));
    if (names != owners[i]) {
      return bad("block {}: {} owners, {} tables name it", i, names.size(), owners[i].size());
    }
    if (b.step_pins != step_pins[i] || b.pins != step_pins[i] + transfer_pins[i]) {
      return bad("block {}: {} pins, counted {}", i, b.pins, step_pins[i] + transfer_pins[i]);
    }
  }
  for (Tier tier : kCopyTiers) {
    if (budget(tier).available_cells() < 0) return bad("promises exceed what there is on {}", name(tier));
  }
  return {};
}

}  // namespace kvasir
