// CacheOpt (Shen, Sen and Tanaka, 2025): room is promised by padded predictions, lent while its owner has not
// come to it, and given first to whom a bound on its latency leaves no time.
//
// Sources and readings: docs/policies/cacheopt.md.
#pragma once

#include <cstdint>
#include <memory>

#include "contract/policy.h"
#include "sched/mechanisms/arrival_load.h"
#include "sched/mechanisms/output_estimate.h"
#include "sched/mechanisms/swap_or_recompute.h"
#include "sched/policy_settings.h"

namespace kvasir {

enum class Embedding : uint8_t {
  kOff,
  kAlways,     // before what is free is looked at, as in the paper
  kWhenShort,  // where what is free is not enough for the demand
};

// docs/policies/cacheopt.md has them by the names that users give them.
struct CacheOptOptions {
  PaddingOptions padding;        // Section 3.2
  ConfidenceOptions confidence;  // Equation 4
  // Section 3.3.2; without it: first come, first served, each with all of its demand.
  bool select_by_slo = true;
  // Critical waiting requests have room made for them, as in the paper; otherwise only those that run
  // already.
  bool preempt_for_waiting = false;
  // Who has missed its bound comes before all others, as in the paper, or behind them; it preempts nobody.
  bool late_first = false;
  Embedding embed = Embedding::kWhenShort;  // Section 3.3.1
  uint32_t buffer_tokens = 8;               // b: of an embedded request
  // Section 3.3.3: m, the steps before its end in which one is given more (0: none); and the shared reserve,
  // in tokens and beside that as a share of the device's cells.
  uint32_t proactive_steps = 2;
  uint32_t reserve_tokens = 64;
  double reserve_share = 0;
  bool victim_by_slo = true;                                   // Section 3.4; without it the latest arrival
  PreemptionStrategy strategy = PreemptionStrategy::kCheaper;  // Section 3.5
};

std::unique_ptr<Policy> make_cacheopt_policy(const CacheOptOptions& options);
std::unique_ptr<Policy> make_cacheopt_policy(PolicySettings& settings);

}  // namespace kvasir
