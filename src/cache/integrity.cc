// KvCache::check_integrity(): counts everything again from the ground.
#include <map>
#include <set>

#include "cache/kv_cache.h"

namespace kvasir {

Status KvCache::check_integrity() const {
  KV_RETURN_IF_ERROR(pool_.check_integrity());
  auto bad = []<typename... Args>(fmt::format_string<Args...> format, Args&&... args) {
    return error(ErrorCode::kCorrupt, format, std::forward<Args>(args)...);
  };

  // References, as the tables hold them.
  std::map<uint32_t, std::multiset<uint64_t>> owners;
  uint32_t promised = 0;
  for (const auto& [id, seq] : sequences_) {
    promised += seq.promised;
    uint32_t own = 0;
    for (BlockId b : seq.table) {
      owners[raw(b)].insert(raw(id));
      if (block(b).owners.size() == 1 && block(b).pins == 0) ++own;
    }
    if (own != seq.own_blocks)
      return bad("sequence {}: {} own blocks, counted {}", raw(id), own, seq.own_blocks);
    if (seq.ready_tokens > seq.table.size() * options_.geometry.block_tokens) {
      return bad("sequence {}: {} ready tokens in {} blocks", raw(id), seq.ready_tokens, seq.table.size());
    }
  }
  if (promised != promised_blocks_) return bad("{} blocks promised, counted {}", promised, promised_blocks_);

  std::map<uint32_t, uint32_t> pins;
  for (const auto& record : in_flight_) {
    for (BlockId b : record.pinned) ++pins[raw(b)];
  }
  const std::set<BlockId> idle(lru_.begin(), lru_.end());
  std::set<uint64_t> frames;
  uint32_t live = 0;
  uint32_t pinned = 0;
  size_t published = 0;
  for (uint32_t i = 0; i < blocks_.size(); ++i) {
    const Block& b = blocks_[i];
    if (b.cells.empty()) {
      if (owners.contains(i) || pins.contains(i)) return bad("block {} is free but referenced", i);
      continue;
    }
    ++live;
    if (b.owners.empty() && b.pins > 0) ++pinned;
    if (std::multiset<uint64_t> have =
            [&] {
              std::multiset<uint64_t> s;
              for (SeqId o : b.owners) s.insert(raw(o));
              return s;
            }();
        have != owners[i]) {
      return bad("block {}: {} owners, {} tables name it", i, have.size(), owners[i].size());
    }
    if (b.pins != pins[i]) return bad("block {}: {} pins, counted {}", i, b.pins, pins[i]);
    if (b.idle != idle.contains(static_cast<BlockId>(i))) return bad("block {}: idle, listed wrongly", i);
    if (b.idle != (b.owners.empty() && b.pins == 0))
      return bad("block {}: idle and referenced, or neither", i);
    if (b.idle && !b.published) return bad("block {} is idle but cannot be found", i);
    if (b.published) {
      ++published;
      if (index_.find(b.hash) != static_cast<BlockId>(i)) return bad("block {}: its hash finds another", i);
    }
    for (const Cell& cell : b.cells) {
      for (const Copy& copy : cell.copies) {
        for (uint64_t offset : {copy.frames.k.offset, copy.frames.v.offset}) {
          if (!frames.insert(offset).second) return bad("frame {} is used twice", offset);
        }
      }
    }
  }
  if (pinned != pinned_blocks_) return bad("{} blocks pinned alone, counted {}", pinned, pinned_blocks_);
  if (live != live_blocks_) return bad("{} blocks, counted {}", live, live_blocks_);
  if (frames.size() != pool_.used_frames(static_cast<size_t>(FrameClass::kKvPlane))) {
    return bad("{} frames in blocks, {} in the pool", frames.size(),
               pool_.used_frames(static_cast<size_t>(FrameClass::kKvPlane)));
  }
  if (published != index_.published())
    return bad("{} blocks published, counted {}", published, index_.published());
  const FrameBudget budget = device_budget();
  if (budget.available(FrameClass::kKvPlane) < 0) return bad("promises exceed what there is");
  return {};
}

}  // namespace kvasir
