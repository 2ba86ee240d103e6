// A model on a device for the simulator: the true times of steps, the memory, and the policies' beliefs about
// both.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/simulate/simulate.h"
#include "base/status.h"
#include "contract/cost_model.h"
#include "engine/engine.h"
#include "exec/sim/device_times.h"
#include "exec/sim/sim_link.h"
#include "exec/sim/step_load.h"

namespace kvasir {

// The model on the catalogue's device that the flags name. One line names the flag at fault and lists what
// there is.
Result<DeviceTimes> device_times(const SimulateOptions& options);

struct SimulatedSystem {
  std::string model;
  std::string device;  // with its parallelism
  // Truth.
  std::shared_ptr<const StepTimes> times;
  double noise = 0;
  SimLink::Costs link{};
  Nanos request_overhead = 0;
  // Belief.
  CostModel costs;
  // The model's shape, for one device.
  uint32_t layers = 0;
  std::vector<uint32_t> windows;  // see ModelShape
  uint64_t kv_plane_bytes_per_token_layer = 0;
  uint32_t kv_planes = 2;  // see CacheGeometry
  uint64_t x_bytes_per_token_layer = 0;
  uint64_t kv_bytes_per_token() const {
    return uint64_t{kv_planes} * layers * kv_plane_bytes_per_token_layer;
  }
  uint32_t context = 0;  // tokens that the model was trained for
  // Of attention, for one device; what a machine's file does not say is one head as wide as its K.
  uint32_t kv_heads = 1;
  uint32_t head_dim = 1;
  uint32_t queries_per_kv = 1;
  // Of one device.
  uint64_t kv_cache_bytes = 0;
  std::string memory;  // for people
};

// Whether --device names a file that is no device of the catalogue's kind: one that profile --full has
// written, or damaged.
bool names_host_device(const std::string& device);

// One line names the flag at fault, lists what there is, or says by how much something does not fit.
Result<SimulatedSystem> make_system(const SimulateOptions& options);

// The engine of an instance for one policy. One of several instances that do not lend takes requests as long
// as it can hold, whatever --max-model-len says. Errors as above.
Result<EngineOptions> engine_of(const SimulateOptions& options, const SimulatedSystem& system,
                                const std::string& policy);

// The costs that a short profile of the device would find: the cost model fitted to the times of a grid of
// steps, without noise. No step has more than `context` tokens of context.
// expert_share: as CostModel's.
CostModel believed_costs(const StepTimes& times, uint32_t context, double expert_share = 0);

}  // namespace kvasir
