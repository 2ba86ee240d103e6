// The memory of an instance of the world: it sees what is done to it that must not be.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/leaf_tokens.h"
#include "cluster/protocol/world.h"

namespace kvasir::cluster::test {

class World::Memory final : public LendableMemory {
 public:
  Memory(uint32_t total, std::function<void(std::string)> fail) : total_(total), fail_(std::move(fail)) {
    for (uint32_t block = 0; block < total; ++block) free_.insert(block);
  }

  bool ready() const override { return !in_step; }
  std::optional<std::vector<uint32_t>> take(uint32_t blocks) override {
    if (in_step || blocks > free_.size()) return std::nullopt;
    std::vector<uint32_t> out(free_.begin(), std::next(free_.begin(), blocks));
    for (const uint32_t block : out) free_.erase(block);
    taken_.insert(out.begin(), out.end());
    return out;
  }
  void give_back(std::span<const uint32_t> blocks) override {
    for (const uint32_t block : blocks) {
      if (readers_[block] > 0) fail_(fmt::format("block {} is freed while it is read", block));
      if (taken_.erase(block) == 0) fail_(fmt::format("block {} is freed, which was not lent", block));
      free_.insert(block);
      rows_.erase(block);
    }
  }
  // It has every prefix, as far as it has memory. During a step it cannot say.
  std::optional<Shown> show_prefix(std::span<const PrefixHash> chain) override {
    if (in_step) return std::nullopt;
    const auto blocks = static_cast<uint32_t>(std::min(chain.size(), free_.size()));
    return Shown{*take(blocks), blocks};
  }
  // A leaf of attention is a block, and that a cell.
  LendableCells::BlockShape block_shape() const override { return {kLeafTokens, 1}; }
  // While its instance uses memory itself, it cannot say.
  std::optional<std::vector<uint32_t>> take_blocks(std::span<const PrefixHash> chain) override {
    for (const PrefixHash& hash : chain) {
      if (!computed_.contains(hash)) fail_("rows are lent that no instance has computed");
    }
    if (in_step || !used_.empty()) return std::nullopt;
    std::vector<uint32_t> out = *take(static_cast<uint32_t>(std::min(chain.size(), free_.size())));
    for (size_t i = 0; i < out.size(); ++i) rows_[out[i]] = chain[i];
    return out;
  }
  uint32_t free_blocks() const override { return static_cast<uint32_t>(free_.size()); }
  uint32_t total_blocks() const override { return total_; }

  // The instance's own use. REQUIRES: a block is free, or used
  void use() {
    used_.push_back(*free_.begin());
    free_.erase(free_.begin());
  }
  void disuse() {
    free_.insert(used_.back());
    used_.pop_back();
  }
  size_t used() const { return used_.size(); }
  const std::set<uint32_t>& taken() const { return taken_; }
  // Rows that the instance has computed, and those in a lent block; none: it was lent empty.
  void compute(std::span<const PrefixHash> chain) { computed_.insert(chain.begin(), chain.end()); }
  std::optional<PrefixHash> rows_in(uint32_t block) const {
    const auto found = rows_.find(block);
    return found == rows_.end() ? std::nullopt : std::optional(found->second);
  }
  void begin_read(uint32_t block) { ++readers_[block]; }
  void end_read(uint32_t block) { --readers_[block]; }

  bool in_step = false;

 private:
  const uint32_t total_;
  const std::function<void(std::string)> fail_;
  std::set<uint32_t> free_;
  std::set<uint32_t> taken_;
  std::vector<uint32_t> used_;
  std::map<uint32_t, int> readers_;
  std::set<PrefixHash> computed_;
  std::map<uint32_t, PrefixHash> rows_;
};

}  // namespace kvasir::cluster::test
