// What "quantization_config" of a config.json says about the weights. Internal to this folder.
//
// Which matrices are quantised, the names of their tensors say; so modules that are left out of it
// ("modules_to_not_convert", "ignore") need not be looked up.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "model/folders/config_fields.h"

namespace kvasir {

enum class FolderQuantization : uint8_t {
  kNone,
  kMxfp4,       // stacked_experts.h
  kAwq,         // 4 bits
  kGptq,        // 4 or 8 bits; zero points are stored less 1
  kGptqV2,      // the same, zero points as they are
  kCompressed,  // compressed-tensors: integers of 4 or 8 bits, or FP8
  kFp8,         // with a scale for the matrix, each output or each block
};

struct QuantizationConfig {
  FolderQuantization kind = FolderQuantization::kNone;
  uint64_t bits = 4;   // of AWQ and GPTQ
  uint64_t group = 0;  // of these: how many inputs have one scale; 0: all
  // Of FP8: which part of a matrix has one scale, where there is more than one for an output.
  uint64_t block_rows = 128, block_columns = 128;
};

// Reads the field of that name, if it is there. kUnsupported names the setting that no code here can read.
Result<QuantizationConfig> read_quantization_config(ConfigFields& fields);

}  // namespace kvasir
