// Measures what steps and transfers take, on the machine as `serve` would use it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "apps/runtime.h"
#include "base/clock.h"
#include "contract/geometry.h"
#include "exec/cpu/decoder.h"
#include "exec/sim/step_load.h"
#include "model/packed_model.h"
#include "sched/beliefs/cost_fit.h"

namespace kvasir {

// A kind of step, and what each of its runs took.
struct ProfiledStep {
  std::string what;  // "prefill 64 behind 256", for people
  StepWork work;
  StepLoad load;
  std::vector<double> seconds;
  double median() const;  // of two in the middle, the smaller: noise only adds
};

// Prefill chunks of several sizes and histories, decodes of several batches and contexts, steps of both, and,
// where X pays, decodes with history that is projected from X; of random tokens, in turns, until `deadline`
// of the clock: each at least once, except those that alone would take a tenth of the time. `layout`: that of
// the cache. kExhausted: there is no memory.
Result<std::vector<ProfiledStep>> measure_steps(const RuntimeOptions& options, const PackedModel& model,
                                                const CacheGeometry& layout, const Decoder::Options& decoder,
                                                const MonotonicClock& clock, Nanos deadline);

struct ProfiledTransfer {
  Tier from = Tier::kDevice;
  Tier to = Tier::kDevice;
  std::vector<TransferObservation> seen;  // medians
};

// Both ways, of each tier that the options name, over the link that `serve` would make; the disk in a folder
// of its own below --kv-offloading-dir, which is removed again.
Result<std::vector<ProfiledTransfer>> measure_links(const RuntimeOptions& options,
                                                    const CacheGeometry& layout, const MonotonicClock& clock,
                                                    Nanos deadline);

}  // namespace kvasir
