// vLLM (0.5 era) with preemption by swap: cells of a preempted sequence go to the host and come back.
#pragma once

#include <memory>

#include "contract/policy.h"
#include "sched/mechanisms/batch_bound.h"
#include "sched/policy_settings.h"

namespace kvasir {

std::unique_ptr<Policy> make_vllm_swap_policy(BatchRule batch = BatchRule::kFree);
std::unique_ptr<Policy> make_vllm_swap_policy(PolicySettings& settings);

}  // namespace kvasir
