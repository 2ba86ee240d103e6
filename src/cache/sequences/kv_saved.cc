// KvCache: what outlives its sequences, in slower tiers and in the file on the disk.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "cache/sequences/kv_cache.h"

namespace kvasir {

std::vector<Transfer> KvCache::save_idle(const BytesByTier& ahead) {
  const std::vector<BlockId> newly_idle = map_.take_newly_idle();
  const uint32_t groups = options_.geometry.groups();
  const uint64_t block_bytes = options_.geometry.kv_cell_bytes() * groups;
  const uint64_t share = std::max(1u, options_.cells(Tier::kDevice) / groups / 8);
  std::vector<Transfer> out;
  for (Tier tier : {Tier::kHost, Tier::kDisk}) {
    if (options_.tier_bytes(tier) == 0) continue;
    std::deque<BlockId>& queue = to_be_saved_[index_of(tier)];
    queue.insert(queue.end(), newly_idle.begin(), newly_idle.end());
    // A block that became idle several times is listed several times. Entries beyond one for each block are
    // old.
    while (queue.size() > map_.blocks().size()) queue.pop_front();
    const uint64_t most = std::clamp<uint64_t>(ahead[index_of(tier)] / block_bytes, 1, share);
    while (!queue.empty() && saves_in_flight_[index_of(tier)] < most) {
      const BlockId id = queue.front();
      queue.pop_front();
      if (can_be_saved(id, tier)) out.push_back(save_block(id, tier));
    }
  }
  return out;
}

// What is to be saved of a block: all that is there, or what a saved one lacks behind windows.
LayerSet KvCache::to_save(const BlockMap::Block& block, Tier tier) const {
  const LayerSet here = block.at(kDeviceKv).usable(), there = block.at({Form::kKv, tier}).present;
  if (!(map_.lasting_groups() - here).empty()) return {};
  return there.empty() ? here : (here - there) & options_.geometry.windowed;
}

bool KvCache::can_be_saved(BlockId id, Tier tier) const {
  const BlockMap::Block& block = map_.block(id);
  if (!block.published || !block.owners.empty()) return false;
  const uint32_t cells = to_save(block, tier).count();
  // It must not take promised cells on either tier; frames that are being read are in use.
  return cells > 0 && budget(tier).available_cells() >= cells &&
         budget(Tier::kDevice).available_cells() >= cells;
}

Transfer KvCache::save_block(BlockId id, Tier tier) {
  const Place to = {Form::kKv, tier};
  const LayerSet all = to_save(map_.block(id), tier);
  // In use before anything is evicted for them.
  std::vector<Use> uses;
  uses.reserve(2);
  uses.push_back({id, kDeviceKv, all, false});
  const TransferId transfer = begin_transfer(SeqId{}, std::move(uses), /*cancellable=*/false);
  map_.add_unowned(id, to, all);
  TransferRecord& record = *transfers_.find(transfer);
  use({id, to, all, true}, transfer);
  record.uses.push_back({id, to, all, true});
  record.saves_to = tier;
  Addition added;
  const BlockMap::Block& saved = map_.block(id);
  all.for_each([&](uint32_t g) {
    if (tier == Tier::kDisk) return move_cell(saved, g, kDeviceKv, tier, added);
    add_segment(added.transfer, {saved.at(kDeviceKv).by_group[g].at, Tier::kDevice},
                {saved.at(to).by_group[g].at, tier}, options_.geometry.cell_bytes(Form::kKv));
  });
  ++saves_in_flight_[index_of(tier)];
  added.transfer.id = transfer;
  added.transfer.priority = TransferPriority::kOffload;
  return std::move(added.transfer);
}

std::vector<DiskEntry> KvCache::saved_cells() const {
  std::vector<DiskEntry> out;
  const auto save_block = [&](const BlockMap::Block& block) {
    const LayerSet kv = block.at({Form::kKv, Tier::kDisk}).usable();
    const LayerSet x = block.at({Form::kX, Tier::kDisk}).usable() - kv;
    if (!(map_.lasting_groups() - kv - x).empty()) return;
    const auto save = [&](Form form, const LayerSet& groups) {
      groups.for_each([&](uint32_t g) {
        out.push_back({block.hash, form, g, block.at({form, Tier::kDisk}).by_group[g].at});
      });
    };
    save(Form::kKv, kv);
    save(Form::kX, x);
  };
  // They are read back in this order, the oldest first.
  for (BlockId id : map_.idle(Tier::kDisk)) save_block(map_.block(id));
  for (uint32_t i = 0; i < map_.blocks().size(); ++i) {
    const BlockMap::Block& block = map_.blocks()[i];
    const bool idle = map_.idle(Tier::kDisk).contains(static_cast<BlockId>(i));
    if (block.used && block.published && !idle) save_block(block);
  }
  return out;
}

size_t KvCache::restore(std::span<const DiskEntry> cells) {
  size_t blocks = 0;
  for (size_t begin = 0; begin < cells.size();) {
    size_t end = begin;
    std::vector<BlockMap::Found> found;
    for (; end < cells.size() && cells[end].hash == cells[begin].hash; ++end) {
      found.push_back({cells[end].form, cells[end].group, cells[end].offset});
    }
    if (map_.restore(cells[begin].hash, found) > 0) ++blocks;
    begin = end;
  }
  return blocks;
}

}  // namespace kvasir
