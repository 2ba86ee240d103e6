// Matrices that a folder has quantised, in several tensors each. Internal to this folder.
//
// Beside the stem of a name, such as "model.layers.0.self_attn.q_proj", with N outputs and K inputs:
//
//   AWQ      qweight [K][N / 8] and qzeros [groups][N / 8] int32, scales [groups][N]
//   GPTQ     qweight [K b / 32][N] and qzeros [groups][N b / 32] int32 of b bits each, scales [groups][N];
//            maybe g_idx [K] int32, the group of each input
//   integers of compressed-tensors
//            weight_packed [N][K b / 32] int32, weight_shape [2], weight_scale [N][groups]; maybe
//            weight_zero_point [N b / 32][groups] int32 and weight_g_idx [K]; or weight [N][K] int8 and
//            weight_scale
//   FP8      weight [N][K] of E4M3 and weight_scale_inv [N / 128][K / 128], or weight_scale for the matrix,
//            each output, or blocks
//
// The facts are those of autoawq 0.2.9, gptqmodel 7.7, compressed-tensors 0.20 and transformers 5.24.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "model/files/gguf_assembler.h"
#include "model/folders/folder_tensors.h"
#include "model/folders/quantization_config.h"

namespace kvasir {

// Puts in the place of each matrix's parts one tensor, "STEM.weight", whose rows are made where it is read.
// Integers become, with the same values: Q4_0 or Q8_0 where all zero points of the folder are in the middle,
// else Z4_128 where groups are multiples of 128, else Z4. Rows of values in the type of the scales, rounded
// to nearest even, where that cannot be: columns in the order of g_idx, 8 bits with zero points, or a scale
// that F16 has not; a warning says so. FP8 becomes BF16. What quantises activations, K and V is left out.
// kCorrupt: a part is missing, there twice, or of a wrong shape or type, or a scale is not finite.
// kUnsupported: inputs, outputs or groups that are no multiples of what blocks have.
Status join_quantized_matrices(const QuantizationConfig& config, std::vector<WeightsFile>& files,
                               GgufAssembler& out, std::vector<std::string>& warnings);

}  // namespace kvasir
