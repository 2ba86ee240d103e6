#include "sched/registry.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "sched/policies/apt_serve.h"
#include "sched/policies/cacheopt.h"
#include "sched/policies/distkv.h"
#include "sched/policies/ellm.h"
#include "sched/policies/fastgen.h"
#include "sched/policies/hcache.h"
#include "sched/policies/layerkv.h"
#include "sched/policies/orca.h"
#include "sched/policies/priority.h"
#include "sched/policies/rlp.h"
#include "sched/policies/s3.h"
#include "sched/policies/sarathi.h"
#include "sched/policies/vllm.h"
#include "sched/policies/vllm_random.h"
#include "sched/policies/vllm_swap.h"
#include "sched/policy_settings.h"

namespace kvasir {
namespace {

struct Entry {
  std::string_view name;
  std::unique_ptr<Policy> (*make)(PolicySettings&);
  bool reads_priority = false;
  bool whole_prompts = false;
  bool offloads = false;
  bool stages = false;
  bool drops = false;
  bool borrows = false;
};

// Of a policy without settings.
template <std::unique_ptr<Policy> (*kMake)()>
std::unique_ptr<Policy> plain(PolicySettings&) {
  return kMake();
}

constexpr std::array kPolicies = {
    Entry{.name = "apt-serve", .make = make_apt_serve_policy, .whole_prompts = true},
    Entry{.name = "apt-serve-s", .make = make_apt_serve_s_policy},
    Entry{.name = "cacheopt", .make = make_cacheopt_policy, .offloads = true},
    Entry{.name = "distkv", .make = make_distkv_policy, .whole_prompts = true, .borrows = true},
    Entry{.name = "ellm", .make = make_ellm_policy, .whole_prompts = true, .drops = true},
    Entry{.name = "fastgen", .make = plain<make_fastgen_policy>},
    // The name that users of vLLM know.
    Entry{.name = "fcfs", .make = make_vllm_policy, .whole_prompts = true},
    Entry{.name = "hcache", .make = make_hcache_policy, .whole_prompts = true, .offloads = true},
    Entry{.name = "layerkv",
          .make = make_layerkv_policy,
          .whole_prompts = true,
          .offloads = true,
          .stages = true},
    Entry{.name = "orca", .make = plain<make_orca_policy>},
    Entry{.name = "priority",
          .make = [](PolicySettings&) { return make_priority_policy(); },
          .reads_priority = true},
    Entry{.name = "rlp", .make = make_rlp_policy, .whole_prompts = true},
    Entry{.name = "s3", .make = make_s3_policy, .whole_prompts = true, .offloads = true},
    Entry{.name = "sarathi", .make = plain<make_sarathi_policy>},
    Entry{.name = "vllm", .make = make_vllm_policy, .whole_prompts = true},
    Entry{.name = "vllm-random",
          .make = [](PolicySettings&) { return make_vllm_random_policy(); },
          .whole_prompts = true},
    Entry{.name = "vllm-swap", .make = make_vllm_swap_policy, .whole_prompts = true, .offloads = true},
};

bool any_named(std::string_view policy_name, bool Entry::*trait) {
  const std::string_view name = policy_base_name(policy_name);
  return std::any_of(kPolicies.begin(), kPolicies.end(),
                     [&](const Entry& entry) { return entry.name == name && entry.*trait; });
}

}  // namespace

Result<std::unique_ptr<Policy>> make_policy(std::string_view policy_name) {
  PolicySettings settings(policy_name);
  for (const Entry& entry : kPolicies) {
    if (entry.name != settings.policy()) continue;
    std::unique_ptr<Policy> policy = entry.make(settings);
    KV_RETURN_IF_ERROR(settings.status());
    return policy;
  }
  return error(ErrorCode::kNotFound, "no scheduling policy '{}': there are {}", settings.policy(),
               fmt::join(policy_names(), ", "));
}

bool policy_reads_priority(std::string_view policy_name) {
  return any_named(policy_name, &Entry::reads_priority);
}

bool policy_takes_whole_prompts(std::string_view policy_name) {
  return any_named(policy_name, &Entry::whole_prompts);
}

bool policy_offloads(std::string_view policy_name) {
  return any_named(policy_name, &Entry::offloads);
}

bool policy_stages(std::string_view policy_name) {
  return any_named(policy_name, &Entry::stages);
}

bool policy_drops(std::string_view policy_name) {
  return any_named(policy_name, &Entry::drops);
}

bool policy_borrows(std::string_view policy_name) {
  return any_named(policy_name, &Entry::borrows);
}

bool policy_keeps_x(std::string_view policy_name) {
  const auto policy = make_policy(policy_name);
  return policy.ok() && (*policy)->keeps(Form::kX);
}

std::vector<std::string> policy_names() {
  std::vector<std::string> out;
  for (const Entry& entry : kPolicies) out.emplace_back(entry.name);
  return out;
}

}  // namespace kvasir
