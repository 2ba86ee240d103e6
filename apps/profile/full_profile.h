// `kvasir profile --full`: measures this machine as a device for the simulator. It leaves the policies'
// beliefs as they are.
#pragma once

#include <string>
#include <vector>

#include "apps/profile/measure.h"
#include "apps/profile/profile.h"
#include "apps/simulate/host_device.h"
#include "apps/simulate/times_fit.h"

namespace kvasir {

// As measure_steps(), with many more kinds of steps.
Result<std::vector<ProfiledStep>> measure_grid(const Subject& subject, const MonotonicClock& clock,
                                               Nanos deadline);

// Measured on a server in this process, under load from this process.
struct ServedLoad {
  std::vector<TimedLoad> steps;
  std::vector<EngineGap> gaps;
  // For each request that ran alone: from sending it to its first token, without the step that made the
  // token.
  std::vector<double> request_s;
};
// Sends random prompts, one at a time and at several concurrencies, under a policy that takes whole prompts
// and one that splits them, for so many seconds in all. Takes the subject's tiers for its own.
Result<ServedLoad> measure_served(const Subject& subject, const MonotonicClock& clock, double seconds);

// Fits the device's times to the measurements, prints the errors of the fit, and fills them in.
void fit_host_device(const std::vector<ProfiledStep>& grid, const ServedLoad& served, HostDevice& device);

}  // namespace kvasir
