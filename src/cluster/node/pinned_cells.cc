#include "cluster/node/pinned_cells.h"

#include "base/heap.h"

namespace kvasir::cluster {

// The broker hears of a new life in the engine's next turn.
LoanTable* PinnedCells::loans() {
  std::lock_guard lock(loans_mutex_);
  if (!loans_) {
    std::lock_guard owner(mutex_);
    ControlPlane* control = broker_.control();
    if (control && control->post().self() == self_) loans_ = control->rmanager().lender().loans();
  }
  return loans_.get();
}

bool PinnedCells::pin(const PeerId& debtor, std::span<const CellRun> runs, std::vector<std::byte*>& at,
                      std::vector<uint32_t>& pins) {
  const WaitsForMemory patient;  // what is pinned is pinned whole
  LoanTable* loans = this->loans();
  if (!loans) return false;
  std::vector<LoanTable::Slots> slots;
  slots.reserve(runs.size());
  for (const CellRun& run : runs) slots.push_back({run.contract, run.first, run.count, run.stride});
  const size_t before = pins.size();
  if (!loans->pin(debtor, slots, pins).ok()) return false;
  std::vector<LendableCells::Frame> frames;
  broker_.frames().find(std::span(pins).subspan(before), frames);
  for (const LendableCells::Frame& f : frames) at.push_back(memory_[index_of(f.tier)].data() + f.at);
  return true;
}

void PinnedCells::unpin(std::span<const uint32_t> pins) {
  const WaitsForMemory patient;  // destructors call this
  if (!pins.empty()) loans()->unpin(pins);
}

}  // namespace kvasir::cluster
