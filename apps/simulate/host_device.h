// This machine as a device of the simulator: the file that `kvasir profile --full` writes.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "apps/simulate/times_fit.h"
#include "base/status.h"
#include "contract/cost_model.h"
#include "contract/geometry.h"
#include "exec/sim/measured_times.h"
#include "sched/beliefs/cost_fit.h"

namespace kvasir {

// The measured times of one machine, model and settings.
struct HostDevice {
  std::string model;        // as people call it
  std::string fingerprint;  // of machine, model and settings, as cost profiles have it
  int64_t measured_at = 0;  // seconds since 1970
  int threads = 1;          // that compute

  MeasuredTables tables;
  std::shared_ptr<const StepTimes> times;  // of the tables; save_host_device() does not look at it
  double noise = 0;                        // SimExecutor::Options::noise
  // Time of a request outside its steps, from sending it to its first token: HTTP, tokenisation.
  double request_s = 0;

  CacheGeometry geometry;
  uint32_t max_model_len = 0;  // that the model was trained for, tokens
  int32_t vocab_size = 0;
  // [from][to], by tier; those that were not measured are 0.
  std::array<std::array<LinkCost, kTiers>, kTiers> links{};

  // For people: how well the tables fit the medians of made steps, those of a fifth that was held out, and
  // single steps of an engine; and the tail of what is left.
  FitError fit, held_out, engine_steps;
  TimeNoise tail;
};

// kNotFound: there is no such file. kCorrupt: save_host_device() did not write it.
Result<HostDevice> load_host_device(const std::string& path);
// Replaces the file atomically. kIo.
Status save_host_device(const HostDevice& device, const std::string& path);

}  // namespace kvasir
