// Bounds the open connections, in all and of each client.
#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>

namespace kvasir {

// A client is identified by a key, which the caller makes of its address. Not thread-safe.
class ConnectionQuota {
 public:
  enum class Verdict { kAdmitted, kFull, kClientFull };

  // At most `most` in all, and `most_per_client` of one client (0: three quarters of `most`, rounded up).
  ConnectionQuota(size_t most, size_t most_per_client)
      : most_(most), most_per_client_(most_per_client > 0 ? most_per_client : most - most / 4) {}

  // Counts the connection if the verdict is kAdmitted. kFull if both bounds are reached.
  Verdict admit(const std::string& client) {
    if (open_ >= most_) return Verdict::kFull;
    if (client_full(client)) return Verdict::kClientFull;
    ++by_client_[client];
    ++open_;
    return Verdict::kAdmitted;
  }
  bool client_full(const std::string& client) const {
    const auto held = by_client_.find(client);
    return held != by_client_.end() && held->second >= most_per_client_;
  }
  // REQUIRES: admit() admitted a connection of this client that was not released.
  void release(const std::string& client) {
    const auto held = by_client_.find(client);
    --open_;
    if (--held->second == 0) by_client_.erase(held);
  }

 private:
  const size_t most_;
  const size_t most_per_client_;
  size_t open_ = 0;
  std::unordered_map<std::string, size_t> by_client_;  // without zeros
};

}  // namespace kvasir
