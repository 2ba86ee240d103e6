#include "cache/blocks/block_events.h"

#include <algorithm>
#include <cstddef>

#include "base/check.h"

namespace kvasir {

BlockEvents::Block& BlockEvents::at(BlockId id) {
  if (raw(id) >= blocks_.size()) blocks_.resize(raw(id) + size_t{1});
  return blocks_[raw(id)];
}

CacheEvent BlockEvents::stored(const Block& block) const {
  return {CacheEvent::Kind::kStored, *block.tier, block.hash, block.parent, block.tokens};
}

CacheEvent BlockEvents::removed(const Block& block) const {
  return {CacheEvent::Kind::kRemoved, *block.tier, block.hash, {}, {}};
}

bool BlockEvents::parent_is_told(const Block& block) const {
  if (!block.parent) return true;
  const auto it = by_hash_.find(*block.parent);
  return it != by_hash_.end() && blocks_[raw(it->second)].told;
}

void BlockEvents::append_descendants(std::vector<BlockId>& out, bool told) const {
  for (size_t i = 0; i < out.size(); ++i) {
    const auto [begin, end] = by_parent_.equal_range(blocks_[raw(out[i])].hash);
    for (auto it = begin; it != end; ++it) {
      if (blocks_[raw(it->second)].told == told) out.push_back(it->second);
    }
  }
}

void BlockEvents::add(BlockId id) {
  Block& block = at(id);
  by_hash_.emplace(block.hash, id);
  if (block.parent) block.child = by_parent_.emplace(*block.parent, id);
  if (!parent_is_told(block)) return;
  // Those that waited for it follow.
  std::vector<BlockId> reached = {id};
  append_descendants(reached, /*told=*/false);
  for (BlockId each : reached) {
    at(each).told = true;
    events_.push_back(stored(at(each)));
  }
}

void BlockEvents::remove(BlockId id) {
  Block& block = at(id);
  if (block.told) {
    // The last ones first, so that a reader never has one without its parent.
    std::vector<BlockId> lost = {id};
    append_descendants(lost, /*told=*/true);
    std::reverse(lost.begin(), lost.end());
    for (BlockId each : lost) {
      at(each).told = false;
      events_.push_back(removed(at(each)));
    }
  }
  by_hash_.erase(block.hash);
  if (block.parent) by_parent_.erase(block.child);
}

void BlockEvents::describe(BlockId id, const BlockHash& hash, uint32_t number, const BlockHash* parent,
                           std::span<const Token> tokens) {
  Block& block = at(id);
  KV_CHECK(!block.described || !block.tier, "block={} changes while it can be found", raw(id));
  block.hash = hash.words[0];
  block.parent = parent ? std::optional(parent->words[0]) : std::nullopt;
  block.number = number;
  block.tokens.assign(tokens.begin(), tokens.end());
  block.described = true;
  if (block.tier) add(id);
}

void BlockEvents::conceal(BlockId id) {
  Block& block = at(id);
  KV_CHECK(!block.described || !block.tier, "block={} changes while it can be found", raw(id));
  block.described = false;
}

void BlockEvents::found(BlockId id, std::optional<Tier> tier) {
  Block& block = at(id);
  if (block.tier == tier) return;
  const std::optional<Tier> before = block.tier;
  if (before && !tier && block.described) remove(id);
  // Removed before it is stored elsewhere: so a reader that ignores tiers knows it at the end, too.
  if (before && tier && block.told) events_.push_back(removed(block));
  block.tier = tier;
  if (before && tier && block.told) events_.push_back(stored(block));
  if (!before && block.described) add(id);
}

void BlockEvents::replaced(BlockId before, BlockId after, Tier tier) {
  at(after);
  Block& from = at(before);
  Block& to = at(after);
  if (!from.described || !to.described) {
    found(before, std::nullopt);
    found(after, tier);
    return;
  }
  events_.reserve(events_.size() + 2);
  by_hash_.at(to.hash) = after;
  if (to.parent) {
    to.child = from.child;
    to.child->second = after;
  }
  to.told = std::exchange(from.told, false);
  // Those behind it stay as they are.
  if (to.told && from.tier != tier) {
    events_.push_back(removed(from));
    to.tier = tier;
    events_.push_back(stored(to));
  }
  to.tier = tier;
  from.tier.reset();
}

std::vector<CacheEvent> BlockEvents::everything() const {
  std::vector<const Block*> told;
  for (const Block& block : blocks_) {
    if (block.told) told.push_back(&block);
  }
  std::stable_sort(told.begin(), told.end(),
                   [](const Block* a, const Block* b) { return a->number < b->number; });
  std::vector<CacheEvent> out;
  out.reserve(told.size() + 1);
  out.emplace_back();
  for (const Block* block : told) out.push_back(stored(*block));
  return out;
}

}  // namespace kvasir
