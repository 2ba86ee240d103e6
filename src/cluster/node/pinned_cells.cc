#include "cluster/node/pinned_cells.h"

#include "base/check.h"
#include "base/heap.h"

namespace kvasir::cluster {

std::byte* PinnedCells::pin(const PeerId& debtor, uint64_t contract, uint32_t index) {
  const WaitsForMemory patient;  // what is pinned is either in both books or in none
  std::lock_guard lock(mutex_);
  // The broker hears of a new life in the engine's next turn.
  ControlPlane* control = broker_.control();
  if (!control || control->post().self() != self_) return nullptr;
  const Result<std::vector<uint32_t>> blocks =
      control->rmanager().lender().pin(debtor, contract, std::span(&index, 1));
  if (!blocks.ok()) return nullptr;
  Pin& pin = pins_[{debtor.instance, debtor.epoch, contract, index}];
  pin.block = blocks.value().front();
  ++pin.count;
  const LendableCells::Frame& f = broker_.frames().frame(pin.block);
  return memory_[index_of(f.tier)].data() + f.at;
}

void PinnedCells::unpin(const PeerId& debtor, uint64_t contract, uint32_t index) {
  const WaitsForMemory patient;  // destructors call this
  std::lock_guard lock(mutex_);
  const auto found = pins_.find({debtor.instance, debtor.epoch, contract, index});
  KV_CHECK(found != pins_.end(), "contract={} index={} is not pinned", contract, index);
  const uint32_t block = found->second.block;
  if (--found->second.count == 0) pins_.erase(found);
  broker_.control()->rmanager().lender().unpin(std::span(&block, 1));
}

}  // namespace kvasir::cluster
