#include "model/files/small_vector.h"

#include <array>
#include <cmath>
#include <cstring>

#include "ops/numerics.h"

namespace kvasir {

Status read_small_vectors(std::string_view origin, const GgufTensor& tensor, int64_t count, int64_t size,
                          std::vector<float>& out) {
  const std::array<uint64_t, 4> wanted = {static_cast<uint64_t>(size), static_cast<uint64_t>(count), 1, 1};
  if (tensor.shape != wanted) {
    return error(ErrorCode::kCorrupt,
                 "{}: the tensor '{}' is {} x {} x {} x {} where the metadata asks for {} x {}; convert the "
                 "model again",
                 origin, tensor.name, tensor.shape[0], tensor.shape[1], tensor.shape[2], tensor.shape[3],
                 size, count);
  }
  if (tensor.rows != nullptr) {
    return error(
        ErrorCode::kUnsupported,
        "{}: the tensor '{}' is quantised, which is supported for matrices alone; use the model in BF16",
        origin, tensor.name);
  }
  out.resize(static_cast<size_t>(size * count));
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t half = 0;
    if (tensor.type->name == "F32") {
      std::memcpy(&out[i], tensor.data.data() + i * sizeof(float), sizeof(float));
    } else if (tensor.type->name == "F16" || tensor.type->name == "BF16") {
      std::memcpy(&half, tensor.data.data() + i * sizeof(half), sizeof(half));
      out[i] = tensor.type->name == "F16" ? ops::f16_to_f32(half) : ops::bf16_to_f32(half);
    } else {
      return error(
          ErrorCode::kUnsupported,
          "{}: the tensor '{}' is of type {}, where F32, F16 or BF16 is needed; convert the model again",
          origin, tensor.name, tensor.type->name);
    }
    if (!std::isfinite(out[i])) {
      return error(ErrorCode::kCorrupt,
                   "{}: value {} of the tensor '{}' is not finite; the file is damaged; fetch it again",
                   origin, i, tensor.name);
    }
  }
  return {};
}

}  // namespace kvasir
