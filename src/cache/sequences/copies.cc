// The map's copies on the move: what is added to a tier, what is given up, and what transfers leave behind.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/mutant.h"
#include "cache/sequences/kv_cache.h"

namespace kvasir {
namespace {

TransferPriority priority_of(const CopyChange& change) {
  if (change.trigger == Trigger::kBeforeLayer) return TransferPriority::kNeededNow;
  const bool soon = change.trigger == Trigger::kNow && change.tier == Tier::kDevice;
  return soon ? TransferPriority::kPrefetch : TransferPriority::kOffload;
}

// Copies whose bytes are there, or will be.
LayerSet alive(const BlockMap::Copies& copies) {
  return copies.present & (copies.ready | copies.filling());
}

// What a transfer reads on the device is kept until it has ended, as all that it uses is.
bool is_pinned_by_transfer(const KvCache::Use& use) {
  return !mutant(Mutant::kTransferSourceFreedEarly) || use.fills || use.place.tier != Tier::kDevice;
}

}  // namespace

bool KvCache::being_written(const BlockMap::Block& block) const {
  return steps_.is_in_flight(block.last_write);
}

KvCache::Additions KvCache::add_copies(const CopyChange& change, bool stops) {
  Sequence& seq = at(change.seq);
  const Place to = {change.form, change.tier};
  const Interval named = named_blocks(seq, change, change.adds_tail(stops));
  std::vector<BlockAddition> parts;
  std::vector<BlockMap::Wish> wishes;
  parts.reserve(named.size());
  wishes.reserve(named.size());
  uint32_t wanted_anew = 0;
  for (uint32_t i = named.begin; i < named.end; ++i) {
    parts.push_back(addition_of(seq, i, change.layers, to));
    const BlockAddition& part = parts.back();
    wanted_anew += (part.added - map_.owner(part.id, seq.holds).at(to)).count();
    // Also where it is there already: no sequence may have needed it.
    if (!part.added.empty()) wishes.push_back({part.id, part.added});
  }
  if (to.form == Form::kKv) promises_.draw(change.seq, to.tier, wanted_anew);
  map_.want(wishes, seq.holds, to);

  Additions out;
  change.layers.for_each([&](uint32_t g) {
    Addition added;
    const auto moves = static_cast<size_t>(std::count_if(parts.begin(), parts.end(), [&](const auto& part) {
      return std::any_of(part.from.begin(), part.from.end(),
                         [&](const LayerSet& from) { return from.contains(g); });
    }));
    added.uses.reserve(2 * moves);
    added.transfer.segments.reserve(moves);
    for (const BlockAddition& part : parts) {
      if (to == kDeviceKv && part.nowhere.contains(g)) out.projected.push_back({part.number, g});
      add_moves(part, g, to, added);
    }
    if (added.transfer.segments.empty()) return;
    sort_once(added.transfer.needs);
    added.transfer.id = begin_transfer(change.seq, std::move(added.uses), /*cancellable=*/true);
    added.transfer.priority = priority_of(change);
    if (steps_.keep_back(added.last_write, added.transfer)) return;
    out.transfers.push_back(std::move(added.transfer));
  });
  return out;
}

// A copy of the same form is had from what is there already before what is still coming, and from the faster
// tier before the slower one. Reading an idle copy would make it needed, which no plan has counted.
KvCache::BlockAddition KvCache::addition_of(const Sequence& seq, uint32_t number, const LayerSet& groups,
                                            Place to) const {
  BlockAddition part;
  part.number = number;
  part.id = seq.table[number];
  const BlockMap::Block& block = map_.block(part.id);
  const BlockMap::Owner& owner = map_.owner(part.id, seq.holds);
  const BlockMap::Copies& target = block.at(to);
  // What a transfer that failed leaves behind may still be there for its readers: it is filled anew.
  const LayerSet live = groups - owner.dead;
  part.added = live & target.current & alive(target);
  part.nowhere = live - part.added;
  for (bool ready : {true, false}) {
    for (Tier tier : kAllTiers) {
      if (tier == to.tier) continue;
      const BlockMap::Copies& copies = block.at({to.form, tier});
      const LayerSet sources = (ready ? copies.ready : alive(copies)) & copies.current;
      LayerSet moved = part.nowhere & ((sources & owner.at({to.form, tier})) - copies.failed);
      // Bytes that turned out to be lost may still be read: they are written anew when nothing does.
      if (to.tier != Tier::kDevice) moved = moved - target.pinned;
      part.from[index_of(tier)] |= moved;
      part.added |= moved;
      part.nowhere = part.nowhere - moved;
    }
  }
  return part;
}

// What has to move for one group of a block.
void KvCache::add_moves(const BlockAddition& part, uint32_t group, Place to, Addition& out) const {
  for (Tier tier : kAllTiers) {
    if (!part.from[index_of(tier)].contains(group)) continue;
    const BlockMap::Block& block = map_.block(part.id);
    const Place from = {to.form, tier};
    move_cell(block, group, from, to.tier, out);
    block.at(from).append_fillers(group, out.transfer.needs);
    out.uses.push_back({part.id, from, LayerSet::one(group), false});
    out.uses.push_back({part.id, to, LayerSet::one(group), true});
    if (being_written(block)) out.last_write = std::max(out.last_write, block.last_write);
  }
}

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
  for (uint32_t i = 0; i < g.layers_in(group); ++i) {
    out.transfer.segments.push_back({{source + i * g.piece_stride(from.form, from.tier), from.tier},
                                     {target + i * g.piece_stride(from.form, to), to},
                                     g.piece_bytes(from.form)});
  }
}

