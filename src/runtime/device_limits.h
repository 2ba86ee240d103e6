// What --device says, and which other flags a GPU cannot serve yet.
#pragma once

#include "base/status.h"
#include "runtime/runtime.h"

namespace kvasir {

bool is_on_gpu(const RuntimeOptions& options);

// Refuses what does not run on the device. An error is one line that names the flag and says what to do.
Status check_device(const RuntimeOptions& options);

}  // namespace kvasir
