// Folders of DeepSeek-V2 and V3, and of dots.llm1, whose experts are those of V3. Internal to this folder.
#pragma once

#include "model/folders/folder_config.h"

namespace kvasir {

// kv_b_proj becomes attn_k_b and attn_v_b: see latent_rows.h.
inline constexpr TensorName kDeepseekMatrices[] = {
    {"self_attn.q_proj", "attn_q"},      {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
    {"self_attn.o_proj", "attn_output"}, {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},           {"mlp.down_proj", "ffn_down"},
    {"self_attn.q_a_proj", "attn_q_a"},  {"self_attn.q_b_proj", "attn_q_b"},
    {"self_attn.kv_b_proj", "attn_k_b"},
};
inline constexpr TensorName kDeepseekNorms[] = {
    {"input_layernorm", "attn_norm"},
    {"post_attention_layernorm", "ffn_norm"},
    {"self_attn.q_a_layernorm", "attn_q_a_norm"},
    {"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
};
inline constexpr TensorName kDeepseek2Experts[] = {
    {"mlp.gate", "ffn_gate_inp"},
    {"mlp.experts.*.gate_proj", "ffn_gate.*"},
    {"mlp.experts.*.up_proj", "ffn_up.*"},
    {"mlp.experts.*.down_proj", "ffn_down.*"},
    {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
    {"mlp.shared_experts.down_proj", "ffn_down_shexp"},
};
inline constexpr TensorName kDots1Experts[] = {
    {"mlp.gate", "ffn_gate_inp"},
    {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},
    {"mlp.experts.*.gate_proj", "ffn_gate.*"},
    {"mlp.experts.*.up_proj", "ffn_up.*"},
    {"mlp.experts.*.down_proj", "ffn_down.*"},
    {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
    {"mlp.shared_experts.down_proj", "ffn_down_shexp"},
};

void describe_deepseek_v2(FolderConfig& c);
void describe_deepseek_v3(FolderConfig& c);
void describe_dots1(FolderConfig& c);

}  // namespace kvasir
