// Whether a GPU computes what the numerics id says.
#pragma once

#include "base/status.h"
#include "exec/gpu/gpu.h"

namespace kvasir {

// Runs products of few rows and of many, which are kernels with different instructions, and compares each
// output with fused16() (ops/gpu/fused16.h), bit by bit. Takes some milliseconds. kUnsupported: they differ.
// REQUIRES: no gate that is queued is closed
Status check_products(Gpu& gpu);

}  // namespace kvasir
