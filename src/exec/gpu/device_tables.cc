#include "exec/gpu/device_tables.h"

#include <algorithm>
#include <bit>

#include "base/mutant.h"
#include "base/units.h"

namespace kvasir {

using ops::gpu::KvPlace;

static_assert(sizeof(KvPlace) == sizeof(KvPlanes) && offsetof(KvPlace, v) == offsetof(KvPlanes, v) &&
                  KvPlace::kAbsent == KvPlanes::kAbsent,
              "a table is uploaded as it is");

Result<DeviceTables::Place> DeviceTables::place_of(const std::shared_ptr<const BlockTable>& table) {
  const auto found = entries_.find(table.get());
  if (found != entries_.end()) return Place{found->second.at, false};
  const int size = static_cast<int>(std::bit_width(std::max<size_t>(table->size(), 16) - 1));
  const bool is_used = !free_[static_cast<size_t>(size)].empty();
  KV_ASSIGN_OR_RETURN(KvPlace* const at, take(size));
  entries_.emplace(table.get(), Entry{table, at, size});
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
  const uint64_t bytes = sizeof(KvPlace) << size;
  if (chunks_.empty() || chunk_used_ + bytes > chunks_.back()->bytes()) {
    auto chunk = std::make_unique<GpuBuffer>(gpu_, GpuBuffer::Kind::kDevice);
    KV_RETURN_IF_ERROR(chunk->reserve(std::max<uint64_t>(bytes, kMiB)));
    bytes_ += chunk->bytes();
    chunks_.push_back(std::move(chunk));
    chunk_used_ = 0;
  }
  auto* const at = reinterpret_cast<KvPlace*>(chunks_.back()->data() + chunk_used_);
  chunk_used_ += bytes;
  return at;
}

void DeviceTables::forget_all() {
  for (const auto& [table, entry] : entries_) free_[static_cast<size_t>(entry.size)].push_back(entry.at);
  entries_.clear();
}

void DeviceTables::sweep() {
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    if (entry->second.table.use_count() > 1) {
      ++entry;
      continue;
    }
    free_[static_cast<size_t>(entry->second.size)].push_back(entry->second.at);
    entry = entries_.erase(entry);
  }
}

}  // namespace kvasir
