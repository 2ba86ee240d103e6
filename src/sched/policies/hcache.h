// vLLM whose preempted sequences wait in the slower tier as hidden states for some layers and as K and V for
// the others (HCache, Gao et al., EuroSys 2025, as eLLM's authors compare themselves with it).
#pragma once

#include <memory>

#include "contract/policy.h"
#include "sched/mechanisms/batch_bound.h"
#include "sched/policy_settings.h"

namespace kvasir {

// docs/policies/hcache.md has them by the names that users give them.
struct HcacheOptions {
  // Of the layer groups, the share that is kept as X; below 0: as what is believed of costs makes best.
  double x_share = -1;
  BatchRule batch = BatchRule::kFree;
};

std::unique_ptr<Policy> make_hcache_policy(const HcacheOptions& options);
std::unique_ptr<Policy> make_hcache_policy(PolicySettings& settings);

}  // namespace kvasir
