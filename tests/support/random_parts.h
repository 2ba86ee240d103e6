// The random tensors of tests/golden/make_folder_goldens.py: matrices that folders have quantised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "support/tiny_folder.h"

namespace kvasir::test {

struct RandomMatrix {
  std::string form;  // "awq", "gptq", "gptq_v2", "packed", "bytes", "fp8_blocks", "fp8_rows", "fp8_one"
  int bits = 4;
  size_t group = 32;         // of integers
  std::string type = "F16";  // of the scales
  std::string more;          // "middle": all zero points are; "order": g_idx deals out the inputs
  bool even_scales = false;  // positive and within a factor of 2
};
constexpr size_t kFp8BlockRows = 32, kFp8BlockColumns = 64;

// The upper bytes of a linear congruential generator that the name starts.
std::vector<std::byte> random_bytes(const std::string& name, size_t count);
// The tensors of one matrix, named STEM.PART and made from SEED.PART.
std::vector<FolderTensor> random_parts(const RandomMatrix& matrix, const std::string& stem,
                                       const std::string& seed, size_t rows, size_t columns);
// "quantization_config" of a folder of such matrices.
std::string quantization_config_of(const RandomMatrix& matrix);

}  // namespace kvasir::test
