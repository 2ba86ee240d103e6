// Infinite-LLM's DistKV-LLM: vLLM's scheduling over the memory of all instances.
//
// Source: Lin et al., "Infinite-LLM: Efficient LLM Service for Long Context with DistAttention and
// Distributed KVCache", arXiv 2401.02669v1. docs/policies/distkv.md has the paper beside the code.
#pragma once

#include <memory>

#include "contract/policy.h"
#include "sched/policy_settings.h"

namespace kvasir {

// Settings:
//   ahead  tokens of every running sequence for which there is to be room before it is needed: 256
//   spill  off: only what can never fit on the device goes to peers; on: also the oldest of long histories,
//          when the device fills up, before anyone is preempted (on)
std::unique_ptr<Policy> make_distkv_policy(PolicySettings& settings);

}  // namespace kvasir
