// Folders of Llama 4. Internal to this folder.
#pragma once

#include "model/folders/folder_config.h"

namespace kvasir {

inline constexpr TensorName kLlama4Matrices[] = {
    {"self_attn.q_proj", "attn_q"},         {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},         {"self_attn.o_proj", "attn_output"},
    {"feed_forward.gate_proj", "ffn_gate"}, {"feed_forward.up_proj", "ffn_up"},
    {"feed_forward.down_proj", "ffn_down"},
};
inline constexpr TensorName kLlama4Experts[] = {
    {"feed_forward.router", "ffn_gate_inp"},
    {"feed_forward.experts.gate_up_proj", "ffn_gate_exps.weight"},
    {"feed_forward.experts.gate_up_proj", "ffn_up_exps.weight"},
    {"feed_forward.experts.down_proj", "ffn_down_exps.weight"},
    {"feed_forward.shared_expert.gate_proj", "ffn_gate_shexp"},
    {"feed_forward.shared_expert.up_proj", "ffn_up_shexp"},
    {"feed_forward.shared_expert.down_proj", "ffn_down_shexp"},
};

void describe_llama4(FolderConfig& c);

}  // namespace kvasir
