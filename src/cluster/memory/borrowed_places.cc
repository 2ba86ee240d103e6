// What lies where, and what no longer does.
#include <algorithm>

#include "base/check.h"
#include "cluster/memory/borrowed_memory.h"

namespace kvasir {

std::optional<uint32_t> BorrowedMemory::find(const PeerId& id) const {
  for (uint32_t c = 0; c < creditors_.size(); ++c) {
    if (creditors_[c].there && creditors_[c].id == id) return c;
  }
  return std::nullopt;
}

uint32_t BorrowedMemory::creditor_of(const PeerId& id) {
  for (uint32_t c = 0; c < creditors_.size(); ++c) {
    if (creditors_[c].id != id) continue;
    creditors_[c].there = true;  // a life that was taken for dead
    return c;
  }
  for (uint32_t c = 0; c < creditors_.size(); ++c) {
    Creditor& gone = creditors_[c];
    if (gone.there || gone.sending || gone.in_flight_bytes > 0 || first_queued(gone)) continue;
    gone.id = id;
    gone.there = true;
    gone.cheap_here = 0;
    gone.resume_at = 0;
    gone.estimate = {};
    return c;
  }
  creditors_.emplace_back();
  creditors_.back().id = id;
  return static_cast<uint32_t>(creditors_.size() - 1);
}

void BorrowedMemory::map(const PeerId& creditor, uint64_t contract, uint32_t first_index, uint32_t first_cell,
                         uint32_t count) {
  KV_CHECK(uint64_t{first_cell} + count <= places_.size(), "cells=[{}, +{}) of {}", first_cell, count,
           places_.size());
  After after;
  {
    std::lock_guard lock(mutex_);
    for (uint32_t c = 0; c < creditors_.size(); ++c) {
      const Creditor& known = creditors_[c];
      if (known.there && known.id.instance == creditor.instance && known.id != creditor) lose(c, after);
    }
    const uint32_t c = creditor_of(creditor);
    for (uint32_t i = 0; i < count; ++i) {
      CellPlace& place = places_[first_cell + i];
      KV_CHECK(place.creditor == CellPlace::kNowhere, "cell {} is mapped already", first_cell + i);
      place = {c, first_index + i, contract};
    }
    creditors_[c].contracts[contract].push_back({first_cell, first_index, count});
  }
  drive(std::move(after));
}

void BorrowedMemory::forget(uint32_t creditor, uint64_t contract) {
  auto& contracts = creditors_[creditor].contracts;
  const auto found = contracts.find(contract);
  for (const Part& part : found->second) {
    std::fill_n(places_.begin() + part.first_cell, part.count, CellPlace{});
  }
  contracts.erase(found);
  ++forgotten_;
}

void BorrowedMemory::unmap(const PeerId& creditor, uint64_t contract) {
  After after;
  {
    std::lock_guard lock(mutex_);
    const auto c = find(creditor);
    if (!c || !creditors_[*c].contracts.contains(contract)) return;
    forget(*c, contract);
    fail_all({*c, contract},
             error(ErrorCode::kUnavailable, "contract {} with {} has ended; recompute what lay there",
                   contract, creditor.instance),
             after);
  }
  drive(std::move(after));
}

void BorrowedMemory::unmap(const PeerId& creditor, uint64_t contract, uint32_t first_index, uint32_t count) {
  After after;
  {
    std::lock_guard lock(mutex_);
    const auto c = find(creditor);
    if (!c || !creditors_[*c].contracts.contains(contract)) return;
    const uint64_t end_index = uint64_t{first_index} + count;
    std::vector<Part>& parts = creditors_[*c].contracts.at(contract);
    std::vector<Part> left;
    const auto keep = [&](const Part& part, uint64_t first, uint64_t end) {
      if (first == end) return;
      left.push_back({part.first_cell + static_cast<uint32_t>(first),
                      part.first_index + static_cast<uint32_t>(first), static_cast<uint32_t>(end - first)});
    };
    for (const Part& part : parts) {
      const uint64_t part_end = uint64_t{part.first_index} + part.count;
      const uint64_t first = std::clamp<uint64_t>(first_index, part.first_index, part_end) - part.first_index;
      const uint64_t end = std::clamp<uint64_t>(end_index, part.first_index, part_end) - part.first_index;
      std::fill(places_.begin() + part.first_cell + static_cast<std::ptrdiff_t>(first),
                places_.begin() + part.first_cell + static_cast<std::ptrdiff_t>(end), CellPlace{});
      keep(part, 0, first);
      keep(part, end, part.count);
    }
    parts = std::move(left);
    if (parts.empty()) creditors_[*c].contracts.erase(contract);
    ++forgotten_;
    fail_all({*c, contract, first_index, end_index},
             error(ErrorCode::kUnavailable, "cells [{}, {}) of contract {} with {} were given back",
                   first_index, end_index, contract, creditor.instance),
             after);
  }
  drive(std::move(after));
}

void BorrowedMemory::lost(const PeerId& creditor) {
  After after;
  {
    std::lock_guard lock(mutex_);
    if (const auto c = find(creditor)) lose(*c, after);
  }
  drive(std::move(after));
}

void BorrowedMemory::lost_all() {
  After after;
  {
    std::lock_guard lock(mutex_);
    for (uint32_t c = 0; c < creditors_.size(); ++c) {
      if (creditors_[c].there) lose(c, after);
    }
  }
  drive(std::move(after));
}

void BorrowedMemory::lose(uint32_t creditor, After& after) {
  Creditor& lost = creditors_[creditor];
  while (!lost.contracts.empty()) forget(creditor, lost.contracts.begin()->first);
  fail_all({creditor, std::nullopt},
           error(ErrorCode::kUnavailable, "peer {} is dead; recompute what lay there", lost.id.instance),
           after);
  lost.there = false;
  lost.tables.forget_all();
}

bool BorrowedMemory::Gone::has(const CellPlace& place) const {
  return place.creditor == creditor && (!contract || place.contract == *contract) &&
         place.index >= first_index && place.index < end_index;
}

bool BorrowedMemory::needs(const Operation& operation, const Gone& gone) const {
  if (operation.kind != DataKind::kAttend) return gone.has(operation.place);
  for (size_t s = 0; s < operation.states.size(); ++s) {
    if (operation.states[s].done) continue;
    for (const LeafRun& run : operation.shares.shares[s].runs) {
      for (const CellPlace& place : places_of(operation, run)) {
        if (gone.has(place)) return true;
      }
    }
  }
  return false;
}

void BorrowedMemory::fail_all(const Gone& gone, const Status& why, After& after) {
  std::vector<OperationPtr> theirs;
  for (const auto& [age, operation] : operations_) {
    if (needs(*operation, gone)) theirs.push_back(operation);
  }
  for (const OperationPtr& operation : theirs) fail(operation, why, after);
}

std::span<const CellPlace> BorrowedMemory::places_of(const Operation& operation, LeafRun run) const {
  const size_t per_leaf = shape_.blocks_per_leaf();
  return std::span(operation.places)
      .subspan((run.first - operation.shares.run.first) * per_leaf, run.leaves() * per_leaf);
}

}  // namespace kvasir
