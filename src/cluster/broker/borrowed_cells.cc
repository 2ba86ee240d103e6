#include "cluster/broker/borrowed_cells.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace kvasir::cluster {

BorrowedCells::BorrowedCells(uint32_t cells) : free_(cells) {
  if (cells > 0) gaps_[0] = cells;
}

std::vector<BorrowedCells::Run> BorrowedCells::grant(const ContractRef& contract, uint32_t blocks) {
  KV_CHECK(blocks <= free_, "{} cells, {} numbers are free", blocks, free_);
  std::vector<Run> runs;
  if (blocks == 0) return runs;
  const auto of_it = contracts_.try_emplace(contract).first;
  for (uint32_t slot = 0; slot < blocks;) {
    const auto [first, there] = *gaps_.begin();
    const uint32_t count = std::min(there, blocks - slot);
    gaps_.erase(gaps_.begin());
    if (count < there) gaps_[first + count] = there - count;
    runs.push_back({first, count, slot});
    for (uint32_t i = 0; i < count; ++i, ++slot) {
      of_it->second.emplace_hint(of_it->second.end(), slot, first + i);
      places_[first + i] = {of_it, slot};
    }
  }
  free_ -= blocks;
  return runs;
}

void BorrowedCells::make_free(uint32_t cell) {
  ++free_;
  auto next = gaps_.lower_bound(cell);
  uint32_t count = 1;
  if (next != gaps_.end() && next->first == cell + 1) {
    count += next->second;
    next = gaps_.erase(next);
  }
  if (next != gaps_.begin() && std::prev(next)->first + std::prev(next)->second == cell) {
    std::prev(next)->second += count;
  } else {
    gaps_.emplace_hint(next, cell, count);
  }
}

std::vector<BorrowedCells::Returned> BorrowedCells::returned(std::span<const uint32_t> cells) {
  std::map<ContractRef, std::vector<uint32_t>, ByRef> back;
  for (const uint32_t cell : cells) {
    if (lost_.erase(cell) == 0) {
      const auto it = places_.find(cell);
      KV_CHECK(it != places_.end(), "cell={} was not lent", cell);
      const auto [contract, slot] = it->second;
      back[contract->first].push_back(slot);
      contract->second.erase(slot);
      if (contract->second.empty()) contracts_.erase(contract);
      places_.erase(it);
    }
    make_free(cell);
  }
  std::vector<Returned> out;
  for (auto& [contract, slots] : back) {
    std::sort(slots.begin(), slots.end());
    out.push_back({contract, std::move(slots)});
  }
  return out;
}

std::vector<uint32_t> BorrowedCells::of(const ContractRef& contract) const {
  std::vector<uint32_t> cells;
  const auto it = contracts_.find(contract);
  if (it == contracts_.end()) return cells;
  for (auto last = it->second.rbegin(); last != it->second.rend(); ++last) cells.push_back(last->second);
  return cells;
}

std::vector<uint32_t> BorrowedCells::lose(const ContractRef& contract) {
  std::vector<uint32_t> lost;
  const auto it = contracts_.find(contract);
  if (it == contracts_.end()) return lost;
  for (const auto& [slot, cell] : it->second) {
    lost.push_back(cell);
    lost_.insert(cell);
    places_.erase(cell);
  }
  contracts_.erase(it);
  return lost;
}

std::vector<uint32_t> BorrowedCells::lose_all() {
  std::vector<uint32_t> lost;
  while (!contracts_.empty()) {
    const std::vector<uint32_t> more = lose(contracts_.begin()->first);
    lost.insert(lost.end(), more.begin(), more.end());
  }
  return lost;
}

}  // namespace kvasir::cluster
