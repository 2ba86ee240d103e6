#include "cluster/broker/lent_frames.h"

#include <utility>

#include "base/check.h"

namespace kvasir::cluster {

void LentFrames::begin_turn(LendableCells& own) {
  own_ = &own;
  tell_of_kept();
  return_all();
  total_ = own.total_cells();
  shape_ = own.block_shape();
}

void LentFrames::end_turn() {
  free_ = own_->free_cells();
  own_ = nullptr;
}

void LentFrames::tell_of_kept() {
  for (const auto& [prefix, blocks] : kept_) own_->keep_prefix(prefix, blocks);
  kept_.clear();
}

void LentFrames::return_all() {
  own_->give_back(returned_);
  returned_.clear();
  for (const uint64_t prefix : read_) own_->hide_prefix(prefix);
  read_.clear();
  free_ = own_->free_cells();
}

std::vector<uint32_t> LentFrames::number(std::span<const LendableCells::Frame> frames, uint64_t prefix) {
  std::vector<uint32_t> numbers;
  std::lock_guard lock(frames_mutex_);
  for (const LendableCells::Frame& f : frames) {
    if (unused_.empty()) {
      unused_.push_back(static_cast<uint32_t>(frames_.size()));
      frames_.emplace_back();
    }
    numbers.push_back(unused_.back());
    unused_.pop_back();
    frames_[numbers.back()] = {f, prefix};
  }
  lent_ += static_cast<uint32_t>(frames.size());
  free_ = own_->free_cells();
  return numbers;
}

std::optional<std::vector<uint32_t>> LentFrames::take(uint32_t blocks) {
  if (!own_ || blocks == 0) return std::nullopt;
  const std::vector<LendableCells::Frame> frames = own_->take(blocks);
  if (frames.empty()) return std::nullopt;
  return number(frames, 0);
}

std::optional<LendableMemory::Shown> LentFrames::show_prefix(std::span<const PrefixHash> chain) {
  if (!own_) return std::nullopt;
  const LendableCells::Prefix prefix = own_->show_prefix(chain);
  if (prefix.frames.empty()) return Shown();
  shown_[prefix.id] = prefix.frames.size();
  return Shown{number(prefix.frames, prefix.id), prefix.blocks};
}

void LentFrames::keep_prefix(std::span<const uint32_t> cells) {
  kept_[frames_[cells.front()]->prefix] = static_cast<uint32_t>(cells.size()) / shape_.cells;
  if (own_) tell_of_kept();
}

std::optional<std::vector<uint32_t>> LentFrames::take_blocks(std::span<const PrefixHash> chain) {
  if (!own_) return std::nullopt;
  const std::optional<std::vector<LendableCells::Frame>> frames = own_->take_blocks(chain);
  if (!frames) return std::nullopt;
  return number(*frames, 0);
}

void LentFrames::give_back(std::span<const uint32_t> blocks) {
  {
    std::lock_guard lock(frames_mutex_);
    for (uint32_t block : blocks) {
      KV_CHECK(frames_[block].has_value(), "block={} is not lent", block);
      const Lent lent = *std::exchange(frames_[block], std::nullopt);
      unused_.push_back(block);
      --lent_;
      if (lent.prefix == 0) {
        returned_.push_back(lent.frame);
      } else if (--shown_.at(lent.prefix) == 0) {
        shown_.erase(lent.prefix);
        read_.push_back(lent.prefix);
      }
    }
  }
  if (own_) return_all();
}

void LentFrames::find(std::span<const uint32_t> blocks, std::vector<LendableCells::Frame>& out) const {
  std::lock_guard lock(frames_mutex_);
  for (uint32_t block : blocks) out.push_back(frames_[block]->frame);
}

}  // namespace kvasir::cluster
