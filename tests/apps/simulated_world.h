// Random runs of the simulator, and what must hold of every one of them.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "apps/simulate/simulation.h"
#include "contract/policy.h"

namespace kvasir::test {

// What one sequence was planned to do, as its policy saw it.
struct SeqAccount {
  uint32_t reached = 0;  // tokens computed, or planned to be
  uint64_t rows = 0;
  uint64_t lost = 0;     // of those reached: given up by a preemption, or their rows left a step
  uint64_t adopted = 0;  // reached without rows
  bool preempted = false;
};

struct Accounts {
  std::map<size_t, SeqAccount> requests;  // by index
  uint64_t losses_unexplained = 0;        // tokens lost without a preemption or a deferral
  uint64_t preemptions = 0;
};

// Every request carries its index in a bound that it always meets, so that plans can be told apart by
// request.
Slo tagged(Slo slo, size_t index);

// Plans as another policy does, and keeps accounts, which outlive it.
class AccountingPolicy final : public Policy {
 public:
  AccountingPolicy(std::unique_ptr<Policy> policy, Accounts& accounts)
      : policy_(std::move(policy)), accounts_(accounts) {}
  StepPlan plan(const View& view) override;
  std::string save_state() const override { return policy_->save_state(); }
  Status restore_state(std::string_view state) override { return policy_->restore_state(state); }

 private:
  const std::unique_ptr<Policy> policy_;
  Accounts& accounts_;
};

struct World {
  SimulationSetup setup;  // with check_integrity; without `policies`
  std::vector<SimulatedRequest> requests;
};

// Of every setting that there is: memory, limits, tiers, links, noise, queues, SLOs, requests that never fit.
World random_world(uint64_t seed, const std::string& policy);

struct WorldRun {
  SimulationOutcome outcome;
  Accounts accounts;
};
WorldRun run(const World& world);

// Whether the request is taken, where there is room in the queue.
bool fits(const World& world, const SimulatedRequest& request);

// "" if nothing is lost or done twice, tokens and work add up, time goes on, memory holds and the device
// never idles while there is work; else what is wrong.
std::string judge(const World& world, const WorldRun& run);

bool same(const RequestRecord& a, const RequestRecord& b);
bool same(const SimulationOutcome& a, const SimulationOutcome& b);

// For the names of tests.
std::string name_of_policy(const testing::TestParamInfo<std::string>& info);

}  // namespace kvasir::test
