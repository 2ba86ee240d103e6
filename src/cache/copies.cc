// The map's copies on the move: what is added to a tier, what is given up, and what transfers leave behind.
#include <algorithm>

#include "base/check.h"
#include "base/mutant.h"
#include "cache/kv_cache.h"

namespace kvasir {
namespace {

TransferPriority priority_of(const CopyChange& change) {
  if (change.trigger == Trigger::kBeforeLayer) return TransferPriority::kNeededNow;
  const bool soon = change.trigger == Trigger::kNow && change.tier == Tier::kDevice;
  return soon ? TransferPriority::kPrefetch : TransferPriority::kOffload;
}

// There, but without bytes, and nothing brings them.
bool is_dead(const BlockMap::Copies& copies, uint32_t group) {
  return !copies.ready.contains(group) && copies.by_group[group].fillers.empty();
}

// Its bytes are there or will be.
bool is_source(const BlockMap::Copies& copies, uint32_t group) {
  return copies.present.contains(group) && !is_dead(copies, group) && !copies.by_group[group].failed;
}

// What a transfer reads on the device is kept until it has ended, as all that it uses is.
bool is_pinned_by_transfer(const KvCache::Use& use) {
  return !mutant(Mutant::kTransferSourceFreedEarly) || use.fills || use.place.tier != Tier::kDevice;
}

}  // namespace

bool KvCache::being_written(const BlockMap::Block& block) const {
  return !in_flight_.empty() && raw(block.last_write) >= raw(in_flight_.front().id);
}

KvCache::Additions KvCache::add_copies(const CopyChange& change, bool tail) {
  Sequence& seq = at(change.seq);
  const Place to = {change.form, change.tier};
  const uint32_t b = block_tokens();
  const auto named = static_cast<uint32_t>(seq.table.size());
  const bool whole_tail = tail && change.form == Form::kKv;
  const uint32_t end = std::min(named, whole_tail ? ceil_div(change.tokens.end, b) : change.tokens.end / b);
  Additions out;
  std::optional<uint64_t> near;
  change.layers.for_each([&](uint32_t g) {
    Addition added;
    for (uint32_t i = change.tokens.begin / b; i < end; ++i) {
      if (add_copy(seq, seq.table[i], g, to, near, added) || to != kDeviceKv) continue;
      out.projected.push_back({i, g});
    }
    if (added.transfer.segments.empty()) return;
    sort_once(added.transfer.needs);
    added.transfer.id = begin_transfer(change.seq, added.uses, /*cancellable=*/true);
    added.transfer.priority = priority_of(change);
    for (StepRecord& record : in_flight_) {
      if (record.id != added.last_write) continue;
      record.transfers.push_back(std::move(added.transfer));
      return;
    }
    out.transfers.push_back(std::move(added.transfer));
  });
  return out;
}

// From which of the owner's copies one of the same form can be had: what is there already before what is
// still coming, and the faster tier before the slower one. Reading what nobody needs would make it needed,
// which no plan has counted.
const BlockMap::Copies* KvCache::source_of(const BlockMap::Block& block, const BlockMap::Owner& owner,
                                           Place to, uint32_t group, Place& from) const {
  for (bool ready : {true, false}) {
    for (Tier tier : kAllTiers) {
      if (tier == to.tier) continue;
      const BlockMap::Copies& copies = block.at({to.form, tier});
      if (!owner.at({to.form, tier}).contains(group)) continue;
      if (!copies.current.contains(group) || !is_source(copies, group)) continue;
      if (ready && !copies.ready.contains(group)) continue;
      from = {to.form, tier};
      return &copies;
    }
  }
  return nullptr;
}

// The segments and uses of copying a cell of a form to another tier.
void KvCache::move_cell(const BlockMap::Block& block, uint32_t group, Place from, Tier to,
                        Addition& out) const {
  const CacheGeometry& g = options_.geometry;
  const uint64_t source = block.at(from).by_group[group].at;
  const uint64_t target = block.at({from.form, to}).by_group[group].at;
  if (from.tier != Tier::kDisk && to != Tier::kDisk) {
    out.transfer.segments.push_back({{source, from.tier}, {target, to}, g.cell_bytes(from.form)});
    return;
  }
  // On the disk each piece stands for itself.
  const uint32_t pieces = from.form == Form::kH ? 1 : g.layers_in(group);
  for (uint32_t i = 0; i < pieces; ++i) {
    out.transfer.segments.push_back({{source + i * g.piece_stride(from.form, from.tier), from.tier},
                                     {target + i * g.piece_stride(from.form, to), to},
                                     g.piece_bytes(from.form)});
  }
}

// The interest in a copy, and what has to move for it.
bool KvCache::add_copy(Sequence& seq, BlockId id, uint32_t g, Place to, std::optional<uint64_t>& near,
                       Addition& out) {
  const BlockMap::Block& block = map_.block(id);
  const BlockMap::Copies& target = block.at(to);
  // What a transfer that failed leaves behind may still be there for its readers: it is filled anew.
  const bool there = target.current.contains(g) && !is_dead(target, g);
  Place from;
  const BlockMap::Copies* source = source_of(block, map_.owner(id, seq.holds), to, g, from);
  if (!there && !source) return false;
  // Bytes that turned out to be lost may still be read: they are written anew when nothing does.
  if (!there && to.tier != Tier::kDevice && target.pinned.contains(g)) return false;
  // Also where it is there already: nobody may have needed it.
  const bool wanted = map_.owner(id, seq.holds).at(to).contains(g);
  if (!wanted && to.form == Form::kKv) draw(seq, to.tier, 1);
  map_.want(id, seq.holds, to, LayerSet::one(g), near);
  if (there) return true;
  const BlockMap::Copy& has = source->by_group[g];
  move_cell(block, g, from, to.tier, out);
  out.transfer.needs.insert(out.transfer.needs.end(), has.fillers.begin(), has.fillers.end());
  out.uses.push_back({id, from, g, false});
  out.uses.push_back({id, to, g, true});
  if (being_written(block)) out.last_write = std::max(out.last_write, block.last_write);
  return true;
}

std::vector<KvCache::Cell> KvCache::write_through(const CopyChange& change) {
  Sequence& seq = at(change.seq);
  const Place to = {Form::kKv, change.tier};
  const uint32_t b = block_tokens();
  const uint32_t end = std::min<uint32_t>(static_cast<uint32_t>(seq.table.size()), change.tokens.end / b);
  std::vector<Cell> out;
  std::optional<uint64_t> near;
  change.layers.for_each([&](uint32_t g) {
    for (uint32_t i = change.tokens.begin / b; i < end; ++i) {
      const BlockMap::Block& block = map_.block(seq.table[i]);
      if (block.tokens < b || block.at(to).present.contains(g)) continue;
      draw(seq, to.tier, 1);
      map_.want(seq.table[i], seq.holds, to, LayerSet::one(g), near);
      out.push_back({i, g});
    }
  });
  return out;
}

void KvCache::leave(const CopyChange& change) {
  Sequence& seq = at(change.seq);
  const uint32_t end = std::min<uint32_t>(static_cast<uint32_t>(seq.table.size()),
                                          ceil_div(change.tokens.end, block_tokens()));
  for (uint32_t i = change.tokens.begin / block_tokens(); i < end; ++i) {
    if (change.tier == Tier::kDevice) pin_for_newest_step(seq.table[i]);
    map_.leave(seq.table[i], seq.holds, {change.form, change.tier}, change.layers);
  }
}

void KvCache::drop(const CopyChange& change) {
  Sequence& seq = at(change.seq);
  const uint32_t end = std::min(static_cast<uint32_t>(seq.table.size()),
                                std::min(change.tokens.end, seq.ready_tokens) / block_tokens());
  for (uint32_t i = change.tokens.begin / block_tokens(); i < end; ++i) {
    if (change.tier == Tier::kDevice) pin_for_newest_step(seq.table[i]);
    map_.drop(seq.table[i], seq.holds, {change.form, change.tier}, change.layers);
  }
}

// ---------------------------------------------------------------- transfers

TransferId KvCache::begin_transfer(SeqId id, const std::vector<Use>& uses, bool cancellable) {
  const TransferId transfer{next_transfer_++};
  for (const Use& use : uses) {
    if (is_pinned_by_transfer(use)) map_.pin(use.block, use.place, use.group);
    if (use.fills) map_.add_filler(use.block, use.place, use.group, transfer);
  }
  transfers_.emplace(transfer, TransferRecord{id, uses, cancellable});
  if (id != SeqId{}) ++at(id).transfers;
  return transfer;
}

// Sequences that lose an interest: if it was their last one in the cell, it has to be computed again.
void KvCache::note_losers(const Use& use, std::vector<Loser>& losers) const {
  if (use.place.form == Form::kH) return;
  for (const BlockMap::Owner& o : map_.block(use.block).owners) {
    if (o.at(use.place).contains(use.group)) losers.push_back({use, o.who->seq});
  }
}

// Of those, the ones that have nothing else from which K and V of the cell can be had.
std::vector<std::pair<SeqId, BlockId>> KvCache::lost_by(std::span<const Loser> losers) const {
  std::vector<std::pair<SeqId, BlockId>> lost;
  for (const auto& [use, seq] : losers) {
    const BlockMap::Block& block = map_.block(use.block);
    for (const BlockMap::Owner& o : block.owners) {
      LayerSet held;
      for (size_t p = 0; p < kPlacesOfKv; ++p) {
        // Of a block that is not full there is nothing but KV.
        if (place_at(p).form == Form::kX && block.tokens < block_tokens()) continue;
        held |= o.wants[p] & block.on[p].current;
      }
      if (o.who->seq == seq && !held.contains(use.group)) lost.emplace_back(seq, use.block);
    }
  }
  return lost;
}

void KvCache::discard_copies(std::span<const Use> copies) {
  std::vector<Loser> losers;
  for (const Use& use : copies) {
    note_losers(use, losers);
    // What leaves the device now may still be read by a step in flight.
    pin_for_newest_step(use.block);
    map_.discard(use.block, use.place, use.group);
  }
  for (const auto& [seq, block] : lost_by(losers)) lose(seq, block);
}

void KvCache::transfer_ended(TransferId id, const Status& status) {
  auto it = transfers_.find(id);
  KV_CHECK(it != transfers_.end(), "transfer={}", raw(id));
  const TransferRecord record = std::move(it->second);
  transfers_.erase(it);
  if (record.saves) --saves_in_flight_;
  if (auto seq = sequences_.find(record.seq); seq != sequences_.end()) {
    --seq->second.transfers;
    touched_.push_back(record.seq);
  }
  std::vector<Loser> losers;
  const bool lost_source = !status.ok() && status.code() == ErrorCode::kCorrupt;
  for (const Use& use : record.uses) {
    if (use.fills) {
      if (!status.ok()) note_losers(use, losers);
      // What leaves the device now may still be read by a step in flight.
      pin_for_newest_step(use.block);
      map_.filler_ended(use.block, use.place, use.group, id, status.ok());
    } else if (lost_source && use.place.tier == Tier::kDisk && !mutant(Mutant::kCorruptKept)) {
      note_losers(use, losers);
      map_.discard(use.block, use.place, use.group);
    }
  }
  const std::vector<std::pair<SeqId, BlockId>> lost = lost_by(losers);
  for (const Use& use : record.uses) {
    if (is_pinned_by_transfer(use)) map_.unpin(use.block, use.place, use.group);
  }
  for (const auto& [seq, block] : lost) lose(seq, block);
}

}  // namespace kvasir
