// The frames of this instance that are lent to peers, as blocks of the protocol.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "cluster/protocol/lender.h"
#include "contract/lending.h"

namespace kvasir::cluster {

// Frames come from the engine, and can be taken only during its turn; frames that come back at another time
// wait for the next turn. Not thread-safe, but for find().
class LentFrames final : public LendableMemory {
 public:
  // A turn of the engine begins: it learns which frames have come back meanwhile, and what is lent now.
  void begin_turn(LendableCells& own);
  void end_turn();

  bool ready() const override { return own_ != nullptr; }
  std::optional<std::vector<uint32_t>> take(uint32_t blocks) override;
  void give_back(std::span<const uint32_t> blocks) override;
  uint32_t free_blocks() const override { return free_; }
  uint32_t total_blocks() const override { return total_; }
  std::optional<Shown> show_prefix(std::span<const PrefixHash> chain) override;
  void keep_prefix(std::span<const uint32_t> cells) override;
  LendableCells::BlockShape block_shape() const override { return shape_; }
  std::optional<std::vector<uint32_t>> take_blocks(std::span<const PrefixHash> chain) override;

  // Adds the frames of blocks. Any thread. REQUIRES: take() gave the blocks, and they have not come back
  void find(std::span<const uint32_t> blocks, std::vector<LendableCells::Frame>& out) const;
  bool empty() const { return lent_ == 0 && returned_.empty() && read_.empty(); }

 private:
  struct Lent {
    LendableCells::Frame frame;
    uint64_t prefix = 0;  // LendableCells::Prefix::id; 0: the frame is lent
  };
  std::vector<uint32_t> number(std::span<const LendableCells::Frame> frames, uint64_t prefix);
  void tell_of_kept();
  void return_all();

  mutable std::mutex frames_mutex_;
  std::vector<std::optional<Lent>> frames_;  // by block
  std::vector<uint32_t> unused_;             // numbers
  std::vector<LendableCells::Frame> returned_;
  std::map<uint64_t, size_t> shown_;   // by prefix, its frames that have not come back
  std::map<uint64_t, uint32_t> kept_;  // blocks of prefixes that are lent now
  std::vector<uint64_t> read_;         // prefixes of which all have
  LendableCells* own_ = nullptr;       // during a turn
  uint32_t lent_ = 0;
  uint32_t free_ = 0;  // as of the last turn
  uint32_t total_ = 0;
  LendableCells::BlockShape shape_;
};

}  // namespace kvasir::cluster
