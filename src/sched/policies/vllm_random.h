// As vLLM, but who waits is admitted in an order drawn anew for every step: the question that Apt-Serve
// (Section 3.2, Fig. 4) asks of first come, first served.
#pragma once

#include <cstdint>
#include <memory>

#include "contract/policy.h"

namespace kvasir {
std::unique_ptr<Policy> make_vllm_random_policy(uint64_t seed = 0);
}
