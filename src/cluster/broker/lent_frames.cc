#include "cluster/broker/lent_frames.h"

#include <utility>

#include "base/check.h"

namespace kvasir::cluster {

void LentFrames::begin_turn(LendableCells& own) {
  own_ = &own;
  own.give_back(returned_);
  returned_.clear();
  free_ = own.free_cells();
  total_ = own.total_cells();
}

void LentFrames::end_turn() {
  free_ = own_->free_cells();
  own_ = nullptr;
}

std::optional<std::vector<uint32_t>> LentFrames::take(uint32_t blocks) {
  if (!own_ || blocks == 0) return std::nullopt;
  const std::vector<LendableCells::Frame> frames = own_->take(blocks);
  if (frames.empty()) return std::nullopt;
  std::vector<uint32_t> numbers;
  std::lock_guard lock(frames_mutex_);
  for (const LendableCells::Frame& f : frames) {
    if (unused_.empty()) {
      unused_.push_back(static_cast<uint32_t>(frames_.size()));
      frames_.emplace_back();
    }
    numbers.push_back(unused_.back());
    unused_.pop_back();
    frames_[numbers.back()] = f;
  }
  lent_ += blocks;
  free_ = own_->free_cells();
  return numbers;
}

void LentFrames::give_back(std::span<const uint32_t> blocks) {
  {
    std::lock_guard lock(frames_mutex_);
    for (uint32_t block : blocks) {
      KV_CHECK(frames_[block].has_value(), "block={} is not lent", block);
      returned_.push_back(*std::exchange(frames_[block], std::nullopt));
      unused_.push_back(block);
      --lent_;
    }
  }
  if (!own_) return;
  own_->give_back(returned_);
  returned_.clear();
  free_ = own_->free_cells();
}

void LentFrames::find(std::span<const uint32_t> blocks, std::vector<LendableCells::Frame>& out) const {
  std::lock_guard lock(frames_mutex_);
  for (uint32_t block : blocks) out.push_back(*frames_[block]);
}

}  // namespace kvasir::cluster
