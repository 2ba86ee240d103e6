#include "sched/registry.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "sched/policies/fastgen.h"
#include "sched/policies/orca.h"
#include "sched/policies/priority.h"
#include "sched/policies/sarathi.h"
#include "sched/policies/vllm.h"
#include "sched/policies/vllm_random.h"
#include "sched/policies/vllm_swap.h"

namespace kvasir {
namespace {

struct Entry {
  std::string_view name;
  std::unique_ptr<Policy> (*make)();
  bool reads_priority = false;
  bool whole_prompts = false;
};

constexpr std::array kPolicies = {
    Entry{.name = "fastgen", .make = make_fastgen_policy},
    Entry{
        .name = "fcfs", .make = make_vllm_policy, .whole_prompts = true},  // the name that users of vLLM know
    Entry{.name = "orca", .make = make_orca_policy},
    Entry{.name = "priority", .make = [] { return make_priority_policy(); }, .reads_priority = true},
    Entry{.name = "sarathi", .make = make_sarathi_policy},
    Entry{.name = "vllm", .make = make_vllm_policy, .whole_prompts = true},
    Entry{.name = "vllm-random", .make = [] { return make_vllm_random_policy(); }, .whole_prompts = true},
    Entry{.name = "vllm-swap", .make = make_vllm_swap_policy, .whole_prompts = true},
};

bool any_named(std::string_view policy_name, bool Entry::*trait) {
  return std::any_of(kPolicies.begin(), kPolicies.end(),
                     [&](const Entry& entry) { return entry.name == policy_name && entry.*trait; });
}

}  // namespace

Result<std::unique_ptr<Policy>> make_policy(std::string_view policy_name) {
  for (const Entry& entry : kPolicies) {
    if (entry.name == policy_name) return entry.make();
  }
  return error(ErrorCode::kNotFound, "no scheduling policy '{}': there are {}", policy_name,
               fmt::join(policy_names(), ", "));
}

bool policy_reads_priority(std::string_view policy_name) {
  return any_named(policy_name, &Entry::reads_priority);
}

bool policy_takes_whole_prompts(std::string_view policy_name) {
  return any_named(policy_name, &Entry::whole_prompts);
}

std::vector<std::string> policy_names() {
  std::vector<std::string> out;
  for (const Entry& entry : kPolicies) out.emplace_back(entry.name);
  return out;
}

}  // namespace kvasir
