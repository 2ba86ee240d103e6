#include "cache/sequences/kv_cache.h"

#include <algorithm>
#include <new>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/mutant.h"

namespace kvasir {

KvCache::KvCache(const CacheOptions& options, uint64_t transfers)
    : options_(options),
      events_(options.tells_events ? std::optional<BlockEvents>(std::in_place) : std::nullopt),
      index_(events_ ? &*events_ : nullptr, options.geometry),
      map_(options.geometry, {options.device_bytes, options.tier_bytes(Tier::kHost), options.disk_bytes},
           index_),
      next_transfer_(transfers + 1),
      borrowed_(options_, map_) {
  const CacheGeometry& g = options.geometry;
  KV_CHECK(g.block_tokens % 16 == 0 && g.block_tokens > 0 && 256 % g.block_tokens == 0, "block_tokens={}",
           g.block_tokens);
  KV_CHECK(!options.has_peers_cells() || !g.has(Form::kX), "at peers={}", options.held_at_peers_bytes());
  KV_CHECK(g.groups() > 0 && g.groups() <= kMaxLayerGroups, "groups={}", g.groups());
}

// ---------------------------------------------------------------- sequences

KvCache::Sequence& KvCache::at(SeqId id) {
  Sequence* const seq = sequences_.find(id);
  KV_CHECK(seq, "seq={}", raw(id));
  return *seq;
}

const KvCache::Sequence& KvCache::at(SeqId id) const {
  return const_cast<KvCache*>(this)->at(id);
}

void KvCache::add_sequence(SeqId id, std::vector<Token> tokens, std::string_view salt, bool adopts) {
  const auto [added, is_new] = sequences_.try_emplace(id);
  KV_CHECK(is_new && !tokens.empty(), "seq={} tokens={}", raw(id), tokens.size());
  Sequence& seq = *added;
  seq.holds.seq = id;
  seq.adopts = adopts;
  seq.salted = !salt.empty();
  seq.tokens = std::move(tokens);
  try {
    seq.hashes.push_back(root_hash(options_.numerics_id, salt));
    watch(id, seq);
  } catch (const std::bad_alloc&) {
    sequences_.erase(id);
    throw;
  }
}

void KvCache::append_token(SeqId id, Token token) {
  Sequence& seq = at(id);
  seq.tokens.push_back(token);
}

void KvCache::update_hashes(Sequence& seq) const {
  const uint32_t b = block_tokens();
  const std::span<const Token> tokens = seq.tokens;
  while (seq.hashes.size() * b <= tokens.size()) {
    seq.hashes.push_back(block_hash(seq.hashes.back(), tokens.subspan((seq.hashes.size() - 1) * b, b)));
  }
}

void KvCache::watch(SeqId id, Sequence& seq) {
  if (!options_.prefix_caching || !seq.adopts) return;
  update_hashes(seq);
  // Never the last token: its logits are needed, so it has to be computed.
  const size_t blocks = (seq.tokens.size() - 1) / block_tokens();
  index_.watch(id, {seq.hashes.begin() + 1, seq.hashes.begin() + 1 + static_cast<ptrdiff_t>(blocks)});
}

void KvCache::remove_sequence(SeqId id) {
  Sequence& seq = at(id);
  index_.unwatch(id);
  promises_.end(id);
  give_up_blocks(seq);
  const auto wanted = [&](const Use& use) {
    return use.fills &&
           std::any_of(block(use.block).owners.begin(), block(use.block).owners.end(),
                       [&](const BlockMap::Owner& o) { return !(o.at(use.place) & use.groups).empty(); });
  };
  for (TransferRecord* record = seq.transfers.first; record; record = record->next) {
    record->seq = nullptr;
    if (record->cancellable && std::none_of(record->uses.begin(), record->uses.end(), wanted)) {
      cancelled_.push_back(record->id);
    }
  }
  sequences_.erase(id);
}

void KvCache::drop_all(SeqId id) {
  Sequence& seq = at(id);
  end_promises(id);
  give_up_blocks(seq);
  seq.ready_tokens = 0;
  seq.sealed_blocks = 0;
  seq.dead_blocks = 0;
  ++seq.generation;
  index_.unwatch(id);
  watch(id, seq);
}

void KvCache::pin_for_newest_step(BlockId id) {
  if (!mutant(Mutant::kFrameReusedEarly) && steps_.pin(id)) map_.pin_for_step(id);
}

void KvCache::give_up_blocks(Sequence& seq) {
  // The last block first: of a prefix, the end is the first to be evicted.
  for (size_t i = seq.table.size(); i-- > 0;) {
    pin_for_newest_step(seq.table[i]);
    map_.remove_owner(seq.table[i], seq.holds);
  }
  seq.table.clear();
  seq.holds.table_changed = true;
}

// Rows that are planned from now on, and those in flight, begin behind what is dead.
void KvCache::give_up_dead_cells(Sequence& seq) {
  const CacheGeometry& g = options_.geometry;
  uint32_t dead = g.dead_blocks(steps_.first_position(seq.holds.seq, seq.ready_tokens));
  if (mutant(Mutant::kDeadTooEarly)) ++dead;
  if (mutant(Mutant::kWindowShorter)) dead = g.dead_blocks(seq.ready_tokens + 1);
  if (seq.dead_blocks >= dead) return;
  const uint32_t held = seq.holds.at(kDeviceKv);
  for (; seq.dead_blocks < dead; ++seq.dead_blocks) {
    map_.let_die(seq.table[seq.dead_blocks], seq.holds, g.windowed);
  }
  seq.owed_cells += held - seq.holds.at(kDeviceKv);
}

// Of KV on the device: those that it has and those that it is promised.
uint32_t KvCache::device_cells_of(const Sequence& seq) const {
  return seq.holds.at(kDeviceKv) + promises_.of(seq.holds.seq)[index_of(Tier::kDevice)];
}

// To be called before it is promised so many cells.
void KvCache::raise_most_cells(Sequence& seq, uint32_t cells) {
  // What a plan has moved away is not to come back as a promise.
  const uint32_t has = device_cells_of(seq) + seq.owed_cells;
  seq.most_cells = std::min(seq.most_cells.value_or(has), has) + cells;
}

// In return for dead cells, and for those of rows that left a step, it is promised others for the blocks to
// come. Those that it gave up may still be in use by others: then it waits until some are available.
void KvCache::promise_owed_cells(Sequence& seq) {
  const uint32_t most = seq.most_cells.value_or(0);
  seq.owed_cells = std::min(seq.owed_cells, most - std::min(most, device_cells_of(seq)));
  if (seq.owed_cells == 0) return;
  const int64_t available = budget(Tier::kDevice).available_cells();
  const auto cells = static_cast<uint32_t>(std::clamp<int64_t>(available, 0, seq.owed_cells));
  if (cells == 0) return;
  seq.owed_cells -= cells;
  promises_.add({.owner = seq.holds.seq, .cells = cells});
}

// It holds KV of the block in every group.
bool KvCache::has_kv(const Sequence& seq, BlockId id) const {
  LayerSet kv;
  const BlockMap::Owner& o = map_.owner(id, seq.holds);
  for (Tier t : kAllTiers) kv |= o.at({Form::kKv, t}) & map_.block(id).at({Form::kKv, t}).current;
  return kv == map_.all_groups();
}

// What it computed from `tokens` on does not count.
void KvCache::cut_back(Sequence& seq, uint32_t tokens) {
  if (tokens >= seq.ready_tokens) return;
  // The state behind a token within a block is there only until the next ones are computed: the
  // tokens of that block are computed again from the state behind the block before.
  if (options_.geometry.states && !mutant(Mutant::kStateGoneOnWith)) tokens -= tokens % block_tokens();
  // A block that was full when a plan gave up its KV is not any more: then it does not count at all.
  const uint32_t in_block = tokens % block_tokens();
  if (in_block > 0 && !has_kv(seq, seq.table[tokens / block_tokens()])) tokens -= in_block;
  // Rows from there on would read cells that it has given up.
  if (options_.geometry.dead_blocks(tokens) < seq.dead_blocks) tokens = seq.dead_blocks = 0;
  const uint32_t blocks = options_.geometry.blocks_for(tokens);
  while (seq.table.size() > blocks) {
    pin_for_newest_step(seq.table.back());
    map_.remove_owner(seq.table.back(), seq.holds);
    seq.table.pop_back();
  }
  if (tokens % block_tokens() != 0) map_.cut(seq.table.back(), tokens % block_tokens());
  seq.ready_tokens = tokens;
  seq.sealed_blocks = std::min(seq.sealed_blocks, tokens / block_tokens());
  seq.holds.table_changed = true;
}

// The last copy of a cell is lost: it, and what was computed on it, has to be recomputed.
void KvCache::lose(SeqId id, BlockId block) {
  Sequence& seq = at(id);
  const auto found = std::find(seq.table.begin(), seq.table.end(), block);
  if (found == seq.table.end()) return;  // cut off already
  const auto whole = static_cast<uint32_t>(found - seq.table.begin()) * block_tokens();
  // What steps in flight write does not count from now on, whether they end well or leave their rows out:
  // also where it lies before the loss.
  cut_back(seq, steps_.first_row(id, seq.generation, whole));
  spoil_steps_in_flight(id);
  touched_.push_back(id);
}

void KvCache::spoil_steps_in_flight(SeqId id) {
  cut_back_.push_back(id);
  steps_.spoil(id);
}

bool KvCache::tail_busy(const Sequence& seq) const {
  if (seq.ready_tokens % block_tokens() == 0) return false;
  const BlockMap::Copies& device = map_.block(seq.table.back()).at(kDeviceKv);
  return !(device.pinned & device.ready).empty();
}

SequenceCells KvCache::summary(SeqId id) const {
  const Sequence& seq = at(id);
  const LayerSet& all = map_.all_groups();
  SequenceCells s;
  s.ready_tokens = seq.ready_tokens;
  s.blocks = static_cast<uint32_t>(seq.table.size());
  s.cells = by_form(seq.holds.cells);
  s.own_cells = by_form(seq.holds.own);
  s.leaving_cells = seq.holds.released;
  s.resident_blocks = s.blocks;
  s.device_groups = all;
  s.dead_blocks = seq.dead_blocks;
  if (seq.holds.on_device_or_dead() < s.blocks * options_.geometry.groups()) {
    s.resident_blocks = 0;
    if (!seq.holds.device_in_group.empty()) {
      s.resident_blocks =
          *std::min_element(seq.holds.device_in_group.begin(), seq.holds.device_in_group.end());
    }
    for (uint32_t g = 0; g < options_.geometry.groups(); ++g) {
      if (seq.holds.device_in_group.empty() || seq.holds.device_in_group[g] < s.blocks)
        s.device_groups.remove(g);
    }
    const bool tail = seq.ready_tokens % block_tokens() != 0;
    s.tail_resident = !tail || map_.owner(seq.table.back(), seq.holds).at(kDeviceKv) == all;
  }
  if (seq.holds.dropped > 0) find_dropped(seq, s);
  if (options_.has_peers_cells() && s.resident_blocks < s.blocks) {
    s.first_device_block = first_device_block(seq);
    if (seq.holds.dropped == 0) s.peer_blocks = blocks_at_peers(seq);
    s.attended = s.peer_blocks > 0 && borrowed_.attended_cells() > 0 &&
                 std::any_of(seq.table.begin(), seq.table.end(),
                             [&](BlockId block) { return map_.block(block).attended; });
  }
  s.tail_busy = tail_busy(seq);
  s.transfers = static_cast<uint16_t>(std::min<uint32_t>(seq.transfers.size, UINT16_MAX));
  offer(index_.match(id), s);
  s.promised_cells = promises_.of(id);
  return s;
}

void KvCache::offer(const PrefixIndex::Match& cached, SequenceCells& cells) const {
  cells.cached_tokens = cached.matched * block_tokens();
  cells.cached_resident_cells = cached.what.cells[index_of(kDeviceKv)];
  cells.cached_shared_cells =
      cached.what.windowed_cells[index_of(kDeviceKv)] - cached.what.windowed_idle[index_of(kDeviceKv)];
  cells.cached_idle = by_form(cached.what.idle);
  cells.cached_peer_blocks = 0;
}

// The rectangle that holds the dropped cells. Rows that recompute them read what lies in the windows of the
// first of them: where that is dead, they begin at the sequence's first token.
void KvCache::find_dropped(const Sequence& seq, SequenceCells& s) const {
  const uint32_t groups = options_.geometry.groups();
  uint32_t first_block = UINT32_MAX, end_block = 0, first_group = groups, end_group = 0;
  for (uint32_t i = 0; i < seq.table.size(); ++i) {
    const LayerSet dropped = map_.all_groups() - map_.owner(seq.table[i], seq.holds).covered();
    if (dropped.empty()) continue;
    first_block = std::min(first_block, i);
    end_block = i + 1;
    dropped.for_each([&](uint32_t g) {
      first_group = std::min(first_group, g);
      end_group = std::max(end_group, g + 1);
    });
  }
  if (seq.dead_blocks > options_.geometry.dead_blocks(first_block * block_tokens())) first_block = 0;
  s.dropped_cells = seq.holds.dropped;
  s.dropped = {first_block * block_tokens(), end_block * block_tokens()};
  s.dropped_first_group = static_cast<uint8_t>(first_group);
  s.dropped_end_group = static_cast<uint8_t>(end_group);
}

std::vector<SeqId> KvCache::take_changed() {
  std::vector<SeqId> out = index_.take_changed();
  const std::vector<SeqId> counted = map_.take_touched();
  out.insert(out.end(), counted.begin(), counted.end());
  out.insert(out.end(), touched_.begin(), touched_.end());
  touched_.clear();
  std::erase_if(out, [&](SeqId id) {
    Sequence* const seq = sequences_.find(id);
    if (seq) seq->touched = false;
    return !seq;
  });
  return out;
}

// ---------------------------------------------------------------- the committer's verbs

void KvCache::adopt(SeqId id, uint32_t tokens) {
  Sequence& seq = at(id);
  const uint32_t blocks = tokens / block_tokens();
  KV_CHECK(seq.table.empty() && blocks < seq.hashes.size(), "seq={} tokens={}", raw(id), tokens);
  const CacheGeometry& g = options_.geometry;
  seq.dead_blocks = g.dead_blocks(tokens);
  seq.most_cells = 0;
  for (uint32_t i = 0; i < blocks; ++i) {
    const BlockId b = index_.find(seq.hashes[i + 1]);
    KV_CHECK(b != kNoBlock, "seq={} block={} is not published", raw(id), i);
    seq.table.push_back(b);
    const LayerSet in_use = g.windowed - map_.block(b).at(kDeviceKv).idle;
    map_.add_owner(b, seq.holds, i < seq.dead_blocks ? g.windowed : LayerSet());
    // Used only where there are windows; finding the owner takes time linear in the block's owners.
    if (g.window > 0) *seq.most_cells += (map_.owner(b, seq.holds).at(kDeviceKv) - in_use).count();
    if (events_ && !events_->describes(b)) describe(seq, i, b);
  }
  if (mutant(Mutant::kPrefixWrongBlock) && blocks > 1) {
    std::swap(seq.table[blocks - 1], seq.table[blocks - 2]);
  }
  seq.ready_tokens = tokens;
  seq.sealed_blocks = blocks;
  index_.unwatch(id);
}

void KvCache::extend(SeqId id, uint32_t end, const Writes& writes, StepId step) {
  Sequence& seq = at(id);
  KV_CHECK(end >= seq.ready_tokens, "seq={} end={} ready={}", raw(id), end, seq.ready_tokens);
  index_.unwatch(id);
  const uint32_t b = block_tokens();
  for (uint32_t i = seq.ready_tokens / b; i * b < end; ++i) {
    const uint32_t written = std::min(b, end - i * b);
    if (i >= seq.table.size()) {
      Writes kept = writes;
      if (written < b) kept.kv = map_.all_groups();
      promises_.draw(id, Tier::kDevice, kept.kv.count());
      seq.table.push_back(map_.create(seq.holds, kept));
    } else if (map_.has_other_copies(seq.table[i])) {
      // Those that do not grow with it go, and a step in flight may still write to them.
      pin_for_newest_step(seq.table[i]);
    }
    map_.set_written(seq.table[i], written, writes, step);
  }
  seq.ready_tokens = end;
}

void KvCache::drop_form(SeqId id, Form form, Tier tier) {
  Sequence& seq = at(id);
#if defined(KVASIR_MUTANTS)
  if (mutant(Mutant::kStaleFrame) && seq.holds.at(kDeviceKv) > 0) {
    const std::shared_ptr<const BlockTable> frames = table(id);
    seq.stale_frames.assign(frames->begin(), frames->begin() + options_.geometry.groups());
  }
#endif
  for (size_t i = seq.table.size(); i-- > 0;) {
    pin_for_newest_step(seq.table[i]);
    map_.unwant(seq.table[i], seq.holds, {form, tier}, map_.all_groups());
  }
  if (std::all_of(seq.holds.cells.begin(), seq.holds.cells.end(),
                  [](uint32_t cells) { return cells == 0; })) {
    return drop_all(id);
  }
  const uint32_t tail = seq.ready_tokens % block_tokens();
  if (tail == 0) return;
  if (!has_kv(seq, seq.table.back())) cut_back(seq, seq.ready_tokens - tail);
  if (seq.table.empty()) drop_all(id);
}

uint64_t KvCache::begin_fill(SeqId id, uint32_t block, Place place, uint32_t group) {
  Sequence& seq = at(id);
  if (place == kDeviceKv) promises_.draw(id, Tier::kDevice, 1);
  const uint64_t frame = map_.take_frame(place);
  steps_.add_fill({id, seq.generation, block, seq.table[block], place, group, frame});
  return frame;
}

void KvCache::end_fill(const StepsInFlight::Fill& fill, bool ok) {
  Sequence* const seq = sequences_.find(fill.seq);
  const bool there = seq && seq->generation == fill.generation && fill.block < seq->table.size() &&
                     seq->table[fill.block] == fill.id;
  if (!ok || !there) return map_.give_back_frame(fill.place, fill.at);
  // What it gives up now may still be read by a step in flight.
  pin_for_newest_step(fill.id);
  map_.attach(fill.id, seq->holds, fill.place, fill.group, fill.at);
}

void KvCache::fill_table(Sequence& seq, size_t first_block) const {
  const uint32_t groups = options_.geometry.groups();
  // A step in flight may still read the one that there was.
  if (!seq.frames || seq.frames.use_count() > 1) {
    auto fresh = std::make_shared<BlockTable>();
    fresh->reserve((seq.table.size() + 8) * groups);
    if (first_block > 0) fresh->assign(seq.frames->begin(), seq.frames->end());
    seq.frames = std::move(fresh);
  }
  BlockTable& frames = *seq.frames;
  frames.resize(first_block * groups);
  frames.resize(seq.table.size() * groups);
  const uint64_t v_offset = options_.geometry.v_offset();
  // A frame that it does not hold may still exist for the steps in flight; it is freed when they end.
  const bool all = seq.holds.at(kDeviceKv) == frames.size();
  for (size_t i = first_block; i < seq.table.size(); ++i) {
    const BlockMap::Copies& device = map_.block(seq.table[i]).at(kDeviceKv);
    const LayerSet& held = all ? map_.all_groups() : map_.owner(seq.table[i], seq.holds).at(kDeviceKv);
    held.for_each([&](uint32_t g) {
      const uint64_t frame = device.by_group[g].at;
      frames[i * groups + g] = {frame, frame + v_offset};
    });
  }
  seq.holds.table_changed = false;
}

std::shared_ptr<const BlockTable> KvCache::table(SeqId id) {
  Sequence& seq = at(id);
  const size_t known =
      seq.holds.table_changed || !seq.frames ? 0 : seq.frames->size() / options_.geometry.groups();
  if (known == 0 || known < seq.table.size()) fill_table(seq, known);
#if defined(KVASIR_MUTANTS)
  if (mutant(Mutant::kStaleFrame) && !seq.stale_frames.empty() && !seq.table.empty()) {
    auto stale = std::make_shared<BlockTable>(*seq.frames);
    std::copy(seq.stale_frames.begin(), seq.stale_frames.end(), stale->begin());
    return stale;
  }
#endif
  return seq.frames;
}

// ---------------------------------------------------------------- steps

void KvCache::step_submitted(StepId step, std::span<const StepSlice> slices) {
  std::vector<StepsInFlight::Part> parts;
  parts.reserve(slices.size());
  for (const StepSlice& s : slices) {
    parts.push_back({s.seq, s.tokens, at(s.seq).generation, s.kind == RowKind::kRestore});
  }
  steps_.submit(step, std::move(parts));
}

KvCache::StepOutcome KvCache::step_ended(StepId step, bool ok, std::span<const SeqId> deferred) {
  StepsInFlight::Record record = steps_.end(step);
  StepOutcome outcome;
  for (const StepsInFlight::Part& part : record.parts) {
    if (part.restores) continue;  // the rows that go on from the sequence's history speak for it
    Sequence* const found = sequences_.find(part.seq);
    const bool was_deferred = std::find(deferred.begin(), deferred.end(), part.seq) != deferred.end();
    if (was_deferred || part.spoilt) outcome.void_rows.push_back(part.seq);
    if (!found || found->generation != part.generation || part.spoilt) continue;
    Sequence& seq = *found;
    if (was_deferred) {
      // Nothing from its first row on was written for certain, nor by steps that went on from there.
      const uint32_t held = seq.holds.at(kDeviceKv);
      cut_back(seq, part.rows.begin);
      if (options_.geometry.window > 0) seq.owed_cells += held - seq.holds.at(kDeviceKv);
      spoil_steps_in_flight(part.seq);
    } else if (ok) {
      // A sequence that was preempted meanwhile may have less.
      seal(part.seq, seq, std::min(part.rows.end, seq.ready_tokens));
    }
  }
  for (const StepsInFlight::Fill& fill : record.fills) {
    const auto lists = [&](std::span<const SeqId> ids) {
      return std::find(ids.begin(), ids.end(), fill.seq) != ids.end();
    };
    const bool lost = lists(outcome.void_rows) || lists(deferred);
    end_fill(fill, ok && (!lost || mutant(Mutant::kDeferredFill)));
  }
  for (BlockId id : record.pinned) map_.unpin_for_step(id);
  for (TransferId id : record.reads) transfer_ended(id, {});
  if (ok && options_.geometry.window > 0) {
    for (const StepsInFlight::Part& part : record.parts) {
      Sequence* const seq = sequences_.find(part.seq);
      if (!seq || seq->generation != part.generation) continue;
      give_up_dead_cells(*seq);
      promise_owed_cells(*seq);
    }
  }
  outcome.transfers = std::move(record.transfers);
  return outcome;
}

// Blocks that are full now are immutable from here on, and published. One whose hash another block has
// already stays as it is: private, and freed when its owner gives it up.
void KvCache::seal(SeqId id, Sequence& seq, uint32_t done_tokens) {
  const uint32_t b = block_tokens();
  uint32_t full = done_tokens / b;
  if (mutant(Mutant::kPrefixPartialBlock) && done_tokens % b != 0 &&
      ceil_div(done_tokens, b) * b <= seq.tokens.size()) {
    ++full;
  }
  if (full <= seq.sealed_blocks) return;
  KV_CHECK(full <= seq.table.size(), "seq={} full={} table={}", raw(id), full, seq.table.size());
  if (options_.prefix_caching) update_hashes(seq);
  for (; seq.sealed_blocks < full; ++seq.sealed_blocks) {
    const BlockHash* hash = options_.prefix_caching ? &seq.hashes[seq.sealed_blocks + 1] : nullptr;
    const BlockId block = seq.table[seq.sealed_blocks];
    if (events_ && hash) describe(seq, seq.sealed_blocks, block);
    map_.seal(block, hash);
    if (!events_ || !hash) continue;
    // Another block has the hash, perhaps one that came from the disk without its tokens.
    const BlockId found = index_.find(*hash);
    if (found != kNoBlock && !events_->describes(found)) describe(seq, seq.sealed_blocks, found);
  }
}

// ---------------------------------------------------------------- promises

void KvCache::promise(const Promise& p) {
  const bool has_owner = p.kind != Promise::Kind::kReserve;
  KV_CHECK(!has_owner || contains(p.owner), "seq={}", raw(p.owner));
  const bool takes = has_owner && p.kind != Promise::Kind::kRelease;
  if (takes && p.tier == Tier::kDevice && options_.geometry.window > 0) {
    raise_most_cells(at(p.owner), p.cells);
    Sequence* const host = p.kind == Promise::Kind::kLoan ? sequences_.find(p.from) : nullptr;
    if (host && host->most_cells) *host->most_cells -= std::min(*host->most_cells, p.cells);
  }
  promises_.add(p);
}

std::vector<SeqId> KvCache::settle_claims() {
  if (promises_.claims().empty()) return {};
  std::array<int64_t, kTiers> available{};
  for (Tier tier : kAllTiers) available[index_of(tier)] = budget(tier).available_cells();
  std::vector<SeqId> settled;
  for (const Promises::Settled& s : promises_.settle(available)) {
    Sequence& seq = at(s.creditor);
    if (s.tier == Tier::kDevice && seq.most_cells) *seq.most_cells += s.cells;
    settled.push_back(s.creditor);
  }
  return settled;
}

FrameBudget KvCache::budget(Tier tier) const {
  FrameBudget budget = map_.budget(tier);
  budget.promised[index_of(Form::kKv)] = promises_.total()[index_of(tier)];
  if (tier == Tier::kHost) budget.slabs -= borrowed_.attended_cells();
  return budget;
}

}  // namespace kvasir
