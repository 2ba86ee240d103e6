#include "cluster/broker/borrowed_cells.h"

#include <algorithm>

#include "base/check.h"

namespace kvasir::cluster {

uint32_t BorrowedCells::free() const {
  return static_cast<uint32_t>(std::count(places_.begin(), places_.end(), std::nullopt));
}

std::vector<BorrowedCells::Run> BorrowedCells::grant(const ContractRef& contract, uint32_t blocks) {
  KV_CHECK(blocks <= free(), "{} cells, {} numbers are free", blocks, free());
  std::vector<Run> runs;
  uint32_t slot = 0;
  for (uint32_t cell = 0; slot < blocks; ++cell) {
    if (places_[cell]) continue;
    places_[cell] = Place{contract, slot};
    if (runs.empty() || runs.back().first + runs.back().count != cell) runs.push_back({cell, 0, slot});
    ++runs.back().count;
    ++slot;
  }
  return runs;
}

std::optional<BorrowedCells::Place> BorrowedCells::returned(uint32_t cell) {
  KV_CHECK(places_[cell] && !places_[cell]->returned, "cell={} was not lent", cell);
  if (places_[cell]->lost) {
    places_[cell].reset();
    return std::nullopt;
  }
  places_[cell]->returned = true;
  return places_[cell];
}

std::vector<uint32_t> BorrowedCells::of(const ContractRef& contract) const {
  std::vector<uint32_t> cells;
  for (uint32_t cell = 0; cell < places_.size(); ++cell) {
    const auto& p = places_[cell];
    if (p && p->contract == contract && !p->returned && !p->lost) cells.push_back(cell);
  }
  std::sort(cells.begin(), cells.end(),
            [&](uint32_t a, uint32_t b) { return places_[a]->slot > places_[b]->slot; });
  return cells;
}

std::vector<uint32_t> BorrowedCells::lose(const ContractRef& contract) {
  return lose_those(&contract);
}

std::vector<uint32_t> BorrowedCells::lose_all() {
  return lose_those(nullptr);
}

std::vector<uint32_t> BorrowedCells::lose_those(const ContractRef* contract) {
  std::vector<uint32_t> lost;
  for (uint32_t cell = 0; cell < places_.size(); ++cell) {
    auto& p = places_[cell];
    if (!p || p->lost || (contract && p->contract != *contract)) continue;
    if (p->returned) {
      p.reset();
    } else {
      p->lost = true;
      lost.push_back(cell);
    }
  }
  return lost;
}

}  // namespace kvasir::cluster
