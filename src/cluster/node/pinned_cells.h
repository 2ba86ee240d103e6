// The frames of this instance that are lent to peers, as cells of the data plane.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <tuple>

#include "cluster/broker/broker.h"
#include "cluster/memory/lent_memory.h"

namespace kvasir::cluster {

// Belongs to one life of the instance. Thread-safe by the lock of the broker's owner, which must not be held
// by its callers.
class PinnedCells final : public LentCells {
 public:
  // memory: of each tier. Everything given by reference outlives it.
  PinnedCells(std::mutex& mutex, Broker& broker, PeerId self, std::array<std::span<std::byte>, kTiers> memory)
      : mutex_(mutex), broker_(broker), self_(std::move(self)), memory_(memory) {}

  std::byte* pin(const PeerId& debtor, uint64_t contract, uint32_t index) override;
  void unpin(const PeerId& debtor, uint64_t contract, uint32_t index) override;

 private:
  struct Pin {
    uint32_t block = 0;
    uint32_t count = 0;
  };
  using Key = std::tuple<std::string, uint64_t, uint64_t, uint32_t>;

  std::mutex& mutex_;  // guards broker_ and pins_
  Broker& broker_;
  const PeerId self_;
  const std::array<std::span<std::byte>, kTiers> memory_;
  std::map<Key, Pin> pins_;  // the contract may end before the pin
};

}  // namespace kvasir::cluster
