// The blocks behind what is lent, for the threads that read and write them: these pin blocks, so that a block
// whose contract ends meanwhile keeps its use until the last of them is done.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/status.h"
#include "contract/peer_transport.h"

namespace kvasir::cluster {

// What is behind contracts with this bit can be read, and not written: a prefix that is shown, or, with the
// other bit, lent.
constexpr uint64_t kShowsPrefix = uint64_t{1} << 63;
constexpr uint64_t kLendsPrefix = uint64_t{1} << 62;

// Thread-safe. No call waits for anything but another call, which is short.
class LoanTable {
 public:
  static constexpr uint32_t kGone = UINT32_MAX;
  // The slots first, first + stride, .. of a contract, modulo 2^32, so that they may also descend.
  struct Slots {
    uint64_t contract = 0;
    uint32_t first = 0;
    uint32_t count = 0;
    uint32_t stride = 1;
  };

  // ---- the lender
  void lend(uint64_t contract, const PeerId& debtor, std::vector<uint32_t> blocks);
  // The slots are lent no longer. Adds their blocks to `free`, but for those that are pinned.
  void take(uint64_t contract, std::span<const uint32_t> slots, std::vector<uint32_t>& free);
  void end(uint64_t contract, std::vector<uint32_t>& free);
  // The contract ends, and its first `count` blocks stay in use for another one; the others are as end() has
  // them.
  std::vector<uint32_t> hand_over(uint64_t contract, uint32_t count, std::vector<uint32_t>& free);
  // Adds the blocks that were taken while they were pinned and are pinned no longer.
  void take_unpinned(std::vector<uint32_t>& free);
  // Nothing is lent any more; what is pinned may still be unpinned.
  void close();
  // Blocks that were taken and have not been handed out since.
  uint32_t leftovers() const;

  // ---- its threads
  // Appends the blocks. kUnavailable: one is not lent to this life of the debtor, or no longer; then none is
  // pinned.
  Status pin(const PeerId& debtor, std::span<const Slots> slots, std::vector<uint32_t>& blocks);
  void unpin(std::span<const uint32_t> blocks);

  std::string describe() const;

 private:
  struct Loan {
    PeerId debtor;
    std::vector<uint32_t> blocks;  // by slot
  };

  void free_or_keep(uint32_t block, std::vector<uint32_t>& free);

  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, Loan> loans_;
  std::unordered_map<uint32_t, uint32_t> pins_;  // by block
  std::unordered_set<uint32_t> doomed_;          // taken and still pinned
  std::vector<uint32_t> unpinned_;               // taken, and pinned no longer
};

}  // namespace kvasir::cluster
