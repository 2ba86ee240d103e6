// The settings of an Engine.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "cache/sequences/kv_cache.h"
#include "contract/view.h"

namespace kvasir {

struct EngineOptions {
  CacheOptions cache;
  PlanLimits limits;
  uint32_t max_model_len = 0;  // prompt and output of one request, in tokens
  // The longest that running decodes wait within one step, for transfers or beside a long prefill; 0: no
  // bound.
  Nanos max_decode_stall = 0;
  uint32_t max_num_queued_reqs = 1024;  // accepted requests that have never run
  uint64_t max_num_queued_tokens = 0;   // their prompt tokens; 0: no bound
  // A request with a bound on TTFT is refused at once if the queue, at its pace so far, would take more than
  // a quarter of that bound. The rest is for its own prefill and for changes of the pace. An answer that
  // comes too late takes memory from one that could come in time.
  bool refuse_late = false;
  // Rows of a step for whose activations the executor has memory; 0: that memory grows with the step, as it
  // does on a CPU (a policy may run a long prompt in one step).
  uint32_t scratch_tokens = 0;
  // How long peers refuse to lend before the first waiting request makes do with the memory there is, or
  // fails.
  Nanos borrow_patience = 3 * kNanosPerSecond;
  // How long the first waiting request may wait for peers' memory alone before it fails. Meanwhile it gives
  // back what is too little, so that other instances' requests can have it, and asks again.
  Nanos borrow_timeout = 120 * kNanosPerSecond;

  // Checks every plan against its view. A plan that breaks a rule is our bug and ends the process.
  bool check_plans = true;
  // Counts the whole cache again after every turn: slow, for tests.
  bool check_integrity = false;
};

}  // namespace kvasir
