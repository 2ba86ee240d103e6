// What is known of a request when it has ended: for the access log, and for its spans.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "engine/request.h"
#include "server/traces/trace_context.h"

namespace kvasir {

// How its answer ended. kClientGone: the client left before it had all. kStopped: the server did.
enum class RequestEnd : uint8_t { kComplete, kClientGone, kSlowReader, kFailed, kStopped };
const char* name(RequestEnd end);

// What a request that generates, or embeds, has asked for and got.
struct GenerationRecord {
  const char* operation = "";  // as OpenTelemetry names it; empty: the request did not come to generating
  std::string model;           // as the client named it
  uint64_t choices = 0;
  uint64_t max_tokens = 0;  // 0: not said
  double temperature = 0;
  double top_p = 0;
  uint64_t prompt_tokens = 0;
  uint64_t cached_tokens = 0;  // of the prompt
  uint64_t output_tokens = 0;
  uint64_t n = 0;                           // choices of the answer to each prompt
  std::vector<uint64_t> longest_choices;    // of each prompt, in tokens
  Nanos first_token = 0;                    // when it came; 0: none has
  std::vector<std::string> finish_reasons;  // of the choices that have ended
  struct Timeline {
    size_t index = 0;  // of the prompt or choice
    std::shared_ptr<RequestTimeline> timeline;
  };
  // Of those of its first kMostTimelines prompts and choices that were submitted. Empty unless the record
  // wants_times.
  std::vector<Timeline> timelines;

  static constexpr size_t kMostTimelines = 16;
};

// Times are by the server's clock.
struct ExchangeRecord {
  Nanos begin = 0;  // its first byte; 0: none has come
  int status = 0;   // of the answer; 499: the client left before it was complete; 0: there is none yet
  RequestEnd end = RequestEnd::kComplete;
  std::string error;        // the code or type of what the client was told; empty: nothing
  uint64_t sent_bytes = 0;  // of the connection, in this request's time
  TraceContext trace;
  bool wants_times = false;  // its spans will be sent
  GenerationRecord generation;

  // Has the engine tell when it runs the request, if the record wants_times. Once for each: what was refused
  // and is submitted again keeps its timeline. `index` counts prompts and choices from 0.
  void add_timeline(GenerationRequest& request, size_t index);
};

// The same with what its connection knows. Views are valid while it is written.
struct EndedRequest {
  const ExchangeRecord& record;
  Nanos now = 0;
  std::string_view id, key, peer;  // peer: address and port
  std::string_view method, path;   // without a query; empty: the head was not read
  std::string_view route;          // the endpoint's; empty: there is none
};

}  // namespace kvasir
