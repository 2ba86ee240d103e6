#include "sched/registry.h"

#include <fmt/ranges.h>

#include "sched/batch_policy.h"
#include "sched/policy_settings.h"

// One line a policy: its name, the function that policies/NAME.cc defines, and its traits (all but keeps_x,
// which BatchPolicy says). In alphabetical order.
#define KVASIR_POLICIES(POLICY)                                                            \
  POLICY("apt-serve", make_apt_serve, .whole_prompts = true)                               \
  POLICY("apt-serve-s", make_apt_serve_s)                                                  \
  POLICY("auto", make_auto, .reads_priority = true, .stages = true)                        \
  POLICY("cacheopt", make_cacheopt, .offloads = true)                                      \
  POLICY("distkv", make_distkv, .whole_prompts = true, .borrows = true)                    \
  POLICY("ellm", make_ellm, .whole_prompts = true, .drops = true)                          \
  POLICY("fastgen", make_fastgen)                                                          \
  POLICY("fcfs", make_vllm, .whole_prompts = true, .alias = true) /* its name in vLLM */   \
  POLICY("hcache", make_hcache, .whole_prompts = true, .offloads = true)                   \
  POLICY("layerkv", make_layerkv, .whole_prompts = true, .offloads = true, .stages = true) \
  POLICY("orca", make_orca)                                                                \
  POLICY("priority", make_priority, .reads_priority = true, .needs_priority = true)        \
  POLICY("rlp", make_rlp, .whole_prompts = true)                                           \
  POLICY("s3", make_s3, .whole_prompts = true, .offloads = true)                           \
  POLICY("sarathi", make_sarathi)                                                          \
  POLICY("vllm", make_vllm, .whole_prompts = true)                                         \
  POLICY("vllm-random", make_vllm_random, .whole_prompts = true)                           \
  POLICY("vllm-swap", make_vllm_swap, .whole_prompts = true, .offloads = true)

namespace kvasir {

#define KVASIR_DECLARE(name, make, ...) std::unique_ptr<BatchPolicy> make(PolicySettings& settings);
KVASIR_POLICIES(KVASIR_DECLARE)
#undef KVASIR_DECLARE

namespace {

struct Entry {
  std::string_view name;
  std::unique_ptr<BatchPolicy> (*make)(PolicySettings&);
  PolicyTraits traits;
};

#define KVASIR_ENTRY(name, make, ...) Entry{name, make, {__VA_ARGS__}},
constexpr Entry kPolicies[] = {KVASIR_POLICIES(KVASIR_ENTRY)};
#undef KVASIR_ENTRY

const Entry* entry_named(std::string_view name) {
  for (const Entry& entry : kPolicies) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

Result<std::unique_ptr<BatchPolicy>> make_batch_policy(std::string_view policy_name) {
  PolicySettings settings(policy_name);
  const Entry* entry = entry_named(settings.policy());
  if (!entry) {
    return error(ErrorCode::kNotFound, "no scheduling policy '{}': there are {}", settings.policy(),
                 fmt::join(policy_names(), ", "));
  }
  std::unique_ptr<BatchPolicy> policy = entry->make(settings);
  KV_RETURN_IF_ERROR(settings.status());
  return policy;
}

}  // namespace

Result<std::unique_ptr<Policy>> make_policy(std::string_view policy_name) {
  KV_ASSIGN_OR_RETURN(std::unique_ptr<Policy> policy, make_batch_policy(policy_name));
  return policy;
}

PolicyTraits policy_traits(std::string_view policy_name) {
  const Entry* entry = entry_named(policy_base_name(policy_name));
  if (!entry) return {};
  PolicyTraits traits = entry->traits;
  const auto policy = make_batch_policy(policy_name);
  traits.keeps_x = policy.ok() && (*policy)->keeps_x();
  return traits;
}

std::vector<std::string> policy_names() {
  std::vector<std::string> out;
  for (const Entry& entry : kPolicies) out.emplace_back(entry.name);
  return out;
}

}  // namespace kvasir
