#include "exec/gpu/device_tables.h"

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

#include "base/mutant.h"

namespace kvasir {

using ops::gpu::KvPlace;

static_assert(sizeof(KvPlace) == sizeof(KvPlanes) && offsetof(KvPlace, v) == offsetof(KvPlanes, v) &&
                  KvPlace::kAbsent == KvPlanes::kAbsent,
              "a table is uploaded as it is");

int DeviceTables::size_of(const BlockTable& table) {
  return static_cast<int>(std::bit_width(std::max<size_t>(table.size(), 16) - 1));
}

DeviceTables::Need DeviceTables::need_of(std::span<const StepSlice> slices) const {
  Need need;
  std::array<size_t, kSizes> wanted{};
  uint64_t bytes = 0;
  for (const StepSlice& slice : slices) {
    if (entries_.contains(slice.table.get())) continue;
    ++need.new_tables;
    need.new_bytes += slice.table->size() * sizeof(KvPlanes);
    const auto size = static_cast<size_t>(size_of(*slice.table));
    if (++wanted[size] > free_[size].size()) bytes += sizeof(KvPlace) << size;
  }
  need.allocates_nothing = bytes == 0 || (!chunks_.empty() && chunk_used_ + bytes <= chunks_.back()->bytes());
  return need;
}

Status DeviceTables::reserve() {
  return chunks_.empty() ? add_chunk(0) : Status();
}

Result<DeviceTables::Place> DeviceTables::place_of(const std::shared_ptr<const BlockTable>& table) {
  const auto found = entries_.find(table.get());
  if (found != entries_.end()) return Place{found->second.at, false};
  const int size = size_of(*table);
  const bool is_used = !free_[static_cast<size_t>(size)].empty();
  KV_ASSIGN_OR_RETURN(KvPlace* const at, take(size));
  const Entry entry{table, at, size};
  try {
    entries_.emplace(table.get(), entry);
  } catch (const std::bad_alloc&) {
    give_back(entry);
    throw;
  }
  // The fault: what a former table has left there is taken for this one.
  return Place{at, !(mutant(Mutant::kStaleTable) && is_used)};
}

Result<KvPlace*> DeviceTables::take(int size) {
  std::vector<KvPlace*>& free = free_[static_cast<size_t>(size)];
  if (!free.empty()) {
    KvPlace* const at = free.back();
    free.pop_back();
    return at;
  }
  size_t& places = places_[static_cast<size_t>(size)];
  if (free.capacity() <= places) free.reserve(2 * places + 1);
  const uint64_t bytes = sizeof(KvPlace) << size;
  if (chunks_.empty() || chunk_used_ + bytes > chunks_.back()->bytes()) KV_RETURN_IF_ERROR(add_chunk(bytes));
  auto* const at = reinterpret_cast<KvPlace*>(chunks_.back()->data() + chunk_used_);
  chunk_used_ += bytes;
  ++places;
  return at;
}

Status DeviceTables::add_chunk(uint64_t bytes) {
  auto chunk = std::make_unique<GpuBuffer>(gpu_, GpuBuffer::Kind::kDevice);
  KV_RETURN_IF_ERROR(chunk->reserve(std::max<uint64_t>(bytes, kReservedBytes)));
  chunks_.push_back(std::move(chunk));
  bytes_ += chunks_.back()->bytes();
  chunk_used_ = 0;
  return {};
}

void DeviceTables::give_back(const Entry& entry) noexcept {
  free_[static_cast<size_t>(entry.size)].push_back(entry.at);
}

void DeviceTables::forget_all() noexcept {
  for (const auto& [table, entry] : entries_) give_back(entry);
  entries_.clear();
}

void DeviceTables::sweep() noexcept {
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    if (entry->second.table.use_count() > 1) {
      ++entry;
      continue;
    }
    give_back(entry->second);
    entry = entries_.erase(entry);
  }
}

}  // namespace kvasir
