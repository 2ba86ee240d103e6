// The safetensors container: a JSON header that names tensors, then their bytes (Hugging Face's format; its
// specification is in the readme of the package `safetensors`).
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/files/gguf.h"

namespace kvasir {

struct SafetensorsTensor {
  std::string name;
  // type, shape and data; `name` is empty. Dimensions in GGUF's order, the contiguous one first; those beyond
  // the fourth are counted in the fourth. A single value has one dimension of 1.
  GgufTensor tensor;
};

struct SafetensorsFile {
  std::span<const std::byte> header;       // length and JSON
  std::vector<SafetensorsTensor> tensors;  // in the order of the header
};

// Reads and checks the whole header: after it every tensor lies inside `bytes`, has the size that type and
// shape imply, and shares no byte with another. `origin` begins every message. Memory is proportional to the
// header that is there, whatever it claims. kInvalidArgument: not a safetensors file. kCorrupt: inconsistent
// or truncated. kUnsupported: a type of tensor that GGUF does not have.
// REQUIRES: `bytes` outlive the views in the result.
Result<SafetensorsFile> parse_safetensors(std::span<const std::byte> bytes, const std::string& origin);

}  // namespace kvasir
