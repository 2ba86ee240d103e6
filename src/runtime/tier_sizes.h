// How much memory each tier of the cache gets, and the longest request that then fits.
#pragma once

#include <cstdint>
#include <optional>

#include "base/status.h"
#include "engine/engine.h"
#include "runtime/runtime.h"

namespace kvasir {

// Bytes that the system, or this container, can give without swapping; kUnknownMemory: neither /proc/meminfo
// nor a limit of the control group says.
uint64_t available_memory();
inline constexpr uint64_t kUnknownMemory = UINT64_MAX;

// Bytes of a GPU's memory that its device tier may take.
struct GpuRoom {
  uint64_t usual_bytes = 0;  // within --gpu-memory-utilization
  uint64_t most_bytes = 0;   // if the option asks for so many
};

// Fills in the sizes in engine.cache, and engine.max_model_len, from the options. `context`: tokens that the
// model was trained for; `available`: bytes that the tiers may take, but for the device tier if it is in
// `gpu`. An error is one line that names the flag. REQUIRES: engine.cache.geometry is set.
Status size_tiers(const RuntimeOptions& options, uint64_t context, uint64_t available, EngineOptions& engine,
                  const std::optional<GpuRoom>& gpu = {});

}  // namespace kvasir
