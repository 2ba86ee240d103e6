// Writes a container as a GGUF file, version 3: header first, then tensor by tensor.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/files/gguf.h"

namespace kvasir {

// A tensor to be written: what GgufTensor says of it, without the data.
struct GgufTensorInfo {
  std::string_view name;
  const GgufTensorType* type = nullptr;
  uint32_t dimensions = 0;
  std::array<uint64_t, 4> shape = {1, 1, 1, 1};
  uint64_t bytes() const;  // that type and shape imply
};

// Takes the bytes of a tensor, part after part.
using GgufSink = std::function<Status(std::span<const std::byte>)>;

// Writes keys and values of `metadata` (its tensors are not looked at), the infos, and the data that
// `write_tensor` hands over for each, in order; data is aligned to 32 bytes, and general.alignment is left
// out. The file appears at `path` when it is complete (FileReplacement); after an error there is none, or the
// one that was there. kIo: it cannot be written. Errors of write_tensor are passed on. REQUIRES: write_tensor
// gives exactly bytes().
Status write_gguf(const std::string& path, const Gguf& metadata, std::span<const GgufTensorInfo> tensors,
                  const std::function<Status(size_t index, const GgufSink& sink)>& write_tensor);

}  // namespace kvasir
