// S^3 (Jin et al., NeurIPS 2023): room for the upper end of the predicted bucket, packed the largest first;
// whoever needs more is swapped out and asks for twice as much.
#pragma once

#include <memory>

#include "contract/policy.h"
#include "sched/policy_settings.h"

namespace kvasir {

// bucket: tokens of output of one bucket.
std::unique_ptr<Policy> make_s3_policy(uint32_t bucket = 50);
std::unique_ptr<Policy> make_s3_policy(PolicySettings& settings);

}  // namespace kvasir
