// An Executor that computes nothing, for tests: it keeps the steps that it was given, samples what the test
// says and fails when the test says so.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "contract/executor.h"
#include "contract/link.h"

namespace kvasir::test {

// Used by one thread.
class ScriptedExecutor final : public Executor {
 public:
  // Every step takes `step_time` of the clock, which outlives the executor and which wait() advances.
  ScriptedExecutor(VirtualClock& clock, int depth, Nanos step_time)
      : clock_(clock), depth_(depth), step_time_(step_time) {}

  int depth() const override { return depth_; }
  void submit(Step step) override;
  StepResult wait() override;

  // The token that is sampled for a position of a sequence, unless an end is forced; by default the position.
  std::function<Token(SeqId, uint32_t)> sample = [](SeqId, uint32_t position) {
    return static_cast<Token>(position);
  };
  // Where the transfers of a step are started when it is submitted; without it they never are.
  Link* link = nullptr;
  // A hidden row that is asked for is {the sequence, the length after which it was sampled}.

  // The nth step from the first (1, 2, ...) fails with this message.
  void fail_step(uint64_t nth, std::string message) { failures_[nth] = std::move(message); }

  const std::vector<Step>& steps() const { return steps_; }

 private:
  VirtualClock& clock_;
  const int depth_;
  const Nanos step_time_;
  std::map<uint64_t, std::string> failures_;
  std::vector<Step> steps_;
  std::deque<size_t> pending_;  // indices into steps_
};

}  // namespace kvasir::test
