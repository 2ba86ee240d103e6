// The one place that knows whether this build has CUDA: the build compiles one of two sources.
#pragma once

#include <memory>

#include "base/status.h"
#include "exec/gpu/gpu.h"

namespace kvasir {

// kUnsupported: this build is without CUDA; the message says how to build it with CUDA.
Status check_cuda_build();

// Before open_cuda_gpu() in a program with threads: sets variables of the environment. Without CUDA nothing.
// REQUIRES: no other thread runs
void prepare_cuda();

// The first GPU. kUnavailable: there is none. kUnsupported: none that the kernels run on, or
// check_cuda_build().
Result<std::unique_ptr<Gpu>> open_cuda_gpu();

}  // namespace kvasir
