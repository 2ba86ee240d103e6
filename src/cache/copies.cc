// The map's copies on the move: what is added to a tier, what is given up, and what transfers leave behind.
#include <algorithm>

#include "base/check.h"
#include "base/mutant.h"
#include "cache/kv_cache.h"

namespace kvasir {
namespace {

constexpr size_t kDevice = index_of(Tier::kDevice);
constexpr size_t kHost = index_of(Tier::kHost);

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
  return !mutant(Mutant::kTransferSourceFreedEarly) || use.fills || use.tier != Tier::kDevice;
}

LayerSet only(uint32_t group) {
  LayerSet set;
  set.add(group);
  return set;
}

}  // namespace

bool KvCache::being_written(const BlockMap::Block& block) const {
  return !in_flight_.empty() && raw(block.last_write) >= raw(in_flight_.front().id);
}

std::vector<Transfer> KvCache::add_copies(const CopyChange& change, bool tail) {
  Sequence& seq = at(change.seq);
  const uint32_t b = block_tokens();
  const auto named = static_cast<uint32_t>(seq.table.size());
  const uint32_t end = std::min(named, tail ? ceil_div(change.tokens.end, b) : change.tokens.end / b);
  std::vector<Transfer> now;
  std::optional<uint64_t> near;
  change.layers.for_each([&](uint32_t g) {
    Addition added;
    for (uint32_t i = change.tokens.begin / b; i < end; ++i) {
      add_copy(seq, seq.table[i], g, change.tier, near, added);
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
    now.push_back(std::move(added.transfer));
  });
  return now;
}

// The interest in a copy, and what has to move for it.
void KvCache::add_copy(Sequence& seq, BlockId id, uint32_t g, Tier to, std::optional<uint64_t>& near,
                       Addition& out) {
  const Tier from = to == Tier::kHost ? Tier::kDevice : Tier::kHost;
  const BlockMap::Block& block = map_.block(id);
  const BlockMap::Copies& source = block.on[index_of(from)];
  const BlockMap::Copies& target = block.on[index_of(to)];
  // What a transfer that failed leaves behind may still be there for its readers: it is filled anew.
  const bool there = target.present.contains(g) && !is_dead(target, g);
  if (!there && !is_source(source, g)) return;
  if (!there) draw(seq, to, 1);
  map_.want(id, seq.holds, to, only(g), near);
  // A tail that was copied and has grown since is copied again, to the same place.
  const bool stale = there && to == Tier::kHost && target.ready.contains(g) && !target.pinned.contains(g) &&
                     target.by_group[g].tokens < block.tokens && source.ready.contains(g);
  if (there && !stale) return;
  if (stale && mutant(Mutant::kStaleCopy)) return map_.believe_current(id, g);
  const BlockMap::Copy& has = source.by_group[g];
  const BlockMap::Copy& gets = target.by_group[g];
  const uint64_t frame = options_.geometry.frame_bytes(FrameClass::kKvPlane);
  out.transfer.segments.push_back({{has.at.k, from}, {gets.at.k, to}, frame});
  out.transfer.segments.push_back({{has.at.v, from}, {gets.at.v, to}, frame});
  out.transfer.needs.insert(out.transfer.needs.end(), has.fillers.begin(), has.fillers.end());
  out.uses.push_back({id, from, g, false});
  out.uses.push_back({id, to, g, true});
  if (being_written(block)) out.last_write = std::max(out.last_write, block.last_write);
}

std::vector<KvCache::WriteThrough> KvCache::write_through(const CopyChange& change) {
  Sequence& seq = at(change.seq);
  const uint32_t b = block_tokens();
  const uint32_t end = std::min<uint32_t>(static_cast<uint32_t>(seq.table.size()), change.tokens.end / b);
  std::vector<WriteThrough> out;
  std::optional<uint64_t> near;
  change.layers.for_each([&](uint32_t g) {
    for (uint32_t i = change.tokens.begin / b; i < end; ++i) {
      const BlockMap::Block& block = map_.block(seq.table[i]);
      if (block.tokens < b || block.on[kHost].present.contains(g)) continue;
      draw(seq, Tier::kHost, 1);
      map_.want(seq.table[i], seq.holds, Tier::kHost, only(g), near);
      out.push_back({i, g, !map_.owner(seq.table[i], seq.holds).wants[kDevice].contains(g)});
    }
  });
  return out;
}

void KvCache::leave(const CopyChange& change) {
  Sequence& seq = at(change.seq);
  const uint32_t end = std::min<uint32_t>(static_cast<uint32_t>(seq.table.size()),
                                          ceil_div(change.tokens.end, block_tokens()));
  for (uint32_t i = change.tokens.begin / block_tokens(); i < end; ++i) {
    if (change.tier == Tier::kHost) {
      map_.leave_host(seq.table[i], seq.holds, change.layers);
    } else {
      pin_for_newest_step(seq.table[i]);
      map_.leave_device(seq.table[i], seq.holds, change.layers);
    }
  }
}

// ---------------------------------------------------------------- transfers

TransferId KvCache::begin_transfer(SeqId id, const std::vector<Use>& uses, bool cancellable) {
  const TransferId transfer{next_transfer_++};
  for (const Use& use : uses) {
    if (is_pinned_by_transfer(use)) map_.pin(use.block, use.tier, use.group);
    if (use.fills) map_.add_filler(use.block, use.tier, use.group, transfer);
  }
  transfers_.emplace(transfer, TransferRecord{id, uses, cancellable});
  ++at(id).transfers;
  return transfer;
}

void KvCache::transfer_ended(TransferId id, bool ok) {
  auto it = transfers_.find(id);
  KV_CHECK(it != transfers_.end(), "transfer={}", raw(id));
  const TransferRecord record = std::move(it->second);
  transfers_.erase(it);
  if (auto seq = sequences_.find(record.seq); seq != sequences_.end()) {
    --seq->second.transfers;
    touched_.push_back(record.seq);
  }
  for (const Use& use : record.uses) {
    if (use.fills) {
      // What leaves the device now may still be read by a step in flight.
      pin_for_newest_step(use.block);
      map_.filler_ended(use.block, use.tier, use.group, id, ok);
    }
  }
  std::vector<std::pair<SeqId, BlockId>> lost;
  for (const Use& use : record.uses) {
    // Of several that fill a copy one may have failed before.
    if (!use.fills) continue;
    for (const BlockMap::Owner& o : map_.block(use.block).owners) {
      const bool held = o.wants[kDevice].contains(use.group) || o.wants[kHost].contains(use.group);
      if (!held) lost.emplace_back(o.who->seq, use.block);
    }
  }
  for (const Use& use : record.uses) {
    if (is_pinned_by_transfer(use)) map_.unpin(use.block, use.tier, use.group);
  }
  for (const auto& [seq, block] : lost) lose(seq, block);
}

}  // namespace kvasir
