// Short vectors of a model file (a norm, a bias, factors of RoPE) as f32.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/files/gguf.h"

namespace kvasir {

// `origin` begins every message. kCorrupt: not `count` vectors of `size` values, or a value that is not
// finite, which would silently turn every output into NaN. kUnsupported: a type other than F32, F16 and BF16.
Status read_small_vectors(std::string_view origin, const GgufTensor& tensor, int64_t count, int64_t size,
                          std::vector<float>& out);
inline Status read_small_vector(std::string_view origin, const GgufTensor& tensor, int64_t size,
                                std::vector<float>& out) {
  return read_small_vectors(origin, tensor, 1, size, out);
}

}  // namespace kvasir