void KvCache::add_segment(Transfer& transfer, MemoryAddress from, MemoryAddress to, uint64_t bytes) const {
  const bool by_piece = from.tier == Tier::kDisk || to.tier == Tier::kDisk || options_.has_peers_cells();
  if (!by_piece && !transfer.segments.empty()) {
    Segment& last = transfer.segments.back();
    if (MemoryAddress{last.from.offset + last.bytes, last.from.tier} == from &&
        MemoryAddress{last.to.offset + last.bytes, last.to.tier} == to) {
      last.bytes += bytes;
      return;
    }
  }
  transfer.segments.push_back({from, to, bytes});
}

void KvCache::add_segments(Transfer& transfer, const Pieces& from, const Pieces& to, uint64_t bytes,
                           uint32_t count) const {
  const bool by_piece =
      from.first.tier == Tier::kDisk || to.first.tier == Tier::kDisk || options_.has_peers_cells();
  if (!by_piece && from.distance == bytes && to.distance == bytes) {
    return add_segment(transfer, from.first, to.first, count * bytes);
  }
  for (uint32_t i = 0; i < count; ++i) {
    add_segment(transfer, {from.first.offset + i * from.distance, from.first.tier},
                {to.first.offset + i * to.distance, to.first.tier}, bytes);
  }
}

std::vector<KvCache::Cell> KvCache::write_through(const CopyChange& change) {
  Sequence& seq = at(change.seq);
  const Place to = {Form::kKv, change.tier};
  const Interval named = named_blocks(seq, change, /*tail=*/false);
  std::vector<Cell> out;
  std::vector<BlockMap::Wish> wishes;
  for (uint32_t i = named.begin; i < named.end; ++i) {
    const BlockMap::Block& block = map_.block(seq.table[i]);
    const LayerSet groups = change.layers - block.at(to).present;
    if (block.tokens < block_tokens() || groups.empty()) continue;
    wishes.push_back({seq.table[i], groups});
    groups.for_each([&](uint32_t g) { out.push_back({i, g}); });
  }
  promises_.draw(change.seq, to.tier, static_cast<uint32_t>(out.size()));
  map_.want(wishes, seq.holds, to);
  return out;
}

void KvCache::release(const CopyChange& change) {
  Sequence& seq = at(change.seq);
  const Interval named = named_blocks(seq, change, change.gives_up_tail());
  for (uint32_t i = named.begin; i < named.end; ++i) {
    if (change.tier == Tier::kDevice) pin_for_newest_step(seq.table[i]);
    map_.release(seq.table[i], seq.holds, {change.form, change.tier}, change.layers);
  }
}

void KvCache::drop(const CopyChange& change) {
  Sequence& seq = at(change.seq);
  const Interval ready = {0, seq.ready_tokens / block_tokens()};
  const Interval named = intersect(named_blocks(seq, change, change.gives_up_tail()), ready);
  for (uint32_t i = named.begin; i < named.end; ++i) {
    if (change.tier == Tier::kDevice) pin_for_newest_step(seq.table[i]);
    map_.drop(seq.table[i], seq.holds, {change.form, change.tier}, change.layers);
  }
}

// ---------------------------------------------------------------- transfers

void KvCache::TransferList::push_back(TransferRecord& record) {
  record.before = last;
  (last ? last->next : first) = &record;
  last = &record;
  ++size;
}

void KvCache::TransferList::erase(TransferRecord& record) {
  (record.before ? record.before->next : first) = record.next;
  (record.next ? record.next->before : last) = record.before;
  --size;
}

KvCache::SharedReads* KvCache::begin_reads(std::span<const Use> uses) {
  for (const Use& each : uses) use(each, TransferId{});
  if (spare_reads_.empty()) spare_reads_.push_back(&reads_.emplace_back());
  SharedReads* const reads = spare_reads_.back();
  spare_reads_.pop_back();
  reads->uses.assign(uses.begin(), uses.end());
  return reads;
}

TransferId KvCache::begin_transfer(SeqId id, std::vector<Use> uses, bool cancellable, SharedReads* reads) {
  const TransferId transfer{next_transfer_++};
  for (const Use& each : uses) use(each, transfer);
  TransferRecord& record = *transfers_.try_emplace(transfer).first;
  record.id = transfer;
  record.uses = std::move(uses);
  record.reads = reads;
  record.cancellable = cancellable;
  record.commit = commits_;
  if (reads) ++reads->transfers;
  if (id != SeqId{}) {
    record.seq = &at(id);
    record.seq->transfers.push_back(record);
  }
  return transfer;
}

