// Counts what the steps of a policy are made of, for tests that must know that something did happen.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "contract/policy.h"

namespace kvasir::test {

struct PlanCounts {
  uint64_t plans = 0;
  uint64_t dead_blocks = 0;  // that views showed of sequences that run, together
  // Plans with rows of a sequence of which some layer groups, not all, are on the device.
  uint64_t partial_steps = 0;
  uint64_t decode_steps = 0;          // plans with a decode
  uint64_t staged_decode_steps = 0;   // of those: something goes through the stage ring to be read
  uint64_t partial_decode_steps = 0;  // of those: as partial_steps
  // Of those with a decode: a sequence that decodes has X and no KV on the device of some cell, has cells on
  // the disk, or recomputes dropped cells.
  uint64_t x_decode_steps = 0;
  uint64_t disk_decode_steps = 0;
  uint64_t again_decode_steps = 0;
  // Sequences that came back from waiting with X on a slower tier, and no K and V anywhere, of some cell.
  uint64_t x_restores = 0;
  uint64_t switches_to_x = 0;   // preemptions with the reason kBecomesX
  uint64_t switches_to_kv = 0;  // and with kBecomesKv
  // Sequences that came back from waiting with no cells, had had a token, and were prefilled as X.
  uint64_t returned_as_x = 0;
  std::array<uint64_t, 5> promises{};  // by Promise::Kind
  uint64_t claims_called = 0;          // that a view showed
  uint64_t loans_due = 0;              // that a view showed, of a guest that runs
  uint64_t ragged_copies = 0;          // copy changes of layer groups that are no interval

  PlanCounts& operator+=(const PlanCounts& other);
};

// Plans as another policy does.
class CountingPolicy final : public Policy {
 public:
  // The counts outlive the policy.
  CountingPolicy(std::unique_ptr<Policy> policy, PlanCounts& counts)
      : policy_(std::move(policy)), counts_(counts) {}

  StepPlan plan(const View& view) override;
  std::string save_state() const override { return policy_->save_state(); }
  Status restore_state(std::string_view state) override { return policy_->restore_state(state); }

 private:
  const std::unique_ptr<Policy> policy_;
  PlanCounts& counts_;
};

}  // namespace kvasir::test
