// Counters of the HTTP server.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "engine/metrics.h"
#include "server/exchange_record.h"

namespace kvasir {

inline constexpr std::array<int, 20> kCountedStatuses = {200, 204, 304, 400, 401, 403, 404, 405, 408, 413,
                                                         414, 417, 429, 431, 499, 500, 501, 503, 505, 0};

inline constexpr double kChoiceBuckets[] = {1, 2, 5, 10, 20};

// Thread-safe. The last index is for every other status. 499: the client disconnected before its answer was
// complete.
struct HttpCounters {
  std::array<std::atomic<uint64_t>, kCountedStatuses.size()> by_status{};
  std::atomic<uint64_t> connections{0};          // open now
  std::atomic<uint64_t> connections_refused{0};  // over a limit
  std::atomic<uint64_t> connections_evicted{0};  // closed while they waited, to make way for others
  std::atomic<uint64_t> slow_readers{0};         // closed because the client did not read
  std::atomic<uint64_t> requests_refused{0};     // queue full, loading or draining
  std::atomic<uint64_t> body_bytes{0};           // of large requests being received or prepared
  // Of each prompt whose choices were generated and sent: what its request asked for, and its longest choice.
  Histogram params_n{kChoiceBuckets};
  Histogram params_max_tokens{kRequestTokenBuckets};  // without those that ask for none
  Histogram max_generation_tokens{kRequestTokenBuckets};

  void count(int status) {
    size_t i = 0;
    while (i + 1 < kCountedStatuses.size() && kCountedStatuses[i] != status) ++i;
    by_status[i].fetch_add(1, std::memory_order_relaxed);
  }
  void count_generation(const GenerationRecord& record) {
    for (const uint64_t longest : record.longest_choices) {
      params_n.observe(static_cast<double>(record.n));
      if (record.max_tokens > 0) params_max_tokens.observe(static_cast<double>(record.max_tokens));
      max_generation_tokens.observe(static_cast<double>(longest));
    }
  }
};

}  // namespace kvasir
