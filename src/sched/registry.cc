#include "sched/registry.h"

#include <fmt/ranges.h>

#include <array>

#include "sched/policies/sarathi.h"
#include "sched/policies/vllm.h"
#include "sched/policies/vllm_swap.h"

namespace kvasir {
namespace {

struct Entry {
  std::string_view name;
  std::unique_ptr<Policy> (*make)();
};

constexpr std::array kPolicies = {
    Entry{"fcfs", make_vllm_policy},  // the name that users of vLLM know
    Entry{"sarathi", make_sarathi_policy},
    Entry{"vllm", make_vllm_policy},
    Entry{"vllm-swap", make_vllm_swap_policy},
};

}  // namespace

Result<std::unique_ptr<Policy>> make_policy(std::string_view policy_name) {
  for (const Entry& entry : kPolicies) {
    if (entry.name == policy_name) return entry.make();
  }
  return error(ErrorCode::kNotFound, "no scheduling policy '{}': there are {}", policy_name,
               fmt::join(policy_names(), ", "));
}

bool policy_reads_priority(std::string_view policy_name) {
  return policy_name == "priority";
}

std::vector<std::string> policy_names() {
  std::vector<std::string> out;
  for (const Entry& entry : kPolicies) out.emplace_back(entry.name);
  return out;
}

}  // namespace kvasir
