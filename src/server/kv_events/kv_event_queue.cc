#include "server/kv_events/kv_event_queue.h"

#include <chrono>

namespace kvasir {

bool KvEventQueue::wants_everything() const {
  const std::lock_guard lock(mutex_);
  return lacks_some_ && stats_.queued == 0;
}

void KvEventQueue::publish(std::vector<CacheEvent> events) {
  if (events.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    const uint64_t sequence = next_sequence_++;
    const bool whole = events.front().kind == CacheEvent::Kind::kCleared;
    const bool room = whole ? stats_.queued == 0 : stats_.queued + events.size() <= max_events_;
    if (!room || (lacks_some_ && !whole)) {
      lacks_some_ = true;
      stats_.dropped += events.size();
      return;
    }
    lacks_some_ = false;
    stats_.events += events.size();
    stats_.queued += events.size();
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    batches_.push_back({sequence, std::chrono::duration<double>(now).count(), std::move(events)});
  }
  wake_();
}

std::optional<KvEventQueue::Batch> KvEventQueue::pop() {
  const std::lock_guard lock(mutex_);
  if (batches_.empty()) return std::nullopt;
  std::optional<Batch> oldest = std::move(batches_.front());
  batches_.pop_front();
  stats_.queued -= oldest->events.size();
  return oldest;
}

KvEventQueue::Stats KvEventQueue::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace kvasir
