// Folders of Gemma 4. Internal to this folder.
#pragma once

#include "model/folders/folder_config.h"

namespace kvasir {

inline constexpr TensorName kGemma4Norms[] = {
    {"input_layernorm", "attn_norm"},
    {"post_attention_layernorm", "post_attention_norm"},
    {"pre_feedforward_layernorm", "ffn_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
    {"layer_scalar", "layer_output_scale.weight"},
};

void describe_gemma4(FolderConfig& c);

}  // namespace kvasir
