// What may be set of the policy apt-serve.
#pragma once

#include <cstdint>

namespace kvasir {

// Which requests that have had a token may be kept as X; each includes those before it.
enum class SwitchToX : uint8_t {
  kNone,
  kReturning,  // those that come back after a preemption
  kRunning,    // those to which the choice for a decode step gives X (Section 5)
  kForQueue,   // those whose K and V make room for requests that wait and are worth more (Section 3.1)
};

// docs/policies/apt-serve.md has them by the names that users give them.
struct AptServeOptions {
  // Chunks of prompts beside the decodes of a step, within a budget of tokens (Section 6.7: Apt-Serve-S);
  // without it a step is prefills or decodes.
  bool coalesce = false;
  bool hidden = true;  // X is used; without it K and V only
  // The largest share of the device that the K and V of all requests kept as X would take.
  double hidden_share = 0.2;
  // Shares of a bound on the gap between two tokens. After `step_share` of it a token is due, and no more of
  // it goes to projections in a step; `all_share` of it is the most that projecting all requests that are
  // kept as X may take, so that each can have its token in time.
  double step_share = 0.5;
  double all_share = 0.25;
  SwitchToX to_x = SwitchToX::kNone;
  // The time of recomputing its history counts in the value of one that runs. Equation 8 leaves it out.
  bool switch_cost = true;
  bool adaptive = true;  // by value; without it first come, first served; none is put last
  // What is left of the value of a request that pends beyond its bound (Section 6.6); 0: next to nothing.
  double decay = 0;
};

}  // namespace kvasir
