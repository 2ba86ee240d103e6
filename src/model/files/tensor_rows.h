// Rows of a tensor that lie in their file in another form than GGUF's.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvasir {

// Immutable, hence thread-safe.
class TensorRows {
 public:
  virtual ~TensorRows() = default;
  // Writes one row, as GGUF's type of the tensor has it. Rows of all matrices of a tensor are numbered
  // through.
  virtual void read(int64_t row, std::byte* out) const = 0;
};

}  // namespace kvasir
