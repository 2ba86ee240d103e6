// KvCache: what outlives its sequences, in slower tiers and in the file on the disk.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "cache/sequences/kv_cache.h"

namespace kvasir {

std::vector<Transfer> KvCache::save_idle() {
  for (BlockId id : map_.take_newly_idle()) to_be_saved_.push_back(id);
  if (to_be_saved_.empty()) return {};
  // A block that became idle several times is listed several times. Entries beyond one for each block are
  // old.
  while (to_be_saved_.size() > map_.blocks().size()) to_be_saved_.pop_front();
  const uint32_t most = std::max(1u, options_.cells(Tier::kDevice) / options_.geometry.groups() / 8);
  std::vector<Transfer> out;
  while (!to_be_saved_.empty() && saves_in_flight_ < most) {
    const BlockId id = to_be_saved_.front();
    to_be_saved_.pop_front();
    for (Tier tier : {Tier::kHost, Tier::kDisk}) {
      const BlockMap::Block& block = map_.block(id);
      const Place to = {Form::kKv, tier};
      const LayerSet& all = map_.all_groups();
      if (!block.published || !block.owners.empty() || block.at(kDeviceKv).usable() != all) break;
      if (options_.tier_bytes(tier) == 0 || !block.at(to).present.empty()) continue;
      // It must not take promised cells on either tier; frames that are being read are in use.
      if (budget(tier).available_cells() < all.count()) continue;
      if (budget(Tier::kDevice).available_cells() < all.count()) break;
      // In use before anything is evicted for them.
      std::vector<Use> uses;
      uses.reserve(2);
      uses.push_back({id, kDeviceKv, all, false});
      const TransferId transfer = begin_transfer(SeqId{}, std::move(uses), /*cancellable=*/false);
      map_.add_unowned(id, to, all);
      TransferRecord& record = *transfers_.find(transfer);
      use({id, to, all, true}, transfer);
      record.uses.push_back({id, to, all, true});
      record.saves = true;
      Addition added;
      const BlockMap::Block& saved = map_.block(id);
      all.for_each([&](uint32_t g) {
        if (tier == Tier::kDisk) return move_cell(saved, g, kDeviceKv, tier, added);
        add_segment(added.transfer, {saved.at(kDeviceKv).by_group[g].at, Tier::kDevice},
                    {saved.at(to).by_group[g].at, tier}, options_.geometry.cell_bytes(Form::kKv));
      });
      ++saves_in_flight_;
      added.transfer.id = transfer;
      added.transfer.priority = TransferPriority::kOffload;
      out.push_back(std::move(added.transfer));
    }
  }
  return out;
}

std::vector<DiskEntry> KvCache::saved_cells() const {
  std::vector<DiskEntry> out;
  const auto save_block = [&](const BlockMap::Block& block) {
    const LayerSet kv = block.at({Form::kKv, Tier::kDisk}).usable();
    const LayerSet x = block.at({Form::kX, Tier::kDisk}).usable() - kv;
    if ((kv | x) != map_.all_groups()) return;
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
