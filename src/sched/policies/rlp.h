// Response length perception and sequence scheduling (Zheng et al., NeurIPS 2023), as CacheOpt compares with
// it: room for the predicted output and 100 tokens, and requests of similar length together.
#pragma once

#include <memory>

#include "contract/policy.h"
#include "sched/policy_settings.h"

namespace kvasir {

// padding: tokens beside the prediction.
std::unique_ptr<Policy> make_rlp_policy(uint32_t padding = 100);
std::unique_ptr<Policy> make_rlp_policy(PolicySettings& settings);

}  // namespace kvasir
