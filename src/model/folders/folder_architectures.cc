// The architectures of folders, one row and one function each. Adding one: its row, its function, and a row
// in docs/models.md. They are in one file because a row and its function are read together.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "model/architectures/model_spec.h"
#include "model/folders/folder_config.h"
#include "model/folders/folder_deepseek.h"
#include "model/folders/folder_gemma4.h"
#include "model/folders/folder_llama4.h"

namespace kvasir {
namespace {

// ---------------------------------------------------------------- names of tensors

constexpr TensorName kPhi3Matrices[] = {
    {"self_attn.qkv_proj", "attn_qkv"},
    {"self_attn.o_proj", "attn_output"},
    {"mlp.gate_up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
};
constexpr TensorName kCohere2Norms[] = {{"input_layernorm", "attn_norm"}};
constexpr TensorName kGlm4Matrices[] = {
    {"self_attn.q_proj", "attn_q"},      {"self_attn.k_proj", "attn_k"}, {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"}, {"mlp.gate_up_proj", "ffn_up"}, {"mlp.down_proj", "ffn_down"},
};
constexpr TensorName kGlm4Norms[] = {
    {"input_layernorm", "attn_norm"},
    {"post_self_attn_layernorm", "post_attention_norm"},
    {"post_attention_layernorm", "ffn_norm"},
    {"post_mlp_layernorm", "post_ffw_norm"},
};
constexpr TensorName kOptMatrices[] = {
    {"self_attn.q_proj", "attn_q"},        {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},        {"fc1", "ffn_up"},
    {"self_attn.out_proj", "attn_output"}, {"fc2", "ffn_down"},
};
constexpr TensorName kOptNorms[] = {
    {"self_attn_layer_norm", "attn_norm"},
    {"final_layer_norm", "ffn_norm"},
};
constexpr TensorName kGemma2Norms[] = {
    {"input_layernorm", "attn_norm"},
    {"post_attention_layernorm", "post_attention_norm"},
    {"pre_feedforward_layernorm", "ffn_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
};
constexpr TensorName kOlmo2Norms[] = {
    {"post_attention_layernorm", "post_attention_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
};
constexpr TensorName kQkNorms[] = {
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
};
constexpr TensorName kMixtralExperts[] = {
    {"block_sparse_moe.gate", "ffn_gate_inp"},
    {"block_sparse_moe.experts.*.w1", "ffn_gate.*"},
    {"block_sparse_moe.experts.*.w2", "ffn_down.*"},
    {"block_sparse_moe.experts.*.w3", "ffn_up.*"},
};
constexpr TensorName kGraniteExperts[] = {
    {"block_sparse_moe.router.layer", "ffn_gate_inp"},
    {"block_sparse_moe.input_linear", "ffn_gate_up_exps"},
    {"block_sparse_moe.output_linear", "ffn_down_exps"},
};
constexpr TensorName kGraniteSharedExperts[] = {
    {"block_sparse_moe.router.layer", "ffn_gate_inp"},
    {"block_sparse_moe.input_linear", "ffn_gate_up_exps"},
    {"block_sparse_moe.output_linear", "ffn_down_exps"},
    {"shared_mlp.input_linear", "ffn_up_shexp"},
    {"shared_mlp.output_linear", "ffn_down_shexp"},
};
constexpr TensorName kQwen3Experts[] = {
    {"mlp.gate", "ffn_gate_inp"},
    {"mlp.experts.*.gate_proj", "ffn_gate.*"},
    {"mlp.experts.*.up_proj", "ffn_up.*"},
    {"mlp.experts.*.down_proj", "ffn_down.*"},
};
constexpr TensorName kQwen2Experts[] = {
    {"mlp.gate", "ffn_gate_inp"},
    {"mlp.experts.*.gate_proj", "ffn_gate.*"},
    {"mlp.experts.*.up_proj", "ffn_up.*"},
    {"mlp.experts.*.down_proj", "ffn_down.*"},
    {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
    {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
    {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
};
constexpr TensorName kQwenNextRecurrence[] = {
    {"linear_attn.in_proj_qkvz", "ssm_in"}, {"linear_attn.in_proj_ba", "ssm_ba"},
    {"linear_attn.conv1d", "ssm_conv1d"},   {"linear_attn.A_log", "ssm_a.weight"},
    {"linear_attn.dt_bias", "ssm_dt.bias"}, {"linear_attn.norm", "ssm_norm"},
    {"linear_attn.out_proj", "ssm_out"},
};
constexpr TensorName kQwen35Recurrence[] = {
    {"linear_attn.in_proj_qkv", "attn_qkv"}, {"linear_attn.in_proj_z", "attn_gate"},
    {"linear_attn.in_proj_b", "ssm_beta"},   {"linear_attn.in_proj_a", "ssm_alpha"},
    {"linear_attn.conv1d", "ssm_conv1d"},    {"linear_attn.A_log", "ssm_a.weight"},
    {"linear_attn.dt_bias", "ssm_dt.bias"},  {"linear_attn.norm", "ssm_norm"},
    {"linear_attn.out_proj", "ssm_out"},
};
constexpr TensorName kGptOssNorms[] = {
    {"input_layernorm", "attn_norm"},
    {"post_attention_layernorm", "post_attention_norm"},
};
constexpr TensorName kSinks[] = {{"self_attn.sinks", "attn_sinks.weight"}};
constexpr TensorName kGptOssExperts[] = {
    {"mlp.router", "ffn_gate_inp"},
    {"mlp.experts.gate_up_proj", "ffn_gate_exps.weight"},
    {"mlp.experts.gate_up_proj", "ffn_up_exps.weight"},
    {"mlp.experts.gate_up_proj_bias", "ffn_gate_exps.bias"},
    {"mlp.experts.gate_up_proj_bias", "ffn_up_exps.bias"},
    {"mlp.experts.down_proj", "ffn_down_exps.weight"},
    {"mlp.experts.down_proj_bias", "ffn_down_exps.bias"},
};
constexpr TensorName kOptModelTensors[] = {
    {"embed_tokens.weight", "token_embd.weight"},
    {"embed_positions.weight", "position_embd.weight"},
    {"final_layer_norm.weight", "output_norm.weight"},
    {"final_layer_norm.bias", "output_norm.bias"},
};

// ---------------------------------------------------------------- configurations

// Sizes, RMSNorm, SiLU.
void describe_common(FolderConfig& c) {
  c.read_sizes();
  c.read_rms_epsilon();
  c.require_activation("hidden_act", "silu");
  c.fields.refuse("mlp_bias");
}

std::vector<bool> all_layers(const FolderConfig& c, bool windowed) {
  return std::vector<bool>(static_cast<size_t>(c.layers), windowed);
}

void describe_llama(FolderConfig& c) {
  describe_common(c);
  c.read_attention_bias();
  c.read_rope();
}

// Mistral and Ministral: a window in all layers, or in those that "layer_types" says. transformers' Mistral
// does not look at these types.
void describe_mistral(FolderConfig& c) {
  describe_common(c);
  c.read_rope();
  if (c.architecture.model_type != "ministral") c.fields.refuse("layer_types");
  c.write_windows(c.sliding_window(), all_layers(c, true));
}

// Layers from "max_window_layers" on have a window, where it is switched on at all.
void describe_qwen(FolderConfig& c) {
  describe_common(c);
  c.read_rope();
  const bool used = c.fields.flag("use_sliding_window", false);
  const int64_t window = used ? c.sliding_window() : 0;
  const int64_t first = c.fields.integer("max_window_layers", 0, INT32_MAX).value_or(28);
  std::vector<bool> windowed;
  for (int64_t l = 0; l < c.layers; ++l) windowed.push_back(l >= first);
  c.write_windows(window, windowed);
  c.fields.ignore({"sliding_window"});
}

void describe_qwen2(FolderConfig& c) {
  describe_qwen(c);
  c.biases = {"attn_q", "attn_k", "attn_v"};
}

void describe_qwen3(FolderConfig& c) {
  describe_qwen(c);
  c.read_attention_bias();
}

void describe_gemma(FolderConfig& c) {
  c.read_sizes();
  c.read_rms_epsilon();
  // "hidden_act" is in old files and is not used.
  c.fields.ignore({"hidden_act"});
  c.require_activation("hidden_activation", "gelu_pytorch_tanh");
  c.read_attention_bias();
  c.fields.refuse("use_bidirectional_attention");
  const double length = c.fields.number("query_pre_attn_scalar").value_or(256);
  c.out.set_f32("kvasir.query_pre_attn_scalar", static_cast<float>(length));
}

// null: no cap.
void write_cap(FolderConfig& c, std::string_view field, double otherwise) {
  const double cap = c.fields.is_null(field) ? 0 : c.fields.number(field).value_or(otherwise);
  c.out.set_f32(c.key(field), static_cast<float>(cap));
}

void describe_gemma2(FolderConfig& c) {
  describe_gemma(c);
  c.read_rope();
  write_cap(c, "attn_logit_softcapping", 50);
  write_cap(c, "final_logit_softcapping", 30);
  std::vector<bool> windowed;
  for (int64_t l = 0; l < c.layers; ++l) windowed.push_back(l % 2 == 0);
  c.write_windows(c.sliding_window(), windowed);
}

void describe_gemma3(FolderConfig& c) {
  describe_gemma(c);
  c.read_two_ropes();
  c.fields.refuse("attn_logit_softcapping");
  write_cap(c, "final_logit_softcapping", 0);
  auto pattern = c.fields.integer("sliding_window_pattern", 1, INT32_MAX);
  if (const auto own = c.fields.integer("_sliding_window_pattern", 1, INT32_MAX); !pattern) pattern = own;
  std::vector<bool> windowed;
  for (int64_t l = 0; l < c.layers; ++l) windowed.push_back((l + 1) % pattern.value_or(6) != 0);
  c.write_windows(c.sliding_window(), windowed);
}

void describe_phi3(FolderConfig& c) {
  describe_common(c);
  c.read_rope();
  c.write_windows(c.sliding_window(), all_layers(c, true));
}

// Layers with a window have RoPE, the others have none. Published files say by other names, too, what all of
// them have.
void describe_cohere2(FolderConfig& c) {
  c.read_sizes();
  const double epsilon = c.fields.number("layer_norm_eps").value_or(1e-5);
  c.out.set_f32(c.key("attention.layer_norm_epsilon"), static_cast<float>(epsilon));
  c.require_activation("hidden_act", "silu");
  c.read_attention_bias();
  c.read_rope();
  const double scale = c.fields.number("logit_scale").value_or(0.0625);
  c.out.set_f32(c.key("logit_scale"), static_cast<float>(scale));
  const int64_t period = c.fields.integer("sliding_window_pattern", 1, INT32_MAX).value_or(4);
  std::vector<bool> windowed;
  for (int64_t l = 0; l < c.layers; ++l) windowed.push_back((l + 1) % period != 0);
  const int64_t window = c.sliding_window();
  if (window == 0) c.fields.unsupported("sliding_window", "where a whole number is needed");
  c.write_windows(window, windowed);
  c.fields.ignore({"layer_switch", "order_of_interleaved_layers", "position_embedding_type", "rotary_pct",
                   "use_embedding_sharing", "use_gated_activation", "use_parallel_block",
                   "use_parallel_embedding"});
}

void describe_glm4(FolderConfig& c) {
  describe_common(c);
  c.read_rope();
  if (c.fields.flag("attention_bias", true)) c.biases = {"attn_q", "attn_k", "attn_v"};
}

// Layers without RoPE may have a window.
void describe_smollm3(FolderConfig& c) {
  describe_common(c);
  c.read_attention_bias();
  c.read_rope();
  std::vector<bool> windowed = c.read_turned_layers();
  windowed.flip();
  const bool used = c.fields.flag("use_sliding_window", false);
  c.write_windows(used ? c.sliding_window() : 0, windowed);
  c.fields.ignore({"sliding_window"});
}

bool is_any_layer(int64_t) {
  return true;
}

void describe_granite(FolderConfig& c) {
  describe_llama(c);
  for (const auto& [field, name] : {std::pair{"attention_multiplier", "attention.scale"},
                                    {"embedding_multiplier", "embedding_scale"},
                                    {"residual_multiplier", "residual_scale"},
                                    {"logits_scaling", "logit_scale"}}) {
    const double value = c.fields.number(field).value_or(1);
    if (value == 0) c.fields.unsupported(field, "which is not supported; use another model");
    c.out.set_f32(c.key(name), static_cast<float>(value));
  }
}

void describe_mixtral(FolderConfig& c) {
  describe_common(c);
  c.read_rope();
  c.fields.refuse("layer_types");
  c.write_windows(c.sliding_window(), all_layers(c, true));
  c.read_experts("num_local_experts", "");
  c.write_expert_layers(is_any_layer);
}

void describe_granitemoe(FolderConfig& c) {
  describe_granite(c);
  c.read_experts("num_local_experts", "");
  c.write_expert_layers(is_any_layer);
}

void describe_granitemoeshared(FolderConfig& c) {
  describe_granitemoe(c);
  const int64_t shared = c.fields.integer("shared_intermediate_size", 0, INT32_MAX).value_or(0);
  c.shared_expert = shared > 0;
  c.out.set_u32(c.key("expert_shared_feed_forward_length"), static_cast<uint32_t>(shared));
}

void describe_olmoe(FolderConfig& c) {
  describe_llama(c);
  c.fields.refuse("clip_qkv");
  c.read_experts("num_experts", "");
  c.out.set_bool("kvasir.expert_weights_norm", c.fields.flag("norm_topk_prob", false));
  c.write_expert_layers(is_any_layer);
}

// Every so many layers, but for those that are named, have experts.
void write_sparse_layers(FolderConfig& c) {
  const int64_t step = c.fields.integer("decoder_sparse_step", 1, INT32_MAX).value_or(1);
  const auto without = c.fields.integers("mlp_only_layers").value_or(std::vector<int64_t>());
  c.write_expert_layers([&](int64_t layer) {
    return (layer + 1) % step == 0 && std::find(without.begin(), without.end(), layer) == without.end();
  });
}

void describe_qwen_moe(FolderConfig& c) {
  describe_common(c);
  c.read_rope();
  c.fields.refuse("use_sliding_window");
  c.fields.ignore({"sliding_window", "max_window_layers", "layer_types"});
  c.read_experts(c.fields.has("num_experts") ? "num_experts" : "num_local_experts", "moe_intermediate_size");
  c.out.set_bool("kvasir.expert_weights_norm", c.fields.flag("norm_topk_prob", false));
  write_sparse_layers(c);
}

void describe_qwen2moe(FolderConfig& c) {
  describe_qwen_moe(c);
  const int64_t shared = c.fields.integer("shared_expert_intermediate_size", 1, INT32_MAX).value_or(5632);
  c.out.set_u32(c.key("expert_shared_feed_forward_length"), static_cast<uint32_t>(shared));
  if (c.fields.flag("qkv_bias", true)) c.biases = {"attn_q", "attn_k", "attn_v"};
}

void describe_qwen3moe(FolderConfig& c) {
  describe_qwen_moe(c);
  c.read_attention_bias();
}

void describe_qwen_hybrid(FolderConfig& c) {
  describe_common(c);
  c.read_rope();
  c.fields.refuse("attention_bias");
  c.read_recurrence();
}

void write_shared_expert(FolderConfig& c) {
  const int64_t shared = c.fields.integer("shared_expert_intermediate_size", 1, INT32_MAX).value_or(512);
  c.out.set_u32(c.key("expert_shared_feed_forward_length"), static_cast<uint32_t>(shared));
}

void describe_qwen3next(FolderConfig& c) {
  describe_qwen_hybrid(c);
  c.fields.refuse("use_sliding_window");
  c.fields.ignore({"sliding_window", "max_window_layers"});
  c.read_experts("num_experts", "moe_intermediate_size");
  write_shared_expert(c);
  c.out.set_bool("kvasir.expert_weights_norm", c.fields.flag("norm_topk_prob", true));
  write_sparse_layers(c);
}

// Qwen3-Next's parts, of which a configuration may say whether they are there. States are kept in f32
// whatever "mamba_ssm_dtype" is.
void describe_qwen35_layers(FolderConfig& c) {
  describe_qwen_hybrid(c);
  if (!c.fields.flag("attn_output_gate", true)) {
    c.fields.unsupported("attn_output_gate", "and attention without a gate is not supported");
  }
  c.fields.refuse("mlp_only_layers");
  c.fields.ignore({"mamba_ssm_dtype", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"});
}

void describe_qwen35(FolderConfig& c) {
  describe_qwen35_layers(c);
  c.fields.refuse("num_experts");
}

// All layers have experts, whose weights have the sum 1.
void describe_qwen35moe(FolderConfig& c) {
  describe_qwen35_layers(c);
  if (!c.fields.flag("norm_topk_prob", true)) {
    c.fields.unsupported("norm_topk_prob", "where only true is supported");
  }
  c.read_experts("num_experts", "moe_intermediate_size");
  write_shared_expert(c);
  c.write_expert_layers(is_any_layer);
}

// Windows in every other layer, the first one has one. Only one slope and one limit of the activation
// function are supported.
void describe_gpt_oss(FolderConfig& c) {
  describe_common(c);
  // transformers' default is YaRN, and all published folders give it.
  if (!c.fields.has("rope_parameters") && !c.fields.has("rope_scaling")) {
    c.fields.unsupported("rope_scaling", "where an object is needed; use another model");
  }
  c.read_rope();
  std::vector<bool> windowed;
  for (int64_t l = 0; l < c.layers; ++l) windowed.push_back(l % 2 == 0);
  c.write_windows(c.sliding_window(), windowed);
  c.read_experts("num_local_experts", "intermediate_size");
  c.write_expert_layers(is_any_layer);
  for (const auto& [field, wanted] :
       {std::pair{"swiglu_alpha", double{kSwigluSlope}}, {"swiglu_limit", double{kSwigluLimit}}}) {
    const double found = c.fields.number(field).value_or(wanted);
    if (std::fabs(found - wanted) > 1e-6) {
      c.fields.unsupported(field, fmt::format("where only {:.4g} is supported; use another model", wanted));
    }
  }
  c.biases = {"ffn_gate_inp"};
  if (c.fields.flag("attention_bias", true)) {
    c.biases.insert(c.biases.end(), {"attn_q", "attn_k", "attn_v", "attn_output"});
  }
  c.fields.ignore({"experts_per_token", "initial_context_length"});
}

void describe_opt(FolderConfig& c) {
  c.read_sizes();
  c.out.set_f32(c.key("attention.layer_norm_epsilon"), 1e-5F);  // PyTorch's default: it cannot be configured
  c.require_activation("activation_function", "relu");
  if (!c.fields.flag("do_layer_norm_before", true)) {
    c.fields.unsupported("do_layer_norm_before",
                         "and norms after attention and feed-forward are not supported");
  }
  c.fields.refuse("_remove_final_layer_norm");
  if (!c.fields.flag("layer_norm_elementwise_affine", true)) {
    c.fields.unsupported("layer_norm_elementwise_affine", "and norms without weights are not supported");
  }
  if (const auto narrow = c.fields.integer("word_embed_proj_dim", 1, INT32_MAX);
      narrow && narrow != c.fields.integer("hidden_size", 1, INT32_MAX)) {
    c.fields.unsupported("word_embed_proj_dim",
                         "not hidden_size, and projections of the embedding are not supported");
  }
  c.biases = {"attn_norm", "ffn_norm"};
  if (c.fields.flag("enable_bias", true)) {
    c.biases.insert(c.biases.end(), {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down"});
  }
}

// ---------------------------------------------------------------- the table

// Sorted by model_type.
const FolderArchitecture kArchitectures[] = {
    {.model_type = "cohere2",
     .name = "cohere2",
     .defaults = {.sliding_window = 4096, .tie_word_embeddings = true},
     .describe = describe_cohere2,
     .norms = kCohere2Norms,
     .turns_neighbours = true},
    {.model_type = "deepseek_v2",
     .name = "deepseek2",
     .defaults = {},
     .describe = describe_deepseek_v2,
     .matrices = kDeepseekMatrices,
     .norms = kDeepseekNorms,
     .experts = kDeepseek2Experts,
     .turns_neighbours = true},
    {.model_type = "deepseek_v3",
     .name = "deepseek2",
     .defaults = {},
     .describe = describe_deepseek_v3,
     .matrices = kDeepseekMatrices,
     .norms = kDeepseekNorms,
     .experts = kDots1Experts,
     .turns_neighbours = true},
    {.model_type = "dots1",
     .name = "dots1",
     .defaults = {.sliding_window = 4096},
     .describe = describe_dots1,
     .in_attention = kQkNorms,
     .experts = kDots1Experts},
    {.model_type = "gemma2",
     .name = "gemma2",
     .defaults = {.num_key_value_heads = 4,
                  .head_dim = 256,
                  .max_position_embeddings = 8192,
                  .sliding_window = 4096,
                  .tie_word_embeddings = true},
     .describe = describe_gemma2,
     .norms = kGemma2Norms,
     .norms_less_one = true},
    // Wrappers leave out of their text_config what is the default.
    {.model_type = "gemma3_text",
     .name = "gemma3",
     .defaults = {.hidden_size = 2304,
                  .intermediate_size = 9216,
                  .num_hidden_layers = 26,
                  .num_attention_heads = 8,
                  .num_key_value_heads = 4,
                  .head_dim = 256,
                  .max_position_embeddings = 131072,
                  .vocab_size = 262208,
                  .sliding_window = 4096,
                  .rope_theta = 1e6,
                  .tie_word_embeddings = true},
     .describe = describe_gemma3,
     .norms = kGemma2Norms,
     .in_attention = kQkNorms,
     .norms_less_one = true},
    {.model_type = "gemma4_text",
     .name = "gemma4",
     .defaults = {.hidden_size = 2304,
                  .intermediate_size = 9216,
                  .num_hidden_layers = 30,
                  .num_attention_heads = 8,
                  .num_key_value_heads = 4,
                  .max_position_embeddings = 131072,
                  .vocab_size = 262144,
                  .sliding_window = 512,
                  .tie_word_embeddings = true},
     .describe = describe_gemma4,
     .norms = kGemma4Norms,
     .in_attention = kQkNorms},
    {.model_type = "glm4",
     .name = "glm4",
     .defaults = {.num_key_value_heads = 2,
                  .head_dim = 128,
                  .max_position_embeddings = 131072,
                  .rms_norm_eps = 1.5625e-7,
                  .partial_rotary_factor = 0.5},
     .describe = describe_glm4,
     .matrices = kGlm4Matrices,
     .norms = kGlm4Norms,
     .turns_neighbours = true},
    {.model_type = "gpt_oss",
     .name = "gpt-oss",
     .defaults = {.num_key_value_heads = 8,
                  .head_dim = 64,
                  .max_position_embeddings = 131072,
                  .sliding_window = 128,
                  .rms_norm_eps = 1e-5,
                  .rope_theta = 150000},
     .describe = describe_gpt_oss,
     .norms = kGptOssNorms,
     .in_attention = kSinks,
     .experts = kGptOssExperts,
     .stacked_experts = true},
    {.model_type = "granite", .name = "granite", .defaults = {}, .describe = describe_granite},
    {.model_type = "granitemoe",
     .name = "granitemoe",
     .defaults = {},
     .describe = describe_granitemoe,
     .experts = kGraniteExperts},
    {.model_type = "granitemoeshared",
     .name = "granitemoe",
     .defaults = {},
     .describe = describe_granitemoeshared,
     .experts = kGraniteSharedExperts},
    {.model_type = "llama", .name = "llama", .defaults = {}, .describe = describe_llama},
    {.model_type = "llama4_text",
     .name = "llama4",
     .defaults = {.num_key_value_heads = 8,
                  .head_dim = 128,
                  .max_position_embeddings = 131072,
                  .rms_norm_eps = 1e-5,
                  .rope_theta = 500000},
     .describe = describe_llama4,
     .matrices = kLlama4Matrices,
     .experts = kLlama4Experts,
     .turns_neighbours = true,
     .stacked_experts = true},
    {.model_type = "ministral",
     .name = "llama",
     .defaults = {.num_key_value_heads = 8, .sliding_window = 4096},
     .describe = describe_mistral},
    {.model_type = "ministral3",
     .name = "mistral3",
     .defaults = {.num_key_value_heads = 8, .head_dim = 128, .rms_norm_eps = 1e-5, .rope_theta = 1e6},
     .describe = describe_mistral},
    {.model_type = "mistral",
     .name = "llama",
     .defaults = {.num_key_value_heads = 8, .sliding_window = 4096},
     .describe = describe_mistral},
    {.model_type = "mixtral",
     .name = "llama",
     .defaults = {.num_key_value_heads = 8, .rms_norm_eps = 1e-5, .rope_theta = 1e6},
     .describe = describe_mixtral,
     .experts = kMixtralExperts},
    {.model_type = "olmo2",
     .name = "olmo2",
     .defaults = {.rms_norm_eps = 1e-5},
     .describe = describe_llama,
     .norms = kOlmo2Norms,
     .in_attention = kQkNorms},
    {.model_type = "olmoe",
     .name = "olmoe",
     .defaults = {.rms_norm_eps = 1e-5},
     .describe = describe_olmoe,
     .in_attention = kQkNorms,
     .experts = kQwen3Experts},
    {.model_type = "opt",
     .name = "opt",
     .defaults = {.tie_word_embeddings = true},
     .describe = describe_opt,
     .matrices = kOptMatrices,
     .norms = kOptNorms,
     .model_tensors = kOptModelTensors},
    {.model_type = "phi3",
     .name = "phi3",
     .defaults = {.rms_norm_eps = 1e-5},
     .describe = describe_phi3,
     .matrices = kPhi3Matrices},
    {.model_type = "qwen2",
     .name = "qwen2",
     .defaults = {.num_key_value_heads = 32, .sliding_window = 4096},
     .describe = describe_qwen2},
    {.model_type = "qwen2_moe",
     .name = "qwen2moe",
     .defaults = {.num_key_value_heads = 16},
     .describe = describe_qwen2moe,
     .experts = kQwen2Experts},
    {.model_type = "qwen3",
     .name = "qwen3",
     .defaults = {.num_key_value_heads = 32, .head_dim = 128, .sliding_window = 4096},
     .describe = describe_qwen3,
     .in_attention = kQkNorms},
    {.model_type = "qwen3_5_moe_text",
     .name = "qwen35moe",
     .defaults = {.hidden_size = 2048,
                  .num_hidden_layers = 40,
                  .num_attention_heads = 16,
                  .num_key_value_heads = 2,
                  .head_dim = 256,
                  .max_position_embeddings = 32768,
                  .vocab_size = 248320,
                  .partial_rotary_factor = 0.25},
     .describe = describe_qwen35moe,
     .norms = kGptOssNorms,
     .in_attention = kQkNorms,
     .experts = kQwen2Experts,
     .recurrence = kQwen35Recurrence,
     .norms_less_one = true,
     .joined_experts = true,
     .heads_by_turns = true},
    {.model_type = "qwen3_5_text",
     .name = "qwen35",
     .defaults = {.hidden_size = 4096,
                  .intermediate_size = 12288,
                  .num_hidden_layers = 32,
                  .num_attention_heads = 16,
                  .num_key_value_heads = 4,
                  .head_dim = 256,
                  .max_position_embeddings = 32768,
                  .vocab_size = 248320,
                  .partial_rotary_factor = 0.25},
     .describe = describe_qwen35,
     .norms = kGptOssNorms,
     .in_attention = kQkNorms,
     .recurrence = kQwen35Recurrence,
     .norms_less_one = true,
     .heads_by_turns = true},
    {.model_type = "qwen3_moe",
     .name = "qwen3moe",
     .defaults = {.num_key_value_heads = 4},
     .describe = describe_qwen3moe,
     .in_attention = kQkNorms,
     .experts = kQwen3Experts},
    {.model_type = "qwen3_next",
     .name = "qwen3next",
     .defaults = {.num_key_value_heads = 2,
                  .head_dim = 256,
                  .max_position_embeddings = 32768,
                  .partial_rotary_factor = 0.25},
     .describe = describe_qwen3next,
     .norms = kGptOssNorms,
     .in_attention = kQkNorms,
     .experts = kQwen2Experts,
     .recurrence = kQwenNextRecurrence,
     .norms_less_one = true},
    {.model_type = "smollm3",
     .name = "smollm3",
     .defaults = {.num_key_value_heads = 4, .rope_theta = 2e6, .tie_word_embeddings = true},
     .describe = describe_smollm3},
};

}  // namespace

std::vector<TensorName> FolderArchitecture::layer_tensors(bool with_experts, bool shared) const {
  std::vector<TensorName> out;
  for (const TensorName& matrix : matrices) {
    if (!with_experts || !matrix.ours.starts_with("ffn_")) out.push_back(matrix);
  }
  for (const auto& part : {norms, in_attention}) out.insert(out.end(), part.begin(), part.end());
  if (!with_experts) return out;
  for (const TensorName& tensor : experts) {
    if (shared || !tensor.ours.ends_with("_shexp")) out.push_back(tensor);
  }
  return out;
}

const FolderArchitecture* find_folder_architecture(std::string_view model_type) {
  for (const FolderArchitecture& a : kArchitectures) {
    if (a.model_type == model_type) return &a;
  }
  return nullptr;
}

std::vector<std::string_view> known_model_types() {
  std::vector<std::string_view> out;
  for (const FolderArchitecture& a : kArchitectures) out.push_back(a.model_type);
  return out;
}

}  // namespace kvasir
