// Folders whose matrices are quantised as published ones are, packed by a second hand.
#pragma once

#include <cstdint>
#include <string>

#include "support/tiny_folder.h"

namespace kvasir::test {

struct FolderQuantizing {
  std::string form;        // "awq", "gptq", "gptq_v2", "packed", "bytes"; "fp8_blocks", "fp8_rows", "fp8_one"
  int bits = 4;            // of integers
  int64_t group = 32;      // of integers: inputs with one scale
  bool in_middle = false;  // all zero points are half of what a code can be; as signed bytes have them
  bool in_order = true;    // false: g_idx deals inputs to groups by turns
  std::string type = "F16";  // of the scales
  bool output_too = false;   // lm_head
};

// The field "quantization_config": its members, as JSON.
std::string quantization_config_of(const FolderQuantizing& how);

struct QuantizedFolder {
  TinyFolder folder;
  TinyFolder plain;  // its values in F32
};
// Quantises what linear layers have, but for routers. REQUIRES: weights of BF16, whole groups.
QuantizedFolder quantize_folder(const TinyFolder& from, const FolderQuantizing& how);

}  // namespace kvasir::test
