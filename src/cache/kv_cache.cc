#include "cache/kv_cache.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "base/mutant.h"

namespace kvasir {
namespace {

constexpr size_t kKvClass = static_cast<size_t>(FrameClass::kKvPlane);

SlabPool make_pool(const CacheOptions& options) {
  // K and V planes are the largest frames there are; a slab holds one, so that a budget is used to the byte.
  const std::array<uint64_t, kFrameClasses> frames = {options.geometry.frame_bytes(FrameClass::kKvPlane)};
  return SlabPool(options.device_bytes, frames[0], frames);
}

}  // namespace

KvCache::KvCache(const CacheOptions& options) : options_(options), pool_(make_pool(options)) {
  const CacheGeometry& g = options.geometry;
  KV_CHECK(g.block_tokens % 16 == 0 && g.block_tokens > 0 && 256 % g.block_tokens == 0, "block_tokens={}",
           g.block_tokens);
  KV_CHECK(g.groups() > 0 && g.groups() <= kMaxLayerGroups, "groups={}", g.groups());
}

// ---------------------------------------------------------------- sequences

KvCache::Sequence& KvCache::at(SeqId id) {
  auto it = sequences_.find(id);
  KV_CHECK(it != sequences_.end(), "seq={}", raw(id));
  return it->second;
}

const KvCache::Sequence& KvCache::at(SeqId id) const {
  return const_cast<KvCache*>(this)->at(id);
}

void KvCache::add_sequence(SeqId id, std::vector<Token> tokens, std::string_view salt) {
  auto [it, inserted] = sequences_.try_emplace(id);
  KV_CHECK(inserted && !tokens.empty(), "seq={} tokens={}", raw(id), tokens.size());
  Sequence& seq = it->second;
  seq.tokens = std::move(tokens);
  seq.hashes.push_back(root_hash(options_.numerics_id, salt));
  watch(id, seq);
}

void KvCache::append_token(SeqId id, Token token) {
  Sequence& seq = at(id);
  seq.tokens.push_back(token);
}

void KvCache::update_hashes(Sequence& seq) const {
  const uint32_t b = options_.geometry.block_tokens;
  const std::span<const Token> tokens = seq.tokens;
  while (seq.hashes.size() * b <= tokens.size()) {
    seq.hashes.push_back(block_hash(seq.hashes.back(), tokens.subspan((seq.hashes.size() - 1) * b, b)));
  }
}

void KvCache::watch(SeqId id, Sequence& seq) {
  if (!options_.prefix_caching) return;
  update_hashes(seq);
  // Never the last token: its logits are needed, so it has to be computed.
  const size_t blocks = (seq.tokens.size() - 1) / options_.geometry.block_tokens;
  index_.watch(id, {seq.hashes.begin() + 1, seq.hashes.begin() + 1 + static_cast<ptrdiff_t>(blocks)});
}

void KvCache::remove_sequence(SeqId id) {
  Sequence& seq = at(id);
  index_.unwatch(id);
  end_promise(id);
  give_up_blocks(id, seq);
  sequences_.erase(id);
}

void KvCache::drop_all(SeqId id) {
  Sequence& seq = at(id);
#if defined(KVASIR_MUTANTS)
  if (mutant(Mutant::kStaleFrame) && !seq.table.empty()) {
    seq.stale_frames.clear();
    append_frames(id, 1, seq.stale_frames);
  }
#endif
  end_promise(id);
  give_up_blocks(id, seq);
  seq.ready_tokens = 0;
  seq.sealed_blocks = 0;
  ++seq.generation;
  index_.unwatch(id);
  watch(id, seq);
}

void KvCache::give_up_blocks(SeqId id, Sequence& seq) {
  const bool pin = !in_flight_.empty() && !mutant(Mutant::kFrameReusedEarly);
  // The last block first: of a prefix, the end is the first to be evicted.
  for (size_t i = seq.table.size(); i-- > 0;) {
    const BlockId b = seq.table[i];
    if (pin) {
      ++block(b).pins;
      in_flight_.back().pinned.push_back(b);
    }
    remove_owner(b, id);
  }
  seq.table.clear();
  seq.own_blocks = 0;
}

KvCache::Summary KvCache::summary(SeqId id) const {
  const Sequence& seq = at(id);
  const PrefixIndex::Match match = index_.match(id);
  Summary s;
  s.ready_tokens = seq.ready_tokens;
  s.device_blocks = static_cast<uint32_t>(seq.table.size());
  s.own_device_blocks = seq.own_blocks;
  s.cached_tokens = match.matched * options_.geometry.block_tokens;
  s.cached_idle_blocks = match.idle;
  s.promised_blocks = seq.promised;
  return s;
}

std::vector<SeqId> KvCache::take_changed() {
  std::vector<SeqId> out = index_.take_changed();
  out.insert(out.end(), touched_.begin(), touched_.end());
  touched_.clear();
  std::erase_if(out, [&](SeqId id) { return !sequences_.contains(id); });
  return out;
}

// ---------------------------------------------------------------- references

void KvCache::add_owner(BlockId id, SeqId seq) {
  Block& b = block(id);
  if (b.idle) leave_idle(id);
  if (b.owners.empty() && b.pins > 0) --pinned_blocks_;
  b.owners.push_back(seq);
  if (b.owners.size() == 1 && b.pins == 0) {
    ++at(seq).own_blocks;
  } else if (b.owners.size() == 2 && b.pins == 0) {
    --at(b.owners[0]).own_blocks;
    touched_.push_back(b.owners[0]);
  }
}

void KvCache::remove_owner(BlockId id, SeqId seq) {
  Block& b = block(id);
  auto it = std::find(b.owners.begin(), b.owners.end(), seq);
  KV_CHECK(it != b.owners.end(), "block={} seq={}", raw(id), raw(seq));
  b.owners.erase(it);
  if (b.owners.empty() && b.pins > 0) ++pinned_blocks_;
  // A pinned block is nobody's own: giving it up would free nothing yet.
  if (b.owners.size() == 1 && b.pins == 0) {
    ++at(b.owners[0]).own_blocks;
    touched_.push_back(b.owners[0]);
  }
  settle(id);
}

void KvCache::settle(BlockId id) {
  Block& b = block(id);
  if (!b.owners.empty() || b.pins > 0) return;
  if (!b.published) {
    free_block(id);
    return;
  }
  b.idle = true;
  b.lru = lru_.insert(lru_.end(), id);
  index_.set_idle(b.hash, true);
}

void KvCache::leave_idle(BlockId id) {
  Block& b = block(id);
  b.idle = false;
  lru_.erase(b.lru);
  index_.set_idle(b.hash, false);
}

// ---------------------------------------------------------------- allocation

BlockId KvCache::allocate_block() {
  BlockId id{};
  if (free_ids_.empty()) {
    id = static_cast<BlockId>(blocks_.size());
    blocks_.emplace_back();
  } else {
    id = free_ids_.back();
    free_ids_.pop_back();
  }
  auto frame = [&] {
    for (;;) {
      if (auto offset = pool_.allocate(kKvClass)) return FrameAddress{*offset, Tier::kDevice};
      evict_oldest();
    }
  };
  std::vector<Cell> cells(options_.geometry.groups());
  for (Cell& cell : cells) {
    Copy copy;
    copy.frames.k = frame();
    copy.frames.v = frame();
    cell.copies.push_back(copy);
  }
  block(id).cells = std::move(cells);
  ++live_blocks_;
  return id;
}

void KvCache::evict_oldest() {
  KV_CHECK(!lru_.empty(), "no frame is free and no block is idle: a plan took more than there is");
  const BlockId id = lru_.front();
  lru_.pop_front();
  free_block(id);
}

void KvCache::free_block(BlockId id) {
  Block& b = block(id);
  if (b.published) index_.unpublish(b.hash);
  for (const Cell& cell : b.cells) {
    for (const Copy& copy : cell.copies) {
      pool_.release(kKvClass, copy.frames.k.offset);
      pool_.release(kKvClass, copy.frames.v.offset);
    }
  }
  b = Block{};
  free_ids_.push_back(id);
  --live_blocks_;
}

// ---------------------------------------------------------------- the committer's verbs

void KvCache::adopt(SeqId id, uint32_t tokens) {
  Sequence& seq = at(id);
  const uint32_t blocks = tokens / options_.geometry.block_tokens;
  KV_CHECK(seq.table.empty() && blocks < seq.hashes.size(), "seq={} tokens={}", raw(id), tokens);
  for (uint32_t i = 0; i < blocks; ++i) {
    const BlockId b = index_.find(seq.hashes[i + 1]);
    KV_CHECK(b != kNoBlock, "seq={} block={} is not published", raw(id), i);
    seq.table.push_back(b);
    add_owner(b, id);
  }
  if (mutant(Mutant::kPrefixWrongBlock) && blocks > 1) {
    std::swap(seq.table[blocks - 1], seq.table[blocks - 2]);
  }
  seq.ready_tokens = tokens;
  seq.sealed_blocks = blocks;
  index_.unwatch(id);
}

void KvCache::promise(SeqId id, uint32_t blocks) {
  at(id).promised += blocks;
  promised_blocks_ += blocks;
}

void KvCache::end_promise(SeqId id) {
  Sequence& seq = at(id);
  promised_blocks_ -= seq.promised;
  seq.promised = 0;
}

void KvCache::extend(SeqId id, uint32_t end) {
  Sequence& seq = at(id);
  KV_CHECK(end >= seq.ready_tokens, "seq={} end={} ready={}", raw(id), end, seq.ready_tokens);
  index_.unwatch(id);
  while (seq.table.size() < options_.geometry.blocks_for(end)) {
    if (seq.promised > 0) {
      --seq.promised;
      --promised_blocks_;
    }
    const BlockId b = allocate_block();
    seq.table.push_back(b);
    add_owner(b, id);
  }
  seq.ready_tokens = end;
}

void KvCache::append_frames(SeqId id, uint32_t blocks, std::vector<KvFrames>& out) const {
  const Sequence& seq = at(id);
  KV_CHECK(blocks <= seq.table.size(), "seq={} blocks={} table={}", raw(id), blocks, seq.table.size());
  const size_t first = out.size();
  for (uint32_t i = 0; i < blocks; ++i) {
    for (const Cell& cell : block(seq.table[i]).cells) out.push_back(cell.copies[0].frames);
  }
#if defined(KVASIR_MUTANTS)
  if (mutant(Mutant::kStaleFrame)) {
    std::copy(seq.stale_frames.begin(), seq.stale_frames.end(), out.begin() + static_cast<ptrdiff_t>(first));
  }
#else
  (void)first;
#endif
}

// ---------------------------------------------------------------- steps

void KvCache::step_submitted(StepId step, std::span<const StepSlice> slices) {
  StepRecord record;
  record.id = step;
  for (const StepSlice& s : slices) record.parts.push_back({s.seq, s.tokens.end, at(s.seq).generation});
  in_flight_.push_back(std::move(record));
}

void KvCache::step_ended(StepId step, bool ok) {
  KV_CHECK(!in_flight_.empty() && in_flight_.front().id == step, "step={}", raw(step));
  const StepRecord record = std::move(in_flight_.front());
  in_flight_.pop_front();
  if (ok) {
    for (const auto& part : record.parts) {
      auto it = sequences_.find(part.seq);
      if (it != sequences_.end() && it->second.generation == part.generation) {
        seal(part.seq, it->second, part.end);
      }
    }
  }
  for (BlockId id : record.pinned) {
    Block& b = block(id);
    --b.pins;
    if (b.pins == 0 && b.owners.empty()) --pinned_blocks_;
    if (b.pins == 0 && b.owners.size() == 1) {
      ++at(b.owners[0]).own_blocks;
      touched_.push_back(b.owners[0]);
    }
    settle(id);
  }
}

// Blocks that are full now are immutable from here on, and published. One whose hash another block has
// already stays as it is: private, and freed when its owner leaves.
void KvCache::seal(SeqId id, Sequence& seq, uint32_t done_tokens) {
  const uint32_t b = options_.geometry.block_tokens;
  uint32_t full = done_tokens / b;
  if (mutant(Mutant::kPrefixPartialBlock) && done_tokens % b != 0 &&
      ceil_div(done_tokens, b) * b <= seq.tokens.size()) {
    ++full;
  }
  if (full <= seq.sealed_blocks) return;
  if (options_.prefix_caching) update_hashes(seq);
  for (; seq.sealed_blocks < full; ++seq.sealed_blocks) {
    const BlockId bid = seq.table[seq.sealed_blocks];
    Block& blk = block(bid);
    for (Cell& cell : blk.cells) cell.copies[0].state = CopyState::kReady;
    if (!options_.prefix_caching) continue;
    KV_CHECK(!blk.published, "seq={} block={} is published twice", raw(id), raw(bid));
    if (index_.publish(seq.hashes[seq.sealed_blocks + 1], bid, /*idle=*/false)) {
      blk.published = true;
      blk.hash = seq.hashes[seq.sealed_blocks + 1];
    }
  }
}

// ---------------------------------------------------------------- counting

FrameBudget KvCache::device_budget() const {
  const uint32_t per_block = options_.geometry.kv_frames_per_block();
  FrameBudget budget;
  budget.free[kKvClass] = pool_.free_frames(kKvClass);
  budget.idle[kKvClass] = idle_blocks() * per_block;
  budget.per_slab[kKvClass] = pool_.frames_per_slab(kKvClass);
  budget.empty_slabs = pool_.empty_slabs();
  budget.promised[kKvClass] = promised_blocks_ * per_block;
  budget.pinned[kKvClass] = pinned_blocks_ * per_block;
  budget.total[kKvClass] = pool_.slabs() * pool_.frames_per_slab(kKvClass);
  return budget;
}

uint32_t KvCache::total_blocks() const {
  return pool_.slabs() * pool_.frames_per_slab(kKvClass) / options_.geometry.kv_frames_per_block();
}

}  // namespace kvasir
