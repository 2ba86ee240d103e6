#include "cache/sequences/borrowed_cells.h"

#include <algorithm>
#include <numeric>

namespace kvasir {

BorrowedCells::BorrowedCells(const CacheOptions& options, BlockMap& map) : options_(options), map_(map) {
  // None is there at first.
  std::vector<uint32_t> slabs(options.first_shown_cell());
  std::iota(slabs.begin(), slabs.end(), options.own_host_cells());
  map_.close_host_slabs(slabs);
  map_.take_departed_host_slabs();
}

void BorrowedCells::add(std::span<const uint32_t> cells) {
  for (uint32_t cell : cells) map_.open_host_slab(slab_of(cell));
  open_ += static_cast<uint32_t>(cells.size());
}

void BorrowedCells::open_attended(std::span<const uint32_t> cells) {
  for (uint32_t cell : cells) map_.open_host_slab(slab_of(cell));
  attended_ += static_cast<uint32_t>(cells.size());
}

void BorrowedCells::close_attended(std::span<const uint32_t> cells) {
  std::vector<uint32_t> slabs;
  for (uint32_t cell : cells) slabs.push_back(slab_of(cell));
  map_.close_host_slabs(slabs);
}

uint32_t BorrowedCells::close(std::span<const uint32_t> cells) {
  std::vector<uint32_t> slabs;
  for (uint32_t cell : cells) {
    if (!attended(cell) && map_.host_slab_is_open(slab_of(cell))) slabs.push_back(slab_of(cell));
  }
  std::sort(slabs.begin(), slabs.end());
  slabs.erase(std::unique(slabs.begin(), slabs.end()), slabs.end());
  map_.close_host_slabs(slabs);
  const auto closed = static_cast<uint32_t>(slabs.size());
  open_ -= closed;
  closed_ += closed;
  return closed;
}

void BorrowedCells::keep(std::span<const uint32_t> cells) {
  for (uint32_t cell : cells) {
    if (attended(cell) || !map_.keep_host_slab(slab_of(cell))) continue;
    ++open_;
    --closed_;
  }
}

std::vector<uint32_t> BorrowedCells::take_departed() {
  std::vector<uint32_t> cells = map_.take_departed_host_slabs();
  for (uint32_t& slab : cells) slab -= options_.own_host_cells();
  const auto gone = static_cast<uint32_t>(
      std::count_if(cells.begin(), cells.end(), [&](uint32_t cell) { return attended(cell); }));
  attended_ -= gone;
  closed_ -= static_cast<uint32_t>(cells.size()) - gone;
  return cells;
}

bool BorrowedCells::contains_closed(Place place, uint64_t at) const {
  if (!contains(place, at) || attended(cell_at(at))) return false;
  return !map_.host_slab_is_open(static_cast<uint32_t>(at / options_.geometry.kv_cell_bytes()));
}

std::vector<uint32_t> BorrowedCells::empty(uint32_t most) const {
  std::vector<uint32_t> empty;
  for (uint32_t cell = options_.borrowable_cells(); cell-- > 0 && empty.size() < most;) {
    const uint32_t slab = slab_of(cell);
    if (map_.host_slab_is_open(slab) && map_.host_slab_is_empty(slab)) empty.push_back(cell);
  }
  return empty;
}

std::vector<uint32_t> BorrowedCells::idle() const {
  std::vector<uint32_t> idle;
  uint32_t left = open_;
  for (uint32_t cell = 0; left > 0 && cell < options_.borrowable_cells(); ++cell) {
    const uint32_t slab = slab_of(cell);
    if (!map_.host_slab_is_open(slab)) continue;
    --left;
    if (!map_.host_slab_is_empty(slab) && !map_.host_slab_is_needed(slab)) idle.push_back(cell);
  }
  return idle;
}

}  // namespace kvasir
