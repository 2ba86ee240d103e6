// The policies that a test of all of them runs with: a new one takes part by its line in the registry.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "sched/registry.h"

namespace kvasir::test {

// Each once, by its own name. `also`: what a test adds.
inline std::vector<std::string> every_policy(std::vector<std::string> also = {}) {
  std::vector<std::string> out = policy_names();
  std::erase_if(out, [](const std::string& policy) { return policy_traits(policy).alias; });
  for (std::string& policy : also) out.push_back(std::move(policy));
  return out;
}

// With the settings under which a policy orders requests by arrival and not by how long they have waited: the
// latter is never the same in two runs by a real clock.
inline std::string in_order_of_arrival(const std::string& policy) {
  if (policy == "cacheopt") return policy + ":select=fcfs:confidence=0.9";
  return policy.starts_with("apt-serve") ? policy + ":order=fcfs" : policy;
}

}  // namespace kvasir::test
