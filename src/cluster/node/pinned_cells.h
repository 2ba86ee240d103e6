// The frames of this instance that are lent to peers, as cells of the data plane.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "cluster/broker/broker.h"
#include "cluster/memory/lent_memory.h"

namespace kvasir::cluster {

// Belongs to one life of the instance. Thread-safe. Only the first pin of a life takes the lock of the
// broker's owner, which must not be held by its callers.
class PinnedCells final : public LentCells {
 public:
  // memory: of each tier. Everything given by reference outlives it.
  PinnedCells(std::mutex& mutex, Broker& broker, PeerId self, std::array<std::span<std::byte>, kTiers> memory)
      : mutex_(mutex), broker_(broker), self_(std::move(self)), memory_(memory) {}

  bool pin(const PeerId& debtor, std::span<const CellRun> runs, std::vector<std::byte*>& at,
           std::vector<uint32_t>& pins) override;
  void unpin(std::span<const uint32_t> pins) override;
  bool may_write(uint64_t contract) const override { return (contract & kShowsPrefix) == 0; }

 private:
  LoanTable* loans();

  std::mutex& mutex_;  // guards the broker's control()
  Broker& broker_;
  const PeerId self_;
  const std::array<std::span<std::byte>, kTiers> memory_;
  std::mutex loans_mutex_;
  std::shared_ptr<LoanTable> loans_;  // of this life; null: the broker has not begun it yet
};

}  // namespace kvasir::cluster
