// Memory of an instance as a number of blocks without content.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "cluster/protocol/lender.h"

namespace kvasir::cluster::test {

// Blocks are taken in the order of their numbers; those that came back last go first.
class CountedMemory final : public LendableMemory {
 public:
  explicit CountedMemory(uint32_t blocks) : total_(blocks), free_(blocks) {
    std::iota(free_.rbegin(), free_.rend(), 0u);
  }
  bool ready() const override { return !busy; }
  std::optional<std::vector<uint32_t>> take(uint32_t blocks) override {
    if (busy || blocks > free_.size()) return std::nullopt;
    std::vector<uint32_t> out(free_.end() - blocks, free_.end());
    free_.resize(free_.size() - blocks);
    return out;
  }
  void give_back(std::span<const uint32_t> blocks) override {
    free_.insert(free_.end(), blocks.begin(), blocks.end());
  }
  uint32_t free_blocks() const override { return static_cast<uint32_t>(free_.size()); }
  uint32_t total_blocks() const override { return total_; }
  // Two cells of each block of a prefix that it has.
  std::optional<Shown> show_prefix(std::span<const PrefixHash> chain) override {
    if (busy) return std::nullopt;
    ++asked;
    const uint32_t blocks = std::min(has, static_cast<uint32_t>(chain.size()));
    return Shown{*take(2 * blocks), blocks};
  }
  void keep_prefix(std::span<const uint32_t> cells) override { kept.assign(cells.begin(), cells.end()); }
  // The same of blocks that it has, which are lent.
  std::optional<std::vector<uint32_t>> take_blocks(std::span<const PrefixHash> chain) override {
    if (busy) return std::nullopt;
    return take(shape.cells * std::min(has, static_cast<uint32_t>(chain.size())));
  }
  LendableCells::BlockShape block_shape() const override { return shape; }
  LendableCells::BlockShape shape = {64, 2};
  uint32_t has = 0;   // blocks of any chain
  bool busy = false;  // its engine is in a step
  uint32_t asked = 0;
  std::vector<uint32_t> kept;  // cells of the last prefix that is

 private:
  const uint32_t total_;
  std::vector<uint32_t> free_;
};

}  // namespace kvasir::cluster::test
