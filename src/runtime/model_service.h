// What the HTTP server needs of a model, from a runtime.
#pragma once

#include "runtime/runtime.h"
#include "server/prompt.h"

namespace kvasir {

// `runtime` and `backend` outlive what is returned.
ModelService make_service(Runtime& runtime, Backend& backend);

}  // namespace kvasir
