// vLLM (0.5 era): first come, first served; whole prompts; prefill before decode; preemption by recompute.
#pragma once

#include <memory>

#include "contract/policy.h"
#include "sched/mechanisms/batch_bound.h"
#include "sched/policy_settings.h"

namespace kvasir {

// demote: whoever pends beyond a bound comes behind all that do not, and is preempted first; not vLLM's, but
// what a comparison with policies that give up on such requests needs beside it. Nor is `batch`, which eLLM's
// authors gave it.
std::unique_ptr<Policy> make_vllm_policy(bool demote = false, BatchRule batch = BatchRule::kFree);
std::unique_ptr<Policy> make_vllm_policy(PolicySettings& settings);

}  // namespace kvasir
