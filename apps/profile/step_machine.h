// Runs single steps over K, V and X of arbitrary bytes, because the time of a step does not depend on them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/profile/measure.h"
#include "base/units.h"
#include "exec/cpu/cpu_executor.h"
#include "runtime/tier_sizes.h"

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

// The cache's geometry with X, if X is smaller than K and V.
CacheGeometry with_x(CacheGeometry layout, const PackedModel& model, const Decoder::Options& decoder);

class StepMachine {
 public:
  // Takes at most `most_memory` bytes, and has room for at most 32,768 tokens. kExhausted: there is no
  // memory.
  static Result<std::unique_ptr<StepMachine>> make(const RuntimeOptions& options, const PackedModel& model,
                                                   const CacheGeometry& geometry,
                                                   const Decoder::Options& decoder, uint64_t most_memory,
                                                   const MonotonicClock& clock);

  uint32_t blocks() const { return blocks_; }
  // Returns the executor's seconds, and sets the case's load. REQUIRES: c.blocks() <= blocks()
  double run(ProfileCase& c);

 private:
  StepMachine(const RuntimeOptions& options, const PackedModel& model, CacheGeometry geometry,
              const Decoder::Options& decoder, Arena memory, uint32_t blocks, const MonotonicClock& clock);

  Step make_step(const ProfileCase& c);
  uint32_t add(Step& step, uint32_t seq, Interval tokens, uint32_t& block, uint32_t x_blocks);
  void project(Step& step, StepSlice& slice, uint32_t index, uint32_t block, uint32_t x_blocks);
  uint64_t block_at(uint32_t block) const;

  const CacheGeometry geometry_;
  const uint32_t blocks_;
  Arena memory_;
  const uint64_t vocab_;
  CpuExecutor executor_;
  uint64_t steps_ = 0;
};

// Runs each case once, the small ones first, and leaves out those that are expected to take more than a tenth
// of the time. Then runs all in turns until `deadline` of the clock, short steps several times each.
std::vector<ProfileCase> run_cases(StepMachine& machine, std::vector<ProfileCase> all,
                                   const MonotonicClock& clock, Nanos deadline);

}  // namespace kvasir
