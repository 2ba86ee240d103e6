// Decides which requests the engine accepts: by their length, and by the queue of accepted requests that have
// never run.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/status.h"
#include "engine/options.h"
#include "engine/queue_pace.h"
#include "engine/request.h"

namespace kvasir {

// Used under a lock, except check_length().
class QueueLimits {
 public:
  // Both outlive it. `refused_late` counts the requests refused for their bound on TTFT.
  QueueLimits(const EngineOptions& options, std::atomic<uint64_t>& refused_late)
      : options_(options), refused_late_(refused_late) {}

  // kInvalidArgument: the request can never fit; the message names the largest length that does. Any thread,
  // no lock.
  Status check_length(const GenerationRequest& request) const;
  // kExhausted: the queue is full, or too slow for the request.
  Status check_queue(const GenerationRequest& request);

  // A request joins the queue.
  void joined(uint64_t prompt_tokens, Nanos now);
  // It leaves the queue: it runs for the first time, or it ends without having run.
  void began(uint64_t prompt_tokens, Nanos now);
  void ended(uint64_t prompt_tokens);

 private:
  const EngineOptions& options_;
  std::atomic<uint64_t>& refused_late_;
  uint64_t requests_ = 0;
  uint64_t prompt_tokens_ = 0;
  QueuePace pace_;
};

}  // namespace kvasir
