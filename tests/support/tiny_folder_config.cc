#include "support/tiny_folder_config.h"

#include <algorithm>
#include <string>

namespace kvasir::test {
namespace {

using nlohmann::json;

json common_config(const TinyLlamaShape& s) {
  return {{"hidden_size", s.dim},
          {"intermediate_size", s.ffn},
          {"num_hidden_layers", s.layers},
          {"num_attention_heads", s.heads},
          {"num_key_value_heads", s.kv_heads},
          {"head_dim", s.head_dim},
          {"max_position_embeddings", s.context},
          {"vocab_size", s.vocab},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", s.rope_base},
          {"tie_word_embeddings", s.tied},
          {"torch_dtype", "bfloat16"},
          {"bos_token_id", 1},
          {"eos_token_id", 2}};
}

json opt_config(const TinyLlamaShape& s) {
  return {{"hidden_size", s.dim},
          {"ffn_dim", s.ffn},
          {"num_hidden_layers", s.layers},
          {"num_attention_heads", s.heads},
          {"num_key_value_heads", s.kv_heads},  // no field of OPT's, but the tiny model has fewer
          {"max_position_embeddings", s.context},
          {"vocab_size", s.vocab},
          {"word_embed_proj_dim", s.dim},
          {"activation_function", "relu"},
          {"do_layer_norm_before", true},
          {"tie_word_embeddings", s.tied}};
}

void add_experts(json& out, const TinyLlamaShape& s) {
  const std::string& name = s.architecture;
  out["num_experts_per_tok"] = s.experts_used;
  if (name == "gpt-oss") {
    out.erase("rope_theta");
    const auto is_mxfp4 = [](const auto& part) { return part.second == ops::WeightType::kMxfp4; };
    if (std::any_of(s.other_types.begin(), s.other_types.end(), is_mxfp4)) {
      out["quantization_config"] = {{"quant_method", "mxfp4"},
                                    {"modules_to_not_convert", json::array({"lm_head"})}};
    }
    out.update({{"model_type", "gpt_oss"},
                {"num_local_experts", s.experts},
                {"intermediate_size", s.expert_ffn},
                {"sliding_window", s.window},
                {"swiglu_limit", 7.0},
                {"rope_parameters",
                 {{"rope_type", "yarn"},
                  {"rope_theta", s.rope_base},
                  {"factor", 32.0},
                  {"beta_fast", 32.0},
                  {"beta_slow", 1.0},
                  {"truncate", false},
                  {"original_max_position_embeddings", 100}}}});
  } else if (name == "llama4") {
    out.update({{"model_type", "llama4_text"},
                {"num_local_experts", s.experts},
                {"intermediate_size", s.expert_ffn},
                {"intermediate_size_mlp", s.ffn},
                {"interleave_moe_layer_step", s.expert_step},
                {"attn_scale", 0.3},
                {"floor_scale", 100}});
  } else if (name == "llama" || name == "granitemoe") {
    out.update({{"model_type", name == "llama" ? "mixtral" : "granitemoeshared"},
                {"num_local_experts", s.experts},
                {"intermediate_size", s.expert_ffn}});
    if (s.shared_ffn > 0) out["shared_intermediate_size"] = s.shared_ffn;
  } else if (name == "olmoe") {
    out.update({{"num_experts", s.experts}, {"intermediate_size", s.expert_ffn}, {"norm_topk_prob", false}});
  } else if (name == "deepseek2") {
    const bool v3 = s.q_rank > 0;
    out.erase("head_dim");
    out.update({{"model_type", v3 ? "deepseek_v3" : "deepseek_v2"},
                {"num_key_value_heads", s.heads},
                {"rms_norm_eps", 1e-6},
                {"kv_lora_rank", s.kv_rank},
                {"q_lora_rank", v3 ? json(s.q_rank) : json()},
                {"qk_nope_head_dim", s.head_dim - s.rope_dim},
                {"qk_rope_head_dim", s.rope_dim},
                {"v_head_dim", s.value_dim},
                {"n_routed_experts", s.experts},
                {"moe_intermediate_size", s.expert_ffn},
                {"n_shared_experts", s.shared_ffn / s.expert_ffn},
                {"n_group", s.expert_groups},
                {"topk_group", s.expert_groups_used},
                {"first_k_dense_replace", s.dense_layers},
                {"routed_scaling_factor", 1.5},
                {"norm_topk_prob", v3},
                {"topk_method", v3 ? "noaux_tc" : "group_limited_greedy"}});
    if (v3) {
      out["rope_scaling"] = {{"type", "yarn"},
                             {"factor", 16.0},
                             {"mscale", 1.0},
                             {"mscale_all_dim", 1.0},
                             {"original_max_position_embeddings", 100}};
    }
  } else if (name == "dots1") {
    out.update({{"n_routed_experts", s.experts},
                {"moe_intermediate_size", s.expert_ffn},
                {"n_shared_experts", s.shared_ffn / s.expert_ffn},
                {"n_group", s.expert_groups},
                {"topk_group", s.expert_groups_used},
                {"first_k_dense_replace", s.dense_layers},
                {"routed_scaling_factor", 1.5},
                {"norm_topk_prob", true},
                {"sliding_window", nullptr}});
  } else if (name == "qwen3next") {
    out.update({{"model_type", "qwen3_next"},
                {"num_experts", s.experts},
                {"moe_intermediate_size", s.expert_ffn},
                {"shared_expert_intermediate_size", s.shared_ffn},
                {"norm_topk_prob", true},
                {"partial_rotary_factor", 0.5},
                {"linear_num_key_heads", s.key_heads},
                {"linear_num_value_heads", s.value_heads},
                {"linear_key_head_dim", s.key_dim},
                {"linear_value_head_dim", s.value_dim},
                {"linear_conv_kernel_dim", 4}});
  } else if (name == "qwen35moe") {
    out.erase("intermediate_size");
    out.update({{"num_experts", s.experts},
                {"moe_intermediate_size", s.expert_ffn},
                {"shared_expert_intermediate_size", s.shared_ffn}});
  } else {
    const bool two = name == "qwen2moe";
    out.update({{"model_type", two ? "qwen2_moe" : "qwen3_moe"},
                {"num_experts", s.experts},
                {"moe_intermediate_size", s.expert_ffn},
                {"norm_topk_prob", !two}});
    if (two) out["shared_expert_intermediate_size"] = s.shared_ffn;
  }
}

void add_gemma4(json& out, const TinyLlamaShape& s) {
  out.erase("rope_theta");
  json types = json::array();
  for (int32_t l = 0; l < s.layers; ++l) types.push_back(l % 2 == 0 ? "sliding_attention" : "full_attention");
  const json full = {{"rope_type", "proportional"},
                     {"partial_rotary_factor", 0.25},
                     {"rope_theta", s.rope_base}},
             sliding = {{"rope_type", "default"}, {"rope_theta", 10000.0}};
  out.update({{"model_type", "gemma4_text"},
              {"hidden_activation", "gelu_pytorch_tanh"},
              {"head_dim", s.window_head_dim},
              {"global_head_dim", s.head_dim},
              {"num_key_value_heads", s.window_kv_heads},
              {"num_global_key_value_heads", s.kv_heads},
              {"attention_k_eq_v", true},
              {"hidden_size_per_layer_input", 0},
              {"sliding_window", s.window},
              {"layer_types", types},
              {"rope_parameters", {{"full_attention", full}, {"sliding_attention", sliding}}}});
}

}  // namespace

nlohmann::json tiny_folder_config(const TinyLlamaShape& s) {
  const std::string& name = s.architecture;
  json out = name == "opt" ? opt_config(s) : common_config(s);
  out["model_type"] = name == "gemma3" ? "gemma3_text" : name == "mistral3" ? "ministral3" : name;
  out["architectures"] = json::array({"AnyForCausalLM"});
  if (name == "gemma2" || name == "gemma3") {
    out["hidden_activation"] = "gelu_pytorch_tanh";
    out["query_pre_attn_scalar"] = s.head_dim;
    out["sliding_window"] = s.window;
  } else if (name != "opt" && name != "gemma4") {
    out["hidden_act"] = "silu";
  }
  if (name == "gemma2") out.update({{"attn_logit_softcapping", 50.0}, {"final_logit_softcapping", 30.0}});
  if (name == "gemma3") out["rope_local_base_freq"] = 10000.0;
  if (name == "gemma4") add_gemma4(out, s);
  if (name == "llama" && s.window > 0) out.update({{"model_type", "mistral"}, {"sliding_window", s.window}});
  if (name == "llama" && s.qkv_bias) out["attention_bias"] = true;
  if (s.rope_linear_factor != 1) out["rope_scaling"] = {{"type", "linear"}, {"factor", s.rope_linear_factor}};
  if (name == "mistral3") {
    out.erase("rope_theta");
    out["rope_parameters"] = {{"rope_type", "yarn"},
                              {"rope_theta", s.rope_base},
                              {"factor", 16.0},
                              {"original_max_position_embeddings", 100},
                              {"mscale", 1.0},
                              {"mscale_all_dim", 1.0},
                              {"llama_4_scaling_beta", 0.3}};
  }
  if (name == "glm4") out["partial_rotary_factor"] = 0.5;
  if (name == "cohere2") {
    out.erase("rms_norm_eps");
    out.update({{"layer_norm_eps", 1e-5}, {"logit_scale", 0.5}, {"sliding_window", s.window}});
  }
  if (name == "phi3") out.update({{"partial_rotary_factor", 0.5}, {"sliding_window", s.window}});
  if (s.experts > 0) add_experts(out, s);
  if (name.starts_with("qwen35")) {
    out.erase("rope_theta");
    out.update({{"model_type", name == "qwen35" ? "qwen3_5_text" : "qwen3_5_moe_text"},
                {"attn_output_gate", true},
                {"mamba_ssm_dtype", "float32"},
                {"mtp_num_hidden_layers", 1},
                {"full_attention_interval", 4},
                {"linear_num_key_heads", s.key_heads},
                {"linear_num_value_heads", s.value_heads},
                {"linear_key_head_dim", s.key_dim},
                {"linear_value_head_dim", s.value_dim},
                {"rope_parameters",
                 {{"rope_type", "default"},
                  {"rope_theta", s.rope_base},
                  {"partial_rotary_factor", 0.5},
                  {"mrope_interleaved", true},
                  {"mrope_section", {3, 3, 2}}}}});
  }
  if (name == "granite" || name == "granitemoe") {
    out.update({{"attention_multiplier", 0.125},
                {"embedding_multiplier", 1.5},
                {"residual_multiplier", 0.6},
                {"logits_scaling", 0.5}});
  }
  return out;
}

}  // namespace kvasir::test