void KvCache::use(const Use& use, TransferId transfer) {
  if (is_pinned_by_transfer(use)) map_.pin(use.block, use.place, use.groups);
  if (use.fills) map_.add_filler(use.block, use.place, use.groups, transfer);
}

// Sequences that lose this copy. If it was their last one of the cell, the cell has to be recomputed.
void KvCache::note_losers(const Use& use, std::vector<Loser>& losers) const {
  for (const BlockMap::Owner& o : map_.block(use.block).owners) {
    const LayerSet lost = o.at(use.place) & use.groups;
    if (!lost.empty()) losers.push_back({use.block, lost, o.holder->seq});
  }
}

// Of those, the sequences that hold no other copy of the cell.
std::vector<std::pair<SeqId, BlockId>> KvCache::lost_by(std::span<const Loser> losers) const {
  std::vector<std::pair<SeqId, BlockId>> lost;
  for (const auto& [id, groups, seq] : losers) {
    const BlockMap::Block& block = map_.block(id);
    for (const BlockMap::Owner& o : block.owners) {
      LayerSet held;
      for (size_t p = 0; p < kPlaces; ++p) {
        // Of a block that is not full there is nothing but KV.
        if (place_at(p).form == Form::kX && block.tokens < block_tokens()) continue;
        held |= o.wants[p] & block.on[p].current;
      }
      if (o.holder->seq == seq && !(groups - held).empty()) lost.emplace_back(seq, id);
    }
  }
  return lost;
}

void KvCache::discard_copies(std::span<const Use> copies) {
  std::vector<Loser> losers;
  for (const Use& use : copies) {
    note_losers(use, losers);
    // What is given up on the device now may still be read by a step in flight.
    pin_for_newest_step(use.block);
    map_.discard(use.block, use.place, use.groups);
  }
  for (const auto& [seq, block] : lost_by(losers)) lose(seq, block);
}

void KvCache::count_failures(Sequence& seq, const TransferRecord& record, const Status& status) {
  const bool to_slower = std::any_of(record.uses.begin(), record.uses.end(), [](const Use& use) {
    return use.fills && use.place.tier != Tier::kDevice;
  });
  Sequence::Failures& failures = seq.failures[to_slower ? 1 : 0];
  if (status.ok()) {
    failures.in_a_row = 0;
    return;
  }
  if (status.code() == ErrorCode::kUnavailable || status.code() == ErrorCode::kCorrupt) return;
  if (record.commit <= failures.commit) return;
  failures.commit = record.commit;
  if (++failures.in_a_row == kFailuresInARow) failing_.push_back({seq.holds.seq, status});
}

void KvCache::transfer_ended(TransferId id, const Status& status) {
  TransferRecord* const found = transfers_.find(id);
  KV_CHECK(found, "transfer={}", raw(id));
  if (found->saves_to) --saves_in_flight_[index_of(*found->saves_to)];
  if (Sequence* const seq = found->seq) {
    seq->transfers.erase(*found);
    count_failures(*seq, *found, status);
    if (!std::exchange(seq->touched, true)) touched_.push_back(seq->holds.seq);
  }
  const std::vector<Use> uses = std::move(found->uses);
  SharedReads* const reads = found->reads;
  const bool copies_prefix = found->copies_prefix;
  if (copies_prefix) copied_prefixes_.push_back({id, status.ok()});
  transfers_.erase(id);
  std::vector<Loser> losers;
  const bool lost_source = !status.ok() && status.code() == ErrorCode::kCorrupt;
  for (const Use& use : uses) {
    if (use.fills) {
      if (!status.ok()) note_losers(use, losers);
      // What is given up on the device now may still be read by a step in flight.
      pin_for_newest_step(use.block);
      map_.filler_ended(use.block, use.place, use.groups, id, status.ok());
      if (copies_prefix) map_.publish_filled(use.block);
    } else if (lost_source && use.place.tier == Tier::kDisk && !mutant(Mutant::kCorruptKept)) {
      note_losers(use, losers);
      map_.discard(use.block, use.place, use.groups);
    }
  }
  const std::vector<std::pair<SeqId, BlockId>> lost = lost_by(losers);
  const auto give_back = [&](const Use& use) {
    if (is_pinned_by_transfer(use)) map_.unpin(use.block, use.place, use.groups);
  };
  std::for_each(uses.begin(), uses.end(), give_back);
  if (reads && --reads->transfers == 0) {
    std::for_each(reads->uses.begin(), reads->uses.end(), give_back);
    spare_reads_.push_back(reads);
  }
  for (const auto& [seq, block] : lost) lose(seq, block);
}

}  // namespace kvasir
