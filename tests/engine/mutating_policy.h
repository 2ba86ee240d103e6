// Plans that another policy made, with random edits: what the checker accepts is carried out.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include "base/random.h"
#include "contract/policy.h"

namespace kvasir::test {

struct MutationCounts {
  uint64_t tried = 0;     // edited plans that differ from the good one
  uint64_t accepted = 0;  // of those, by check_plan()
  uint64_t carried_out = 0;
  std::map<std::string, uint64_t> refused;  // by the rule that they break (rules_of_plans())
  std::string unknown_rule;                 // a refusal that states none of them; "": there was none
};

// The rules of check_plan() and PlanState, as regular expressions that match their messages.
const std::map<std::string, std::string>& rules_of_plans();

// For each view it asks `policy`, edits copies of its plan `tries` times, and has each of them checked. One
// that was accepted takes the place of the good plan with the probability `share`.
class MutatingPolicy final : public Policy {
 public:
  // The counts outlive the policy.
  MutatingPolicy(std::unique_ptr<Policy> policy, uint32_t tries, double share, uint64_t seed,
                 MutationCounts& counts)
      : policy_(std::move(policy)), tries_(tries), share_(share), random_(seed), counts_(counts) {}

  StepPlan plan(const View& view) override;
  std::string save_state() const override { return policy_->save_state(); }
  Status restore_state(std::string_view state) override { return policy_->restore_state(state); }

 private:
  void count_refusal(const std::string& message);

  const std::unique_ptr<Policy> policy_;
  const uint32_t tries_;
  const double share_;
  Random random_;
  MutationCounts& counts_;
  std::unordered_map<std::string, std::string> rule_of_;  // by message without numbers; "": it states none
};

}  // namespace kvasir::test
