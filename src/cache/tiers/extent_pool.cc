#include "cache/tiers/extent_pool.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace kvasir {

ExtentPool::ExtentPool(uint64_t capacity_bytes, uint64_t unit_bytes)
    : unit_bytes_(unit_bytes), units_(static_cast<uint32_t>(capacity_bytes / unit_bytes)), free_(units_) {
  KV_CHECK(unit_bytes > 0, "capacity={}", capacity_bytes);
  if (units_ > 0) add_run(0, units_);
}

void ExtentPool::add_run(uint32_t first, uint32_t count) {
  runs_.emplace(first, count);
  by_length_.emplace(count, first);
}

void ExtentPool::remove_run(std::map<uint32_t, uint32_t>::iterator run) {
  auto [begin, end] = by_length_.equal_range(run->second);
  for (auto it = begin; it != end; ++it) {
    if (it->second != run->first) continue;
    by_length_.erase(it);
    break;
  }
  runs_.erase(run);
}

ExtentPool::Run ExtentPool::allocate(std::optional<uint64_t> previous, uint32_t most) {
  if (free_ == 0 || most == 0) return {};
  auto run = previous ? runs_.find(static_cast<uint32_t>(*previous / unit_bytes_) + 1) : runs_.end();
  if (run == runs_.end()) run = runs_.find(std::prev(by_length_.end())->second);
  const auto [first, count] = *run;
  const uint32_t taken = std::min(most, count);
  remove_run(run);
  if (count > taken) add_run(first + taken, count - taken);
  free_ -= taken;
  return {first * unit_bytes_, taken};
}

std::optional<uint64_t> ExtentPool::allocate(std::optional<uint64_t> previous) {
  const Run run = allocate(previous, 1);
  return run.units == 0 ? std::nullopt : std::optional(run.offset);
}

bool ExtentPool::claim(uint64_t offset) {
  const uint64_t unit = offset / unit_bytes_;
  if (unit >= units_ || offset % unit_bytes_ != 0) return false;
  const auto wanted = static_cast<uint32_t>(unit);
  auto run = runs_.upper_bound(wanted);
  if (run == runs_.begin()) return false;
  const auto [first, count] = *--run;
  if (wanted >= first + count) return false;
  remove_run(run);
  if (wanted > first) add_run(first, wanted - first);
  if (wanted + 1 < first + count) add_run(wanted + 1, first + count - wanted - 1);
  --free_;
  return true;
}

void ExtentPool::release(uint64_t offset, uint32_t units) {
  auto first = static_cast<uint32_t>(offset / unit_bytes_);
  KV_CHECK(first < units_ && units <= units_ - first && offset % unit_bytes_ == 0, "offset={} units={}",
           offset, units);
  uint32_t count = units;
  auto next = runs_.lower_bound(first);
  KV_CHECK(next == runs_.end() || next->first >= first + units, "offset={}: not allocated", offset);
  if (next != runs_.begin()) {
    const auto before = std::prev(next);
    KV_CHECK(before->first + before->second <= first, "offset={}: not allocated", offset);
    if (before->first + before->second == first) {
      first = before->first;
      count += before->second;
      remove_run(before);
    }
  }
  if (next != runs_.end() && next->first == first + count) {
    count += next->second;
    remove_run(next);
  }
  add_run(first, count);
  free_ += units;
}

Status ExtentPool::check_integrity() const {
  uint32_t free = 0;
  uint32_t end = 0;
  for (const auto& [first, count] : runs_) {
    if (count == 0 || first + count > units_ || (free > 0 && first <= end)) {
      return error(ErrorCode::kCorrupt, "extent of {} units at {} overlaps or touches the one before", count,
                   first);
    }
    free += count;
    end = first + count;
  }
  if (free != free_ || by_length_.size() != runs_.size()) {
    return error(ErrorCode::kCorrupt, "{} units are free, counted {}", free, free_);
  }
  return {};
}

}  // namespace kvasir
