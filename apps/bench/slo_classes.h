// Requests with bounds of their own: by class, or relative to what a reference reached.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/bench/goals.h"
#include "base/status.h"

namespace kvasir {

struct SloClass {
  std::string name;
  std::optional<double> share;  // of the requests, in [0, 1]; unset: a trace says whose class it is
  std::vector<Goal> goals;      // none: nothing is asked for these
  int32_t priority = 0;         // sent with each of them; 0: not sent
};

// Each text is "NAME[:SHARE][,KEY:MILLISECONDS]...[,priority:P]", as "chat:0.7,ttft:500,max_tbt:100". All
// have a share, and the shares add up to 1, or none has one. kInvalidArgument names --slo-class and the part
// at fault.
Result<std::vector<SloClass>> parse_slo_classes(const std::vector<std::string>& texts);

// The class of a request, by the shares; depends on seed and number alone. REQUIRES: all have a share
uint32_t draw_slo_class(const std::vector<SloClass>& classes, uint64_t seed, int64_t number);

// CacheOpt's bounds (Section 5): a draw from U[low, high] for each request, times the mean TTFT for its first
// token and times the mean TBT for each of its gaps, of all the methods that are compared; and the first one
// also times the number of chunks that a long prompt takes.
struct RelativeSlo {
  double low = 0;
  double high = 0;
};
// "LOW:HIGH" with 0 < LOW <= HIGH.
Result<RelativeSlo> parse_relative_slo(std::string_view text);

struct SloReference {
  double ttft_ms = 0;  // means over a reference, above 0
  double tbt_ms = 0;
  int64_t chunk_tokens = 2048;  // longer prompts count as several chunks
};
// "ttft:MILLISECONDS,tbt:MILLISECONDS[,chunk:TOKENS]".
Result<SloReference> parse_slo_reference(std::string_view text);

// The bounds {ttft, max_tbt} of one request; depend on what is given alone. One draw is for both bounds.
std::vector<Goal> relative_goals(const RelativeSlo& relative, const SloReference& reference,
                                 int64_t prompt_tokens, uint64_t seed, int64_t number);

}  // namespace kvasir
