// Decides which requests the engine accepts: by their length, and by the queue of accepted requests that have
// never run.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <unordered_map>

#include "base/status.h"
#include "engine/options.h"
#include "engine/queue_pace.h"
#include "engine/request.h"

namespace kvasir {

// In all.
uint64_t prompt_tokens_of(std::span<const GenerationRequest> requests);

// Used under a lock, except check_length().
class QueueLimits {
 public:
  // Both outlive it. `refused_late` counts the requests refused for their bound on TTFT.
  QueueLimits(const EngineOptions& options, std::atomic<uint64_t>& refused_late)
      : options_(options), refused_late_(refused_late) {}

  // kInvalidArgument: the request can never fit; the message names the largest length that does. Any thread,
  // no lock.
  Status check_length(const GenerationRequest& request) const;
  // For requests of one tenant that all need a place. kExhausted: the queue is full, or too slow for them.
  // kOverShare: their tenant takes all places that it may take. kInvalidArgument: the queue has fewer places.
  Status check_queue(std::span<const GenerationRequest> requests);

  // What the queue counts of a request.
  struct Place {
    uint64_t prompt_tokens = 0;
    uint32_t tenant = 0;
  };
  // A request joins the queue.
  void joined(Place place, Nanos now);
  // It leaves the queue: it runs for the first time, or it ends without having run.
  void began(Place place, Nanos now);
  void ended(Place place);
  // Places are kept for so many requests of a tenant that will join, or are not any more.
  void reserve(uint64_t requests, Place all);
  void give_back(uint64_t requests, Place all);

 private:
  const EngineOptions& options_;
  std::atomic<uint64_t>& refused_late_;
  Status check_share(const Tenant& tenant, uint64_t more) const;

  void add(uint64_t requests, Place all);
  void remove(uint64_t requests, Place all);

  uint64_t requests_ = 0;
  uint64_t reserved_ = 0;  // of those, places for requests that have not joined yet
  uint64_t prompt_tokens_ = 0;
  std::unordered_map<uint32_t, uint64_t> by_tenant_;  // of requests_, where there are any
  QueuePace pace_;
};

}  // namespace kvasir
