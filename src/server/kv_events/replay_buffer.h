// The latest payloads, for subscribers that have missed some.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

namespace kvasir {

// Used by one thread. The newest payload is kept whatever its size.
class ReplayBuffer {
 public:
  using Payload = std::shared_ptr<const std::vector<uint8_t>>;

  ReplayBuffer(size_t max_payloads, uint64_t max_bytes)
      : max_payloads_(max_payloads), max_bytes_(max_bytes) {}

  // REQUIRES: a higher number than all before.
  void add(uint64_t sequence, Payload payload) {
    bytes_ += payload->size();
    kept_.emplace_back(sequence, std::move(payload));
    while (kept_.size() > 1 && (kept_.size() > max_payloads_ || bytes_ > max_bytes_)) {
      bytes_ -= kept_.front().second->size();
      kept_.pop_front();
    }
  }
  uint64_t bytes() const { return bytes_; }

  // Calls visit(sequence, payload) for those from `first` on, in their order.
  template <typename Visit>
  void for_each_from(uint64_t first, Visit visit) const {
    for (const auto& [sequence, payload] : kept_) {
      if (sequence >= first) visit(sequence, payload);
    }
  }

 private:
  const size_t max_payloads_;
  const uint64_t max_bytes_;
  std::deque<std::pair<uint64_t, Payload>> kept_;
  uint64_t bytes_ = 0;
};

}  // namespace kvasir
