// What generates tokens for the HTTP server: the engine, or a scripted fake in tests.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/metrics.h"
#include "engine/request.h"

namespace kvasir {

class Engine;

// Thread-safe. No function waits for a step.
class Backend {
 public:
  virtual ~Backend() = default;

  // Queues a request. The sink gets its events, of which exactly the last has `finish`.
  // kInvalidArgument: it can never fit. kExhausted: the queue is full. kOverShare: the tenant takes all the
  // places that it may take of it. kUnavailable: draining.
  virtual Result<RequestId> submit(GenerationRequest request, std::shared_ptr<OutputSink> sink) = 0;
  // Keeps places in the queue for these requests of one tenant. Errors as of submit().
  virtual Result<std::unique_ptr<QueuePlaces>> reserve(std::span<const GenerationRequest> requests) = 0;
  // submit() in one of the places: it is refused only if the engine has stopped.
  virtual Result<RequestId> submit_in(QueuePlaces& places, GenerationRequest request,
                                      std::shared_ptr<OutputSink> sink) = 0;

  // Ends a request soon with `reason`: kAbort, or kStop if a stop string was found in the text. Unknown and
  // finished requests are ignored.
  virtual void cancel(RequestId id, FinishReason reason) = 0;

  // Nanoseconds for which its thread has shown no sign of life though it has something to do; 0: it has
  // nothing to do. Takes no lock, so that it answers for a thread that hangs.
  virtual Nanos silent_for() const = 0;

  virtual uint32_t max_model_len() const = 0;  // prompt and output of one request, in tokens
  virtual const EngineMetrics& metrics() const = 0;
  // Labels of the gauge cache_config_info.
  virtual std::vector<std::pair<std::string, std::string>> cache_config() const = 0;
};

// REQUIRES: the engine outlives the backend.
std::unique_ptr<Backend> make_engine_backend(Engine& engine);

}  // namespace kvasir
