// The GPU of exec/gpu/gpu.h by CUDA. No header of CUDA.
#pragma once

#include <memory>

#include "exec/gpu/gpu.h"

namespace kvasir::cuda {

// Sets variables of the environment that CUDA reads when it is first called, where they are not as needed.
// REQUIRES: no other thread reads the environment meanwhile
void set_environment();

// The first device. kUnavailable: there is none, or the driver does not permit what is needed.
// kUnsupported: it is of another compute capability than 9.0, for which the kernels are compiled. The message
// is one line that says what is missing.
// REQUIRES: no call of CUDA was made before; set_environment() was called, or no other thread reads the
// environment meanwhile
Result<std::unique_ptr<Gpu>> open_gpu();

}  // namespace kvasir::cuda
