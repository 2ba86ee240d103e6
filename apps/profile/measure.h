// Measures the times of steps and transfers on a device that is set up as for `serve`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/profile/subject.h"
#include "base/clock.h"
#include "contract/link.h"
#include "exec/sim/step_load.h"
#include "sched/beliefs/cost_fit.h"

namespace kvasir {

// A kind of step, and the time of each of its runs.
struct ProfiledStep {
  std::string what;  // "prefill 64 behind 256", for people
  StepWork work;
  StepLoad load;
  std::vector<double> seconds;
  double median() const;  // of two in the middle the smaller, because noise only adds
};

// Runs, in turns until `deadline` of the clock, steps of random tokens: prefill chunks of several sizes and
// histories, decodes of several batches and contexts, steps of both, and, if X is smaller than K and V,
// decodes whose history is projected from X. Each runs at least once, except those that would take a tenth of
// the time alone. kExhausted: there is no memory.
Result<std::vector<ProfiledStep>> measure_steps(const Subject& subject, const MonotonicClock& clock,
                                                Nanos deadline);

struct ProfiledTransfer {
  Tier from = Tier::kDevice;
  Tier to = Tier::kDevice;
  std::vector<TransferObservation> seen;  // medians
};

// Measures transfers in both directions for each tier that the options name, over the link that `serve` would
// make, in the subject's tiers. The disk's are in a folder below --kv-offloading-dir that is removed
// afterwards.
Result<std::vector<ProfiledTransfer>> measure_links(const Subject& subject, const MonotonicClock& clock,
                                                    Nanos deadline);

}  // namespace kvasir
