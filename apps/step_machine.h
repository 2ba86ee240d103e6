// Steps made by hand, over K, V and X that hold some bytes or other: what a step takes does not depend on
// them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/profile_machine.h"
#include "apps/tier_sizes.h"
#include "base/units.h"
#include "exec/cpu/cpu_executor.h"

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

// The cache's geometry with X, where that is smaller than K and V.
CacheGeometry with_x(CacheGeometry layout, const PackedModel& model, const Decoder::Options& decoder);

class StepMachine {
 public:
  // With so much memory at the most, and for no more than 32,768 tokens. kExhausted: there is none.
  static Result<std::unique_ptr<StepMachine>> make(const RuntimeOptions& options, const PackedModel& model,
                                                   const CacheGeometry& geometry,
                                                   const Decoder::Options& decoder, uint64_t most_memory,
                                                   const MonotonicClock& clock);

  uint32_t blocks() const { return blocks_; }
  // Seconds of the executor; leaves in the case what the step asked of it. REQUIRES: its blocks are there
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

// Each case once, the small ones first; those are left out that by what was seen so far would take a tenth of
// the time. Then all in turns until `deadline` of the clock, short steps several times each.
std::vector<ProfileCase> run_cases(StepMachine& machine, std::vector<ProfileCase> all,
                                   const MonotonicClock& clock, Nanos deadline);

}  // namespace kvasir
