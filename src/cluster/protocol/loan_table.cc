#include "cluster/protocol/loan_table.h"

#include <algorithm>
#include <map>

#include "base/check.h"
#include "base/mutant.h"

namespace kvasir::cluster {

void LoanTable::lend(uint64_t contract, const PeerId& debtor, std::vector<uint32_t> blocks) {
  std::lock_guard lock(mutex_);
  loans_[contract] = {debtor, std::move(blocks)};
}

void LoanTable::free_or_keep(uint32_t block, std::vector<uint32_t>& free) {
  if (pins_.contains(block) && !mutant(Mutant::kPinnedFrameFreed)) {
    doomed_.insert(block);
  } else {
    free.push_back(block);
  }
}

void LoanTable::take(uint64_t contract, std::span<const uint32_t> slots, std::vector<uint32_t>& free) {
  std::lock_guard lock(mutex_);
  std::vector<uint32_t>& blocks = loans_.at(contract).blocks;
  for (const uint32_t slot : slots) {
    if (blocks[slot] == kGone) continue;
    free_or_keep(blocks[slot], free);
    blocks[slot] = kGone;
  }
}

void LoanTable::end(uint64_t contract, std::vector<uint32_t>& free) {
  std::lock_guard lock(mutex_);
  const auto it = loans_.find(contract);
  for (const uint32_t block : it->second.blocks) {
    if (block != kGone) free_or_keep(block, free);
  }
  loans_.erase(it);
}

std::vector<uint32_t> LoanTable::hand_over(uint64_t contract, uint32_t count, std::vector<uint32_t>& free) {
  std::lock_guard lock(mutex_);
  const auto it = loans_.find(contract);
  std::vector<uint32_t> blocks = std::move(it->second.blocks);
  for (size_t i = count; i < blocks.size(); ++i) free_or_keep(blocks[i], free);
  blocks.resize(count);
  loans_.erase(it);
  return blocks;
}

void LoanTable::take_unpinned(std::vector<uint32_t>& free) {
  std::lock_guard lock(mutex_);
  free.insert(free.end(), unpinned_.begin(), unpinned_.end());
  unpinned_.clear();
}

void LoanTable::close() {
  std::lock_guard lock(mutex_);
  loans_.clear();
}

uint32_t LoanTable::leftovers() const {
  std::lock_guard lock(mutex_);
  return static_cast<uint32_t>(doomed_.size() + unpinned_.size());
}

Status LoanTable::pin(const PeerId& debtor, std::span<const Slots> slots, std::vector<uint32_t>& blocks) {
  std::lock_guard lock(mutex_);
  const size_t before = blocks.size();
  for (const Slots& s : slots) {
    const auto it = loans_.find(s.contract);
    const bool theirs = it != loans_.end() && it->second.debtor == debtor;
    for (uint32_t i = 0; i < s.count; ++i) {
      const uint32_t slot = s.first + s.stride * i;
      if (!theirs || slot >= it->second.blocks.size() || it->second.blocks[slot] == kGone) {
        blocks.resize(before);
        return error(ErrorCode::kUnavailable,
                     "slot {} of contract {} is not lent to {}#{}, or no longer; borrow anew", slot,
                     s.contract, debtor.instance, debtor.epoch);
      }
      blocks.push_back(it->second.blocks[slot]);
    }
  }
  for (size_t i = before; i < blocks.size(); ++i) ++pins_[blocks[i]];
  return {};
}

void LoanTable::unpin(std::span<const uint32_t> blocks) {
  std::lock_guard lock(mutex_);
  for (const uint32_t block : blocks) {
    const auto it = pins_.find(block);
    KV_CHECK(it != pins_.end(), "block {} is not pinned", block);
    if (--it->second > 0) continue;
    pins_.erase(it);
    if (doomed_.erase(block) > 0) unpinned_.push_back(block);
  }
}

std::string LoanTable::describe() const {
  std::lock_guard lock(mutex_);
  std::string out;
  // In an order that is the same in every run.
  for (const auto& [block, count] : std::map<uint32_t, uint32_t>(pins_.begin(), pins_.end())) {
    out +=
        fmt::format("  block {} pinned {}{}\n", block, count, doomed_.contains(block) ? ", comes back" : "");
  }
  for (const uint32_t block : unpinned_) out += fmt::format("  block {} comes back\n", block);
  return out;
}

}  // namespace kvasir::cluster
