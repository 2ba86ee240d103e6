// How much memory each tier of the cache gets, and how long a request may be then.
#pragma once

#include <cstdint>

#include "apps/runtime.h"
#include "base/status.h"
#include "engine/engine.h"

namespace kvasir {

// Bytes that the system, or this container, could give without swapping.
uint64_t available_memory();

// Fills in engine.cache's bytes and engine.max_model_len from the flags. `context`: tokens that the model was
// trained for; `available`: bytes that the tiers may take. REQUIRES: engine.cache.geometry is set.
// An error is one line that names the flag.
Status size_tiers(const RuntimeOptions& options, uint64_t context, uint64_t available, EngineOptions& engine);

}  // namespace kvasir
