// KvCache: prefixes that are copied from peers, and shown to them.
#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/mutant.h"
#include "cache/sequences/kv_cache.h"

namespace kvasir {

KvCache::PromptBlocks KvCache::prompt_blocks(SeqId id) const {
  const Sequence& seq = at(id);
  if (!options_.prefix_caching || !seq.adopts || !seq.table.empty()) return {};
  const size_t blocks = (seq.tokens.size() - 1) / block_tokens();
  const auto first = seq.hashes.begin() + 1;
  return {{first, first + static_cast<ptrdiff_t>(blocks)},
          std::min<size_t>(index_.match(id).matched, blocks)};
}

// ---------------------------------------------------------------- from peers

std::optional<Transfer> KvCache::copy_prefix(const PromptBlocks& blocks, std::span<const MemoryAddress> from,
                                             uint32_t reserve) {
  const uint32_t groups = options_.geometry.groups();
  const uint64_t cell_bytes = options_.geometry.kv_cell_bytes();
  const size_t end = std::min(blocks.hashes.size(), blocks.cached + from.size() / groups);
  const std::span<const BlockHash> chain(blocks.hashes.data(), end);
  int64_t free = budget(Tier::kDevice).available_cells() - int64_t{reserve};
  // Idle blocks count as free, and would be evicted for those that continue them.
  std::vector<Use> here;
  std::vector<size_t> missing;
  for (size_t i = 0; i < end; ++i) {
    const BlockId id = index_.find(chain[i]);
    if (id == kNoBlock) {
      if (i < blocks.cached) return std::nullopt;  // it has gone since
      missing.push_back(i);
      continue;
    }
    const BlockMap::Copies& copies = map_.block(id).at(kDeviceKv);
    if (copies.usable().empty()) continue;
    free -= (copies.idle & copies.usable()).count();
    here.push_back({id, kDeviceKv, copies.usable(), false});
  }
  const auto room = static_cast<size_t>(std::max<int64_t>(0, free)) / groups;
  if (missing.size() > room) missing.resize(room);
  if (missing.empty()) return std::nullopt;
  Transfer transfer;
  transfer.id = begin_transfer(SeqId{}, std::move(here), /*cancellable=*/false);
  TransferRecord& record = *transfers_.find(transfer.id);
  record.copies_prefix = true;
  for (const size_t i : missing) {
    const size_t named = mutant(Mutant::kPeerPrefixShifted) ? (i + 1) % end : i;
    const Use filled = {map_.create_filled(chain[named]), kDeviceKv, map_.all_groups(), true};
    use(filled, transfer.id);
    record.uses.push_back(filled);
    for (uint32_t g = 0; g < groups; ++g) {
      const uint64_t at = map_.block(filled.block).at(kDeviceKv).by_group[g].at;
      transfer.segments.push_back({from[(i - blocks.cached) * groups + g], {at, Tier::kDevice}, cell_bytes});
    }
  }
  return transfer;
}

// ---------------------------------------------------------------- to peers

KvCache::ShownPrefix KvCache::show_prefix(std::span<const BlockHash> chain) {
  const uint32_t groups = options_.geometry.groups();
  const uint32_t most = options_.cells(Tier::kDevice) / 4;
  ShownPrefix shown;
  std::vector<Use> uses;
  // What is idle counts as free until it is shown, and may be promised.
  std::array<int64_t, kTiers> free{};
  for (Tier tier : {Tier::kDevice, Tier::kHost}) free[index_of(tier)] = budget(tier).available_cells();
  for (const BlockHash& hash : chain) {
    const BlockId id = index_.find(hash);
    if (id == kNoBlock || shown_ + shown.frames.size() + groups > most) break;
    const BlockMap::Block& block = map_.block(id);
    std::array<LayerSet, kTiers> read{};
    std::vector<Frame> frames;
    for (uint32_t g = 0; g < groups; ++g) {
      for (Tier tier : {Tier::kDevice, Tier::kHost}) {
        const Place place = {Form::kKv, tier};
        if (!block.at(place).usable().contains(g)) continue;
        const uint64_t at = block.at(place).by_group[g].at;
        if (is_borrowed(place, at)) continue;
        frames.push_back({tier, at});
        read[index_of(tier)].add(g);
        break;
      }
    }
    bool promised = false;
    for (Tier tier : {Tier::kDevice, Tier::kHost}) {
      const LayerSet idle = read[index_of(tier)] & block.at({Form::kKv, tier}).idle;
      free[index_of(tier)] -= idle.count();
      promised |= !idle.empty() && free[index_of(tier)] < 0;
    }
    if (frames.size() < groups || promised) break;
    shown.frames.insert(shown.frames.end(), frames.begin(), frames.end());
    for (Tier tier : {Tier::kDevice, Tier::kHost}) {
      if (!read[index_of(tier)].empty()) uses.push_back({id, {Form::kKv, tier}, read[index_of(tier)], false});
    }
  }
  if (shown.frames.empty()) return shown;
  shown_ += static_cast<uint32_t>(shown.frames.size());
  shown.id = begin_transfer(SeqId{}, std::move(uses), /*cancellable=*/false);
  ++prefixes_shown_;
  return shown;
}

void KvCache::keep_prefix(TransferId id, uint32_t blocks) {
  const std::vector<Use> uses = std::move(transfers_.find(id)->uses);
  transfers_.erase(id);
  --prefixes_shown_;
  std::vector<Use>& kept = kept_prefixes_[id];
  uint32_t block = 0;  // those of a block, one for each tier, are side by side
  for (size_t i = 0; i < uses.size(); ++i) {
    const Use& use = uses[i];
    if (i == 0 || use.block != uses[i - 1].block) ++block;
    shown_ -= use.groups.count();
    if (block > blocks) {
      map_.unpin(use.block, use.place, use.groups);
      continue;
    }
    kept_ += use.groups.count();
    map_.add_keeper(use.block);
    kept.push_back(use);
  }
}

void KvCache::hide_prefix(TransferId id) {
  if (const auto kept = kept_prefixes_.find(id); kept != kept_prefixes_.end()) {
    for (const Use& use : kept->second) {
      kept_ -= use.groups.count();
      map_.remove_keeper(use.block);
      map_.unpin(use.block, use.place, use.groups);
    }
    kept_prefixes_.erase(kept);
    return;
  }
  for (const Use& use : transfers_.find(id)->uses) shown_ -= use.groups.count();
  --prefixes_shown_;
  transfer_ended(id, {});
}

// ---------------------------------------------------------------- attended at peers

uint64_t KvCache::attend_at_peers(std::span<const BlockHash> chain, std::span<const uint32_t> cells) {
  const uint32_t groups = options_.geometry.groups();
  KV_CHECK(cells.size() >= chain.size() * groups, "{} cells for {} blocks", cells.size(), chain.size());
  borrowed_.open_attended(cells);
  std::vector<BlockId> added;
  std::vector<BlockMap::Found> copies(groups);
  for (size_t i = 0; i < chain.size(); ++i) {
    const size_t named = mutant(Mutant::kPeerPrefixShifted) ? (i + 1) % chain.size() : i;
    for (uint32_t g = 0; g < groups; ++g) {
      copies[g] = {Form::kKv, g, borrowed_.address(cells[i * groups + g])};
    }
    if (map_.restore(chain[named], copies, Tier::kHost, /*attended=*/true) == 0) continue;
    added.push_back(index_.find(chain[named]));
    map_.pin(added.back(), kHostKv, map_.all_groups());
  }
  // Those of blocks that are here already are empty.
  borrowed_.close_attended(cells);
  if (added.empty()) return 0;
  attended_[++last_attended_] = std::move(added);
  return last_attended_;
}

void KvCache::let_go(uint64_t attended) {
  const auto it = attended_.find(attended);
  if (it == attended_.end()) return;
  for (const BlockId id : it->second) map_.unpin(id, kHostKv, map_.all_groups());
  attended_.erase(it);
}

// Their peer wants them back, or they are lost.
void KvCache::let_go_of(std::span<const uint32_t> cells) {
  std::unordered_set<uint64_t> there;
  for (const uint32_t cell : cells) {
    if (borrowed_.attended(cell)) there.insert(borrowed_.address(cell));
  }
  if (there.empty()) return;
  for (auto it = attended_.begin(); it != attended_.end();) {
    std::erase_if(it->second, [&](BlockId id) {
      const BlockMap::Copies& host = map_.block(id).at(kHostKv);
      bool goes = false;
      host.present.for_each([&](uint32_t g) { goes |= there.contains(host.by_group[g].at); });
      if (goes) map_.unpin(id, kHostKv, map_.all_groups());
      return goes;
    });
    it = it->second.empty() ? attended_.erase(it) : std::next(it);
  }
}

// ---------------------------------------------------------------- computed at peers

uint32_t KvCache::add_cached(std::span<const BlockHash> chain, std::span<const uint32_t> cells) {
  const uint32_t groups = options_.geometry.groups();
  KV_CHECK(cells.size() == chain.size() * groups, "{} cells for {} blocks", cells.size(), chain.size());
  uint32_t added = 0;
  std::vector<BlockMap::Found> copies(groups);
  for (size_t i = 0; i < chain.size(); ++i) {
    const size_t named = mutant(Mutant::kComputedAtPeerShifted) ? (i + 1) % chain.size() : i;
    for (uint32_t g = 0; g < groups; ++g) {
      copies[g] = {Form::kKv, g, borrowed_.address(cells[i * groups + g])};
    }
    if (map_.restore(chain[named], copies, Tier::kHost) > 0) ++added;
  }
  return added;
}

}  // namespace kvasir
