#include "apps/simulate/policy_choice.h"

#include <algorithm>

#include "sched/registry.h"

namespace kvasir {
namespace {

constexpr const char* kAll = "all";

bool has_priorities(const SimulateOptions& options) {
  return std::any_of(options.bench.slo_classes.begin(), options.bench.slo_classes.end(),
                     [](const std::string& text) { return text.find("priority:") != std::string::npos; });
}

}  // namespace

std::string runs_without(const LeftOutPolicy& lacking) {
  return lacking.policy + " " + lacking.why + "; without that it plans what another policy plans";
}

std::string what_policy_lacks(const SimulateOptions& options, const std::string& policy) {
  const PolicyTraits traits = policy_traits(policy);
  if (traits.offloads && options.runtime.kv_offloading_bytes == 0) {
    return "needs a host tier: give --kv-offloading-size";
  }
  if (traits.borrows && options.instances < 2) return "needs peers: give --instances 2 or more";
  if (traits.borrows && options.runtime.kv_offloading_bytes + options.runtime.kv_offloading_disk_bytes > 0) {
    return "lends devices' memory, which is not simulated beside a tier behind it: leave "
           "--kv-offloading-size and --kv-offloading-disk-size out";
  }
  if (traits.needs_priority && !has_priorities(options)) {
    return "needs priorities: give --slo-class with priority:P";
  }
  return "";
}

PolicyChoice choose_policies(const SimulateOptions& options) {
  PolicyChoice out;
  for (const std::string& asked : options.policies) {
    if (asked != kAll) {
      out.policies.push_back(asked);
      continue;
    }
    for (const std::string& policy : policy_names()) {
      if (policy_traits(policy).alias) continue;
      if (std::find(options.policies.begin(), options.policies.end(), policy) != options.policies.end()) {
        continue;  // named beside "all"
      }
      const std::string lacks = what_policy_lacks(options, policy);
      if (lacks.empty()) {
        out.policies.push_back(policy);
      } else {
        out.left_out.push_back({policy, lacks});
      }
    }
  }
  return out;
}

}  // namespace kvasir
