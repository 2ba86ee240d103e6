// What a request's latencies are, and which bounds they meet.
#pragma once

#include <vector>

#include "apps/bench/completion_stream.h"
#include "apps/bench/config.h"

namespace kvasir {

// Milliseconds, of a completed request. The time to first token; the time from sending to the last chunk; the
// mean time per output token after the first, 0 for fewer than two tokens.
double ttft_ms(const RequestRecord& record);
double e2el_ms(const RequestRecord& record);
double tpot_ms(const RequestRecord& record);

// What a bound of this kind is compared with. A request without gaps or without a second token has 0 there.
double goal_value(const RequestRecord& record, Goal::Key key);

// Whether the request has completed and meets the bound, or all of them: one that failed, was refused or has
// not ended attains nothing. Where it has bounds of its own (RequestRecord::own), they count: its own one of
// the goal's kind, or all of its own; of a kind of which it has none, it asks nothing.
bool attains(const RequestRecord& record, const Goal& goal);
bool attains_all(const RequestRecord& record, const std::vector<Goal>& goals);

}  // namespace kvasir
