// A policy seen from outside: what it was shown and what it planned, as a course over time and, on request,
// as the life of one request. It plans what the policy inside plans.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "contract/policy.h"

namespace kvasir {

// At the moment of a plan.
struct EngineSample {
  Nanos at = 0;
  uint32_t running = 0;  // before the plan; waiting likewise
  uint32_t waiting = 0;
  uint32_t rows = 0;  // of the plan, decodes among them
  uint32_t decodes = 0;
  std::array<std::array<uint64_t, kTiers>, kForms> bytes{};  // held by sequences, [form][tier]
  uint64_t link_queue_bytes = 0;
};

// Sums over a run. Seconds are of virtual time, until the next plan.
struct EngineSums {
  double seconds = 0;
  // Requests waited though the step's tokens would have allowed more: for want of memory, or of a place among
  // those that may run at once.
  double seconds_at_limit = 0;
  double running_seconds = 0;  // running requests times time
  uint64_t plans = 0;          // with rows
  uint64_t rows = 0;
  uint64_t decodes = 0;
  // Shares of the device's memory for KV that were not available when a step with rows was planned, and of
  // these what was promised and not used: summed over those plans.
  double allocated = 0;
  double promised = 0;
};

class ObservedPolicy final : public Policy {
 public:
  // whole_prompts: it takes prompts whole (sched/registry.h).
  ObservedPolicy(std::unique_ptr<Policy> inner, bool whole_prompts)
      : inner_(std::move(inner)), whole_prompts_(whole_prompts) {}

  // From now on the life of this sequence is told.
  void explain(SeqId seq) { explained_ = seq; }

  StepPlan plan(const View& view) override;
  std::string save_state() const override { return inner_->save_state(); }
  Status restore_state(std::string_view state) override { return inner_->restore_state(state); }

  // Not more than some thousands, evenly spread over the plans.
  const std::vector<EngineSample>& samples() const { return samples_; }
  const EngineSums& sums() const { return sums_; }
  // Of each sequence that was preempted and ran again: the time from every preemption to its next rows.
  std::vector<double> preempted_seconds() const;
  // Plans after which another may find more to do at once: all but those with nothing, or promises alone.
  uint64_t changes() const { return changes_; }
  // One line for each turn in it.
  std::vector<std::string> life();

 private:
  // What happened to the request in plans that follow each other, told in one line.
  struct Stretch {
    std::string what;
    Nanos from = 0, to = 0;
    uint32_t first_token = 0, end_token = 0;
    uint32_t steps = 0;
  };

  // The preemptions of a sequence so far.
  struct Pauses {
    Nanos since = -1;  // of the one that has not ended; -1: none
    double seconds = 0;
  };

  void count_memory(const View& view);
  void count_pauses(Nanos now, const StepPlan& plan, const std::vector<SeqId>& with_rows);
  void sample(const View& view, uint32_t rows, uint32_t decodes);
  void explain(const View& view, const StepPlan& plan);
  void tell(Nanos at, const std::string& what);
  void stretch(Nanos at, const std::string& what, Interval tokens);
  void end_stretch();

  const std::unique_ptr<Policy> inner_;
  const bool whole_prompts_;
  std::optional<SeqId> explained_;
  EngineSums sums_;
  std::vector<EngineSample> samples_;
  uint64_t stride_ = 1;  // plans from one sample to the next
  uint64_t seen_ = 0;
  uint64_t changes_ = 0;
  Nanos last_ = -1;           // of the plan before
  bool was_limited_ = false;  // after it; running likewise
  size_t were_running_ = 0;
  std::unordered_map<SeqId, Pauses> pauses_;
  size_t paused_ = 0;  // sequences of which a pause has not ended

  std::vector<std::string> life_;
  std::optional<Stretch> stretch_;
  bool known_ = false;  // it has been seen
};

}  // namespace kvasir
