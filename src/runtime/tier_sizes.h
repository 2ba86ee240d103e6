// How much memory each tier of the cache gets, and the longest request that then fits.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "engine/engine.h"
#include "runtime/runtime.h"

namespace kvasir {

// Bytes that the system, or this container, can give without swapping; kUnknownMemory: neither /proc/meminfo
// nor a limit of the control group says.
uint64_t available_memory();
inline constexpr uint64_t kUnknownMemory = UINT64_MAX;

// Fills in the sizes in engine.cache, and engine.max_model_len, from the options. `context`: tokens that the
// model was trained for; `available`: bytes that the tiers may take. An error is one line that names the
// flag. REQUIRES: engine.cache.geometry is set.
Status size_tiers(const RuntimeOptions& options, uint64_t context, uint64_t available, EngineOptions& engine);

}  // namespace kvasir
