// What is profiled: a model, its settings and the device that `serve` would run it on.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "contract/geometry.h"
#include "engine/options.h"
#include "model/files/model_file.h"
#include "runtime/cost_profile.h"
#include "runtime/runtime.h"
#include "runtime/serving_device.h"

namespace kvasir {

struct Subject {
  RuntimeOptions options;
  std::unique_ptr<ModelFile> file;
  CacheGeometry layout;  // as serve has it
  // Has weights and the tiers, which hold small finite numbers in every type of the KV cache.
  std::unique_ptr<ServingDevice> device;
  EngineOptions engine;  // of the profile: its tiers, and X in its geometry if X is smaller than K and V
  CostFingerprint here;

  bool has_slower_tier() const { return options.kv_offloading_bytes + options.kv_offloading_disk_bytes > 0; }
};

// The device tier has room for StepMachine, of a CPU's memory at most most_cpu_memory bytes. An error is one
// line that names the flag, the file, or the memory that is missing.
Result<Subject> open_subject(const RuntimeOptions& options, uint64_t most_cpu_memory);

}  // namespace kvasir
