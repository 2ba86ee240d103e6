// A short vector of a model file (a norm, a bias, factors of RoPE) as f32.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/files/gguf.h"

namespace kvasir {

// `origin` begins every message. kCorrupt: not `size` values, or one that is not finite, which would silently
// turn every output into NaN. kUnsupported: a type other than F32, F16 and BF16.
Status read_small_vector(std::string_view origin, const GgufTensor& tensor, int64_t size,
                         std::vector<float>& out);

}  // namespace kvasir
