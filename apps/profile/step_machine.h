// Runs made steps over K, V and X of arbitrary bytes, because the time of a step does not depend on them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "apps/profile/measure.h"
#include "contract/executor.h"

namespace kvasir {

struct ProfileCase {
  ProfiledStep shown;
  uint32_t prefill_rows = 0;
  uint32_t history = 0;  // of the prefill
  bool samples = true;   // the prefill's last row
  uint32_t batch = 0;
  uint32_t context = 0;   // of each decode, its own token included
  uint32_t x_blocks = 0;  // of each decode's history, held as X

  uint32_t blocks(const CacheGeometry& g) const {
    return batch * g.blocks_for(context) + g.blocks_for(history + prefill_rows);
  }
};

class StepMachine {
 public:
  // Of a device tier that it can use: 32,768 tokens.
  static uint64_t most_bytes(const CacheGeometry& geometry);
  // In the subject's device tier, which no other machine uses. kExhausted: there is no memory.
  static Result<std::unique_ptr<StepMachine>> make(const Subject& subject, const MonotonicClock& clock);

  uint32_t blocks() const { return blocks_; }
  const Executor& executor() const { return *executor_; }
  // Returns the executor's seconds, and sets the case's load; of an executor that has two steps in flight,
  // those of a step that was submitted while one like it ran. An error is the step's. REQUIRES: c.blocks() <=
  // blocks()
  Result<double> run(ProfileCase& c);

 private:
  StepMachine(const Subject& subject, uint32_t blocks, std::unique_ptr<Executor> executor);

  Step make_step(const ProfileCase& c);
  uint32_t add(Step& step, uint32_t seq, Interval tokens, uint32_t& block, uint32_t x_blocks);
  void project(Step& step, StepSlice& slice, uint32_t index, uint32_t block, uint32_t x_blocks);
  uint64_t block_at(uint32_t block) const;

  const CacheGeometry geometry_;
  const uint32_t blocks_;
  const uint64_t vocab_;
  const std::unique_ptr<Executor> executor_;
  uint64_t steps_ = 0;
};

// Runs each case once, the small ones first, and leaves out those that are expected to take more than a tenth
// of the time. Then runs all in turns until `deadline` of the clock, short steps several times each.
Result<std::vector<ProfileCase>> run_cases(StepMachine& machine, std::vector<ProfileCase> all,
                                           const MonotonicClock& clock, Nanos deadline);

}  // namespace kvasir
