// vLLM (0.5 era): first come, first served; whole prompts; prefill before decode; preemption by recompute.
#pragma once

#include <memory>

#include "contract/policy.h"

namespace kvasir {
std::unique_ptr<Policy> make_vllm_policy();
}
