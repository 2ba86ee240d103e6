// Whether a GPU computes what the numerics id says.
#pragma once

#include "base/status.h"
#include "exec/gpu/gpu.h"

namespace kvasir {

// Runs a product by each kernel and tile that there is (Gpu::product_cases()), and compares each output with
// fused16() (ops/gpu/fused16.h), bit by bit. Takes a few tenths of a second. kUnsupported: they differ.
// REQUIRES: no gate that is queued is closed
Status check_products(Gpu& gpu);

}  // namespace kvasir
