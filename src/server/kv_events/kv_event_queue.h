// What the engine's thread hands to the thread that publishes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "contract/cache_events.h"

namespace kvasir {

// Thread-safe. A list for which there is no room is dropped, and so is what follows, until the queue is
// empty; then it wants everything. Each list has a number, a dropped one, too, so readers see the gap.
class KvEventQueue final : public CacheEventSink {
 public:
  struct Batch {
    uint64_t sequence = 0;
    double unix_seconds = 0;  // when it was queued
    std::vector<CacheEvent> events;
  };
  struct Stats {
    uint64_t events = 0;  // taken so far
    uint64_t dropped = 0;
    size_t queued = 0;  // now
  };

  // `wake` is called after a list was queued. A list that is everything may have more than `max_events`.
  KvEventQueue(size_t max_events, std::function<void()> wake)
      : max_events_(max_events), wake_(std::move(wake)) {}

  bool wants_everything() const override;
  void publish(std::vector<CacheEvent> events) override;

  // The oldest; nothing: it is empty.
  std::optional<Batch> pop();
  Stats stats() const;

 private:
  const size_t max_events_;
  const std::function<void()> wake_;
  mutable std::mutex mutex_;
  std::deque<Batch> batches_;  // all below is guarded by mutex_
  Stats stats_;
  uint64_t next_sequence_ = 0;
  bool lacks_some_ = true;  // nothing was told yet, or something was dropped
};

}  // namespace kvasir
