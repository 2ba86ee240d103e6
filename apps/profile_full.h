// `kvasir profile --full`: measures this machine for the simulator. What it finds is the truth there, and not
// what policies believe.
#pragma once

#include <string>
#include <vector>

#include "apps/profile.h"
#include "apps/profile_machine.h"
#include "model/model_file.h"
#include "simulate/host_device.h"
#include "simulate/times_fit.h"

namespace kvasir {

// Steps of many more kinds than measure_steps() runs, which is otherwise the same.
Result<std::vector<ProfiledStep>> measure_grid(const RuntimeOptions& options, const PackedModel& model,
                                               const CacheGeometry& layout, const Decoder::Options& decoder,
                                               const MonotonicClock& clock, Nanos deadline);

// What was seen of a server of this process, under load that this process makes.
struct ServedLoad {
  std::vector<TimedLoad> steps;
  std::vector<EngineGap> gaps;
  // Of single requests: from their sending until their first token, without the step that made it.
  std::vector<double> request_s;
};
// Random prompts at several concurrencies, on policies that take whole prompts and that cut them, for so many
// seconds in all; and one request at a time.
Result<ServedLoad> measure_served(const RuntimeOptions& options, const ModelFile& file,
                                  const PackedModel& model, const CacheGeometry& layout,
                                  const Decoder::Options& decoder, const MonotonicClock& clock,
                                  double seconds);

// Fits all that was seen, prints how well, and fills in what of the device follows from it.
void fit_host_device(const std::vector<ProfiledStep>& grid, const ServedLoad& served, HostDevice& device);

}  // namespace kvasir
