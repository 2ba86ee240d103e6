// Messages of other threads to the loop: requests, cancellations, ended transfers, and wake-ups for peers.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "contract/ids.h"
#include "engine/options.h"
#include "engine/queue_limits.h"
#include "engine/request.h"

namespace kvasir {

// A request that was accepted.
struct Arrival {
  SeqId seq{};
  GenerationRequest request;
  std::shared_ptr<OutputSink> sink;
  Nanos at = 0;
};

// Thread-safe: one mutex guards all of it.
class Inbox {
 public:
  // The arguments outlive it.
  Inbox(const EngineOptions& options, const Clock& clock, std::atomic<uint64_t>& refused_late)
      : clock_(clock), limits_(options, refused_late) {}

  // --- Any thread. See Engine for the first five. cancel() allocates nothing as long as a request is
  // cancelled twice at most; submit() may throw std::bad_alloc, and then the request is not accepted.
  Result<RequestId> submit(GenerationRequest request, std::shared_ptr<OutputSink> sink,
                           QueuePlaces* places = nullptr);
  Result<std::unique_ptr<QueuePlaces>> reserve(std::span<const GenerationRequest> requests);
  void cancel(RequestId id, FinishReason reason);
  void drain();
  bool wait_idle(Nanos timeout);
  // Accepts nothing more and ends wait().
  void stop();
  bool stopped() const;
  // A transfer has ended, or Lending has events.
  void wake();

  // --- The loop's thread.
  struct Messages {
    std::vector<Arrival> arrivals;
    std::vector<std::pair<SeqId, FinishReason>> cancels;
    size_t arrived = 0;  // of the arrivals, those that the loop has taken in
  };
  // All messages since the last call. The memory of those that are `spent` is used again.
  Messages take(Messages spent);
  Messages take() { return take(Messages()); }
  // Since when there are messages, or a call of wake(), that the loop has not taken; 0: there are none. Any
  // thread; takes no lock.
  Nanos unheard_since() const { return unheard_since_; }
  // Waits for a message or a call of wake() since the last take(), for at most `timeout` (no value: no
  // bound). False: stop() was called.
  bool wait(std::optional<Nanos> timeout);
  // An accepted request runs for the first time.
  void began(QueueLimits::Place place, Nanos now);
  // An accepted request leaves the queue without having run.
  void left_queue(QueueLimits::Place place);
  // An accepted request has ended, and its sink was told.
  void ended();

 private:
  void come();  // something has come
  Status check_open() const;

  const Clock& clock_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;  // a message, wake() or stop()
  std::condition_variable idle_;  // unfinished_ fell to 0
  QueueLimits limits_;
  Messages messages_;
  std::atomic<Nanos> unheard_since_{0};
  bool woken_ = false;  // wake() was called since the last take()
  uint64_t next_id_ = 1;
  uint64_t unfinished_ = 0;  // accepted requests that have not ended
  bool draining_ = false;
  bool stopping_ = false;
};

}  // namespace kvasir
