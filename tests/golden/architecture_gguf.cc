// From Hugging Face's names, order and settings to GGUF's, written down apart from the code that is tested.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numbers>

#include "base/check.h"
#include "golden/architecture_golden.h"

namespace kvasir::test {
namespace {

using nlohmann::json;
using Names = std::pair<std::string_view, std::string_view>;  // Hugging Face's, GGUF's

constexpr Names kArchitectures[] = {{"cohere2", "cohere2"},
                                    {"glm4", "glm4"},
                                    {"llama4_text", "llama4"},
                                    {"deepseek_v2", "deepseek2"},
                                    {"deepseek_v3", "deepseek2"},
                                    {"gpt_oss", "gpt-oss"},
                                    {"dots1", "dots1"},
                                    {"granitemoe", "granitemoe"},
                                    {"granitemoeshared", "granitemoe"},
                                    {"mixtral", "llama"},
                                    {"olmoe", "olmoe"},
                                    {"qwen2_moe", "qwen2moe"},
                                    {"qwen3_5_moe_text", "qwen35moe"},
                                    {"qwen3_5_text", "qwen35"},
                                    {"qwen3_next", "qwen3next"},
                                    {"qwen3_moe", "qwen3moe"},
                                    {"gemma2", "gemma2"},
                                    {"gemma4_text", "gemma4"},
                                    {"gemma3_text", "gemma3"},
                                    {"granite", "granite"},
                                    {"llama", "llama"},
                                    {"ministral3", "mistral3"},
                                    {"mistral", "llama"},
                                    {"olmo2", "olmo2"},
                                    {"phi3", "phi3"},
                                    {"qwen2", "qwen2"},
                                    {"qwen3", "qwen3"},
                                    {"smollm3", "smollm3"}};

constexpr Names kCounts[] = {
    {"hidden_size", "embedding_length"},           {"intermediate_size", "feed_forward_length"},
    {"max_position_embeddings", "context_length"}, {"num_attention_heads", "attention.head_count"},
    {"num_hidden_layers", "block_count"},          {"num_key_value_heads", "attention.head_count_kv"}};

// Of mixtures of experts.
constexpr Names kExpertCounts[] = {{"first_k_dense_replace", "leading_dense_block_count"},
                                   {"interleave_moe_layer_step", "interleave_moe_layer_step"},
                                   {"moe_intermediate_size", "expert_feed_forward_length"},
                                   {"n_group", "expert_group_count"},
                                   {"n_routed_experts", "expert_count"},
                                   {"n_shared_experts", "expert_shared_count"},
                                   {"num_experts", "expert_count"},
                                   {"num_experts_per_tok", "expert_used_count"},
                                   {"num_local_experts", "expert_count"},
                                   {"shared_expert_intermediate_size", "expert_shared_feed_forward_length"},
                                   {"shared_intermediate_size", "expert_shared_feed_forward_length"},
                                   {"topk_group", "expert_group_used_count"}};

constexpr Names kNumbers[] = {{"attention_multiplier", "attention.scale"},
                              {"attn_logit_softcapping", "attn_logit_softcapping"},
                              {"embedding_multiplier", "embedding_scale"},
                              {"final_logit_softcapping", "final_logit_softcapping"},
                              {"layer_norm_eps", "attention.layer_norm_epsilon"},
                              {"logit_scale", "logit_scale"},
                              {"logits_scaling", "logit_scale"},
                              {"residual_multiplier", "residual_scale"},
                              {"rms_norm_eps", "attention.layer_norm_rms_epsilon"},
                              {"rope_local_base_freq", "rope.freq_base_swa"},
                              {"rope_theta", "rope.freq_base"}};

constexpr Names kTensors[] = {
    {"model.embed_tokens", "token_embd"}, {"model.norm", "output_norm"}, {"lm_head", "output"}};
constexpr Names kLayerTensors[] = {{"input_layernorm", "attn_norm"},
                                   {"block_sparse_moe.gate", "ffn_gate_inp"},
                                   {"block_sparse_moe.router.layer", "ffn_gate_inp"},
                                   {"feed_forward.down_proj", "ffn_down"},
                                   {"feed_forward.gate_proj", "ffn_gate"},
                                   {"feed_forward.router", "ffn_gate_inp"},
                                   {"feed_forward.shared_expert.down_proj", "ffn_down_shexp"},
                                   {"feed_forward.shared_expert.gate_proj", "ffn_gate_shexp"},
                                   {"feed_forward.shared_expert.up_proj", "ffn_up_shexp"},
                                   {"feed_forward.up_proj", "ffn_up"},
                                   {"mlp.down_proj", "ffn_down"},
                                   {"mlp.gate", "ffn_gate_inp"},
                                   {"mlp.router", "ffn_gate_inp"},
                                   {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
                                   {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
                                   {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
                                   {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
                                   {"mlp.shared_experts.down_proj", "ffn_down_shexp"},
                                   {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
                                   {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
                                   {"shared_mlp.output_linear", "ffn_down_shexp"},
                                   {"linear_attn.A_log", "ssm_a"},
                                   {"linear_attn.conv1d", "ssm_conv1d"},
                                   {"linear_attn.dt_bias", "ssm_dt"},
                                   {"linear_attn.in_proj_a", "ssm_alpha"},
                                   {"linear_attn.in_proj_b", "ssm_beta"},
                                   {"linear_attn.in_proj_ba", "ssm_ba"},
                                   {"linear_attn.in_proj_qkv", "attn_qkv"},
                                   {"linear_attn.in_proj_z", "attn_gate"},
                                   {"linear_attn.norm", "ssm_norm"},
                                   {"linear_attn.out_proj", "ssm_out"},
                                   {"mlp.gate_proj", "ffn_gate"},
                                   {"mlp.gate_up_proj", "ffn_up"},
                                   {"mlp.up_proj", "ffn_up"},
                                   {"post_feedforward_layernorm", "post_ffw_norm"},
                                   {"post_mlp_layernorm", "post_ffw_norm"},
                                   {"post_self_attn_layernorm", "post_attention_norm"},
                                   {"pre_feedforward_layernorm", "ffn_norm"},
                                   {"self_attn.k_norm", "attn_k_norm"},
                                   {"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
                                   {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
                                   {"self_attn.kv_b_proj", "attn_kv_b"},
                                   {"self_attn.q_a_layernorm", "attn_q_a_norm"},
                                   {"self_attn.q_a_proj", "attn_q_a"},
                                   {"self_attn.q_b_proj", "attn_q_b"},
                                   {"self_attn.k_proj", "attn_k"},
                                   {"self_attn.o_proj", "attn_output"},
                                   {"self_attn.q_norm", "attn_q_norm"},
                                   {"self_attn.q_proj", "attn_q"},
                                   {"self_attn.qkv_proj", "attn_qkv"},
                                   {"self_attn.v_proj", "attn_v"}};

template <size_t N>
std::string_view find(const Names (&names)[N], std::string_view name) {
  for (const auto& [theirs, ours] : names) {
    if (theirs == name) return ours;
  }
  return "";
}

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

class Converter {
 public:
  explicit Converter(const ArchitectureGolden& golden)
      : golden_(golden),
        config_(json::parse(golden.config)),
        architecture_(find(kArchitectures, config_.at("model_type").get<std::string>())),
        heads_(config_.at("num_attention_heads")),
        head_dim_(config_.value("head_dim", config_.at("hidden_size").get<uint32_t>() / heads_)) {}

  GgufBuilder run() {
    out_.set_string("general.architecture", architecture_);
    for (const auto& [theirs, ours] : kCounts) {
      if (config_.contains(theirs)) out_.set_u32(key(ours), config_.at(theirs).get<uint32_t>());
    }
    for (const auto& [theirs, ours] : kNumbers) {
      if (config_.contains(theirs)) out_.set_f32(key(ours), config_.at(theirs).get<float>());
    }
    if (is_latent()) {
      write_latent_sizes();
    } else {
      out_.set_u32(key("attention.key_length"), head_dim_);
      out_.set_u32(key("attention.value_length"), head_dim_);
    }
    if (config_.contains("sliding_window") && !config_.at("sliding_window").is_null() &&
        config_.value("use_sliding_window", true)) {
      out_.set_u32(key("attention.sliding_window"), config_.at("sliding_window").get<uint32_t>());
    }
    rope_dim_ = is_latent() ? config_.at("qk_rope_head_dim").get<uint32_t>()
                            : static_cast<uint32_t>(head_dim_ * rotary_factor());
    out_.set_u32(key("rope.dimension_count"), rope_dim_);
    if (architecture_ == "gemma4") write_gemma4();
    for (const char* field : {"rope_scaling", "rope_parameters"}) {
      if (config_.contains(field) && architecture_ != "gemma4") write_rope_scaling(config_.at(field));
    }
    if (config_.contains("num_experts_per_tok")) write_expert_settings();
    if (config_.contains("linear_num_key_heads")) write_recurrence();
    for (const auto& [name, values] : golden_.tensors) {
      if (!take_experts(name, values)) write_tensor(name, values);
    }
    for (const auto& [name, stack] : stacks_) write_stack(name, stack);
    return std::move(out_);
  }

 private:
  std::string key(std::string_view name) const { return architecture_ + "." + std::string(name); }
  std::string gguf_name(const std::string& name) const;
  double rotary_factor() const {
    const json& place = is_qwen35() ? config_.at("rope_parameters") : config_;
    return place.value("partial_rotary_factor", 1.0);
  }
  bool is_qwen35() const { return architecture_.starts_with("qwen35"); }
  std::vector<float> by_turns(const std::string& name, const std::vector<float>& values) const;
  bool is_latent() const { return architecture_ == "deepseek2"; }
  // Files of V2 are written as they were before attention worked on the rows of the cache, those of V3 as
  // since.
  bool is_old() const { return config_.at("model_type") == "deepseek_v2"; }
  void write_latent_sizes();
  void write_recurrence();
  void write_qkvz(const std::string& name, const std::vector<float>& values);
  void write_gemma4();
  void write_kv_b(const std::string& name, const std::vector<float>& values);
  void write_expert_settings();
  // True: it is of an expert, and is written with those of the others.
  bool take_experts(const std::string& name, const std::vector<float>& values);
  // Values by expert.
  struct Stack {
    uint64_t columns = 0;
    std::map<uint64_t, std::vector<float>> experts;
  };
  void add_to_stack(const std::string& layer, const char* role, uint64_t columns, uint64_t expert,
                    std::vector<float> values) {
    Stack& stack = stacks_["blk." + layer + "." + role + ".weight"];
    stack.columns = columns;
    stack.experts[expert] = std::move(values);
  }
  void take_columns(const std::string& layer, const std::string& name, const std::vector<float>& values);
  void write_stack(const std::string& name, const Stack& stack);
  void write_tensor(const std::string& name, std::vector<float> values);
  void write_rope_scaling(const json& scaling);
  std::vector<float> llama3_divisors(const json& scaling) const;
  void write_vector(std::string_view name, const std::vector<float>& values) {
    out_.add_tensor(name, {values.size()}, gguf_type_id(ops::WeightType::kF32),
                    quantize(ops::WeightType::kF32, values, static_cast<int64_t>(values.size())));
  }

  const ArchitectureGolden& golden_;
  const json config_;
  const std::string architecture_;
  const uint32_t heads_;
  const uint32_t head_dim_;
  uint32_t rope_dim_ = 0;
  std::map<std::string, Stack> stacks_;  // by name
  GgufBuilder out_;
};

std::string Converter::gguf_name(const std::string& name) const {
  const size_t dot = name.rfind('.');
  const std::string stem = name.substr(0, dot), last = name.substr(dot);
  if (last == ".e_score_correction_bias") {
    const std::string layer = stem.substr(13, stem.find('.', 13) - 13);
    return "blk." + layer + ".exp_probs_b.bias";
  }
  if (last == ".A_log") return "blk." + stem.substr(13, stem.find('.', 13) - 13) + ".ssm_a";
  if (last == ".dt_bias") return "blk." + stem.substr(13, stem.find('.', 13) - 13) + ".ssm_dt.bias";
  if (last == ".layer_scalar")
    return "blk." + stem.substr(13, stem.find('.', 13) - 13) + ".layer_output_scale.weight";
  if (last == ".sinks") return "blk." + stem.substr(13, stem.find('.', 13) - 13) + ".attn_sinks.weight";
  constexpr std::string_view kLayers = "model.layers.";
  if (!stem.starts_with(kLayers)) return std::string(find(kTensors, stem)) + last;
  const size_t end = stem.find('.', kLayers.size());
  const std::string layer = stem.substr(kLayers.size(), end - kLayers.size()), role = stem.substr(end + 1);
  std::string_view ours = find(kLayerTensors, role);
  // The one name for two things: before the feed-forward, or behind attention.
  if (role == "post_attention_layernorm") {
    ours = is_one_of(architecture_,
                     {"gemma2", "gemma3", "gemma4", "gpt-oss", "olmo2", "qwen35", "qwen35moe", "qwen3next"})
               ? "post_attention_norm"
               : "ffn_norm";
  }
  KV_CHECK(!ours.empty(), "no GGUF name for {}", name);
  return "blk." + layer + "." + std::string(ours) + last;
}

void Converter::write_expert_settings() {
  if (architecture_ == "llama4") {
    out_.set_u32(key("feed_forward_length"), config_.at("intermediate_size_mlp").get<uint32_t>());
    out_.set_u32(key("expert_feed_forward_length"), config_.at("intermediate_size").get<uint32_t>());
  }
  for (const auto& [theirs, ours] : kExpertCounts) {
    if (config_.contains(theirs)) out_.set_u32(key(ours), config_.at(theirs).get<uint32_t>());
  }
  if (architecture_ != "dots1" && architecture_ != "deepseek2") return;
  out_.set_u32(key("expert_gating_func"), config_.value("scoring_func", "sigmoid") == "softmax" ? 1 : 2);
  out_.set_bool(key("expert_weights_norm"), config_.at("norm_topk_prob").get<bool>());
  out_.set_f32(key("expert_weights_scale"), config_.at("routed_scaling_factor").get<float>());
}

bool Converter::take_experts(const std::string& name, const std::vector<float>& values) {
  const std::vector<uint64_t>& shape = golden_.shapes.at(name);
  constexpr std::string_view kLayers = "model.layers.";
  const std::string layer = name.starts_with(kLayers)
                                ? name.substr(kLayers.size(), name.find('.', kLayers.size()) - kLayers.size())
                                : "";
  const auto part = [&values](uint64_t from, uint64_t count) {
    const auto begin = values.begin() + static_cast<int64_t>(from);
    return std::vector<float>(begin, begin + static_cast<int64_t>(count));
  };
  if (name.find("input_linear") != std::string::npos) {  // of each expert gate, then up
    const bool shared = shape.size() == 2;
    const uint64_t columns = shape.back(), rows = shape[shape.size() - 2], half = rows * columns / 2;
    for (uint64_t e = 0; e < (shared ? 1 : shape[0]); ++e) {
      const uint64_t first = e * rows * columns;
      add_to_stack(layer, shared ? "ffn_gate_shexp" : "ffn_gate_exps", columns, e, part(first, half));
      add_to_stack(layer, shared ? "ffn_up_shexp" : "ffn_up_exps", columns, e, part(first + half, half));
    }
    return true;
  }
  if (name.ends_with("block_sparse_moe.output_linear.weight")) {
    const uint64_t size = shape[1] * shape[2];
    for (uint64_t e = 0; e < shape[0]; ++e)
      add_to_stack(layer, "ffn_down_exps", shape[2], e, part(e * size, size));
    return true;
  }
  const size_t experts = name.find(".experts.");
  if (experts == std::string::npos) return false;
  if (architecture_ == "gpt-oss" || architecture_ == "llama4") {
    take_columns(layer, name, values);
    return true;
  }
  if (is_qwen35()) {  // all of a layer in one
    const bool down = name.ends_with("down_proj");
    const uint64_t columns = shape[2], rows = down ? shape[1] : shape[1] / 2, size = rows * columns;
    for (uint64_t e = 0; e < shape[0]; ++e) {
      const uint64_t first = e * shape[1] * columns;
      add_to_stack(layer, down ? "ffn_down_exps" : "ffn_gate_exps", columns, e, part(first, size));
      if (!down) add_to_stack(layer, "ffn_up_exps", columns, e, part(first + size, size));
    }
    return true;
  }
  const uint64_t expert = std::stoul(name.substr(experts + 9));
  const bool gate = is_one_of(name.substr(name.find('.', experts + 9)), {".gate_proj.weight", ".w1.weight"});
  const bool up = is_one_of(name.substr(name.find('.', experts + 9)), {".up_proj.weight", ".w3.weight"});
  add_to_stack(layer,
               gate ? "ffn_gate_exps"
               : up ? "ffn_up_exps"
                    : "ffn_down_exps",
               shape[1], expert, values);
  return true;
}

// Outputs are columns, those of gate and up by turns, or of Llama 4 one behind the other; biases, which have
// no inputs, are rows of their own.
void Converter::take_columns(const std::string& layer, const std::string& name,
                             const std::vector<float>& values) {
  const std::vector<uint64_t>& shape = golden_.shapes.at(name);
  const bool bias = name.ends_with("_bias"), both = name.find("gate_up") != std::string::npos;
  const uint64_t inputs = bias ? 1 : shape[1], columns = shape.back(), turns = both ? 2 : 1;
  for (uint64_t turn = 0; turn < turns; ++turn) {
    const char* role = !both ? "ffn_down_exps" : turn == 0 ? "ffn_gate_exps" : "ffn_up_exps";
    std::vector<float> out;
    for (uint64_t e = 0; e < shape[0]; ++e) {
      const bool by_turns = architecture_ == "gpt-oss";
      for (uint64_t o = 0; o < columns / turns; ++o) {
        const uint64_t column = by_turns ? o * turns + turn : turn * (columns / turns) + o;
        for (uint64_t i = 0; i < inputs; ++i) out.push_back(values[(e * inputs + i) * columns + column]);
      }
    }
    std::vector<uint64_t> sizes = {columns / turns, shape[0]};
    if (!bias) sizes.insert(sizes.begin(), inputs);
    out_.add_tensor("blk." + layer + "." + role + (bias ? ".bias" : ".weight"), sizes,
                    gguf_type_id(ops::WeightType::kF32),
                    quantize(ops::WeightType::kF32, out, static_cast<int64_t>(sizes[0])));
  }
}

void Converter::write_stack(const std::string& name, const Stack& stack) {
  std::vector<float> all;
  for (const auto& [expert, values] : stack.experts) all.insert(all.end(), values.begin(), values.end());
  std::vector<uint64_t> shape = {stack.columns, stack.experts.at(0).size() / stack.columns};
  if (name.find("_exps.") != std::string::npos) shape.push_back(stack.experts.size());
  out_.add_tensor(name, shape, gguf_type_id(ops::WeightType::kF32),
                  quantize(ops::WeightType::kF32, all, static_cast<int64_t>(stack.columns)));
}

// Rows (i, i + half) of each head become neighbours.
std::vector<float> pairs_from_halves(const std::vector<float>& values, size_t columns, size_t head_dim) {
  std::vector<float> out(values.size());
  for (size_t row = 0; row < values.size() / columns; ++row) {
    const size_t head = row / head_dim, in_head = row % head_dim, half = head_dim / 2;
    const size_t to = head * head_dim + (in_head < half ? 2 * in_head : 2 * (in_head - half) + 1);
    std::copy_n(values.begin() + static_cast<int64_t>(row * columns), columns,
                out.begin() + static_cast<int64_t>(to * columns));
  }
  return out;
}

// Heads of two sizes; of those of layers without a window RoPE turns a part of the pairs.
void Converter::write_gemma4() {
  const uint32_t global = config_.at("global_head_dim");
  std::vector<int32_t> kv_heads, pattern;
  for (const std::string type : config_.at("layer_types")) {
    pattern.push_back(type == "sliding_attention" ? 1 : 0);
    kv_heads.push_back(
        config_.at(pattern.back() == 1 ? "num_key_value_heads" : "num_global_key_value_heads"));
  }
  out_.set_i32s(key("attention.sliding_window_pattern"), pattern);
  out_.remove(key("attention.head_count_kv"));
  out_.set_i32s(key("attention.head_count_kv"), kv_heads);
  for (const char* name : {"attention.key_length", "attention.value_length", "rope.dimension_count"})
    out_.set_u32(key(name), global);
  for (const char* name :
       {"attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"})
    out_.set_u32(key(name), head_dim_);
  out_.set_u32(key("attention.shared_kv_layers"), 0);
  out_.set_u32(key("embedding_length_per_layer_input"), 0);
  const json &full = config_.at("rope_parameters").at("full_attention"),
             &sliding = config_.at("rope_parameters").at("sliding_attention");
  out_.set_f32(key("rope.freq_base"), full.at("rope_theta").get<float>());
  out_.set_f32(key("rope.freq_base_swa"), sliding.at("rope_theta").get<float>());
  const auto turned = static_cast<uint32_t>(global * full.at("partial_rotary_factor").get<double>() / 2);
  std::vector<float> divisors(global / 2, 1e30F);
  std::fill_n(divisors.begin(), turned, 1.0F);
  write_vector("rope_freqs.weight", divisors);
}

void Converter::write_latent_sizes() {
  const auto size = [this](const char* field) { return config_.at(field).get<uint32_t>(); };
  const uint32_t rope = size("qk_rope_head_dim"), rank = size("kv_lora_rank"),
                 score = size("qk_nope_head_dim") + rope, value = size("v_head_dim");
  out_.set_u32(key("attention.kv_lora_rank"), rank);
  if (!config_.at("q_lora_rank").is_null()) out_.set_u32(key("attention.q_lora_rank"), size("q_lora_rank"));
  out_.set_u32(key("attention.key_length"), is_old() ? score : rank + rope);
  out_.set_u32(key("attention.value_length"), is_old() ? value : rank);
  if (is_old()) return;
  out_.set_u32(key("attention.head_count_kv"), 1);
  out_.set_u32(key("attention.key_length_mla"), score);
  out_.set_u32(key("attention.value_length_mla"), value);
}

void Converter::write_recurrence() {
  const auto size = [this](const char* field) { return config_.at(field).get<uint32_t>(); };
  out_.set_u32(key("ssm.conv_kernel"), size("linear_conv_kernel_dim"));
  out_.set_u32(key("ssm.state_size"), size("linear_key_head_dim"));
  out_.set_u32(key("ssm.group_count"), size("linear_num_key_heads"));
  out_.set_u32(key("ssm.time_step_rank"), size("linear_num_value_heads"));
  out_.set_u32(key("ssm.inner_size"), size("linear_num_value_heads") * size("linear_value_head_dim"));
  out_.set_u32(key("full_attention_interval"), size("full_attention_interval"));
}

// A group of rows for each key head, with its queries, its keys, and the values and z of its value heads,
// becomes all queries, all keys and all values, and all z.
void Converter::write_qkvz(const std::string& name, const std::vector<float>& values) {
  const auto size = [this](const char* field) { return config_.at(field).get<uint64_t>(); };
  const uint64_t heads = size("linear_num_key_heads"), keys = size("linear_key_head_dim"),
                 of_values = size("linear_num_value_heads") / heads * size("linear_value_head_dim"),
                 columns = config_.at("hidden_size"), group = 2 * keys + 2 * of_values;
  std::vector<float> qkv, z;
  const auto take = [&](uint64_t first, uint64_t rows, std::vector<float>& to) {
    for (uint64_t h = 0; h < heads; ++h) {
      const auto begin = values.begin() + static_cast<int64_t>((h * group + first) * columns);
      to.insert(to.end(), begin, begin + static_cast<int64_t>(rows * columns));
    }
  };
  take(0, keys, qkv);
  take(keys, keys, qkv);
  take(2 * keys, of_values, qkv);
  take(2 * keys + of_values, of_values, z);
  const std::string layer = name.substr(13, name.find('.', 13) - 13);
  for (const auto& [role, part] : {std::pair{"attn_qkv", &qkv}, {"attn_gate", &z}}) {
    out_.add_tensor("blk." + layer + "." + role + ".weight", {columns, part->size() / columns},
                    gguf_type_id(ops::WeightType::kF32),
                    quantize(ops::WeightType::kF32, *part, static_cast<int64_t>(columns)));
  }
}

// The value heads, which lie by key head, by turns: the first one of each, then the second one of each.
std::vector<float> Converter::by_turns(const std::string& name, const std::vector<float>& values) const {
  const auto size = [this](const char* field) { return config_.at(field).get<uint64_t>(); };
  const uint64_t groups = size("linear_num_key_heads"), heads = size("linear_num_value_heads"),
                 dim = size("linear_value_head_dim"), keys = groups * size("linear_key_head_dim");
  const bool of_channels = name.ends_with("conv1d.weight") || name.ends_with("in_proj_qkv.weight"),
             of_values = name.ends_with("in_proj_z.weight"), of_columns = name.ends_with("out_proj.weight"),
             of_heads = is_one_of(name.substr(name.find("linear_attn") + 12),
                                  {"A_log", "dt_bias", "in_proj_a.weight", "in_proj_b.weight"});
  if (!of_channels && !of_values && !of_columns && !of_heads) return values;
  const uint64_t columns = golden_.shapes.at(name).back();
  // Numbers of a head that lie together, and where the heads begin; columns are the same in each row.
  const uint64_t together = of_columns ? dim
                            : of_heads ? (name.ends_with(".weight") ? columns : 1)
                                       : dim * (values.size() / golden_.shapes.at(name)[0]);
  const uint64_t before = of_channels ? 2 * keys * (values.size() / golden_.shapes.at(name)[0]) : 0;
  std::vector<float> out(values.begin(), values.begin() + static_cast<int64_t>(before));
  for (uint64_t row = before; row < values.size(); row += heads * together) {
    for (uint64_t turn = 0; turn < heads / groups; ++turn) {
      for (uint64_t group = 0; group < groups; ++group) {
        const auto from =
            values.begin() + static_cast<int64_t>(row + (group * (heads / groups) + turn) * together);
        out.insert(out.end(), from, from + static_cast<int64_t>(together));
      }
    }
  }
  return out;
}

// Of each head the columns that make its keys, and the rows that make its values.
void Converter::write_kv_b(const std::string& name, const std::vector<float>& values) {
  const uint64_t nope = config_.at("qk_nope_head_dim"), value = config_.at("v_head_dim"),
                 rank = config_.at("kv_lora_rank");
  std::vector<float> k, v;
  for (uint64_t h = 0; h < heads_; ++h) {
    const float* head = values.data() + h * (nope + value) * rank;
    for (uint64_t r = 0; r < rank; ++r) {
      for (uint64_t n = 0; n < nope; ++n) k.push_back(head[n * rank + r]);
    }
    v.insert(v.end(), head + nope * rank, head + (nope + value) * rank);
  }
  const auto add = [&](const char* role, uint64_t columns, uint64_t rows, const std::vector<float>& part) {
    std::string ours = gguf_name(name);
    ours.replace(ours.find("attn_kv_b"), 9, role);
    out_.add_tensor(ours, {columns, rows, heads_}, gguf_type_id(ops::WeightType::kF32),
                    quantize(ops::WeightType::kF32, part, static_cast<int64_t>(columns)));
  };
  add("attn_k_b", nope, rank, k);
  add("attn_v_b", rank, value, v);
}

void Converter::write_tensor(const std::string& name, std::vector<float> values) {
  if (is_latent() && !is_old() && name.ends_with("kv_b_proj.weight")) return write_kv_b(name, values);
  if (name.ends_with("in_proj_qkvz.weight")) return write_qkvz(name, values);
  if (is_qwen35()) values = by_turns(name, values);
  if (name.ends_with("A_log")) {
    for (float& v : values) v = -static_cast<float>(std::exp(static_cast<double>(v)));
    return write_vector(gguf_name(name), values);
  }
  std::vector<uint64_t> shape = golden_.shapes.at(name);
  if (name.ends_with("conv1d.weight")) shape.erase(shape.begin() + 1);
  if (is_one_of(architecture_, {"granite", "granitemoe", "llama", "mistral3", "smollm3"}) &&
      (name.find("q_proj") != std::string::npos || name.find("k_proj") != std::string::npos)) {
    values = pairs_from_halves(values, shape.size() == 2 ? shape[1] : 1, head_dim_);
  }
  const bool less_one =
      is_one_of(architecture_, {"gemma2", "gemma3"}) || config_.contains("linear_num_key_heads");
  if (less_one && name.find("norm") != std::string::npos && name.find("linear_attn") == std::string::npos) {
    for (float& v : values) v += 1;
  }
  const auto columns = static_cast<int64_t>(shape.back());
  if (name.ends_with("shared_expert_gate.weight")) return write_vector(gguf_name(name), values);
  out_.add_tensor(gguf_name(name), {shape.rbegin(), shape.rend()}, gguf_type_id(ops::WeightType::kF32),
                  quantize(ops::WeightType::kF32, values, columns));
}

void Converter::write_rope_scaling(const json& scaling) {
  const std::string type = scaling.value("rope_type", scaling.value("type", ""));
  if (is_qwen35()) {  // nothing is scaled
    out_.set_f32(key("rope.freq_base"), scaling.at("rope_theta").get<float>());
    std::vector<int32_t> sections = scaling.at("mrope_section");
    sections.push_back(0);
    return out_.set_i32s(key("rope.dimension_sections"), sections);
  }
  if (type == "llama3") return write_vector("rope_freqs.weight", llama3_divisors(scaling));
  if (type == "longrope") {
    write_vector("rope_factors_long.weight", scaling.at("long_factor").get<std::vector<float>>());
    write_vector("rope_factors_short.weight", scaling.at("short_factor").get<std::vector<float>>());
    const double original = config_.at("original_max_position_embeddings");
    const double stretch = config_.at("max_position_embeddings").get<double>() / original;
    out_.set_u32(key("rope.scaling.original_context_length"), static_cast<uint32_t>(original));
    out_.set_f32(key("rope.scaling.attn_factor"),
                 static_cast<float>(std::sqrt(1 + std::log(stretch) / std::log(original))));
    return;
  }
  KV_CHECK(is_one_of(type, {"linear", "yarn"}), "RoPE scaling {}", type);
  out_.set_string(key("rope.scaling.type"), type);
  out_.set_f32(key("rope.scaling.factor"), scaling.at("factor").get<float>());
  if (type == "yarn") {
    out_.set_u32(key("rope.scaling.original_context_length"),
                 scaling.at("original_max_position_embeddings").get<uint32_t>());
  }
  // On top of YaRN's own.
  if (const double given = scaling.value("attention_factor", 0.0); given > 0) {
    const double own = 0.1 * std::log(scaling.at("factor").get<double>()) + 1;
    out_.set_f32(key("rope.scaling.attn_factor"), static_cast<float>(given / own));
  }
  if (is_latent()) {
    out_.set_f32(key("rope.scaling.yarn_log_multiplier"), 0.1F * scaling.at("mscale_all_dim").get<float>());
  }
  if (architecture_ == "mistral3") {
    out_.set_f32(key("rope.scaling.yarn_log_multiplier"), scaling.at("mscale_all_dim").get<float>());
    out_.set_f32(key("attention.temperature_scale"), scaling.at("llama_4_scaling_beta").get<float>());
  }
}

// Llama 3.1: long waves are divided by the factor, short ones kept, those between are mixed. In f32 and in
// this order of operations, as in the converter: the last bit is part of the file.
std::vector<float> Converter::llama3_divisors(const json& scaling) const {
  const float factor = scaling.at("factor"), low = scaling.at("low_freq_factor"),
              high = scaling.at("high_freq_factor");
  const float original = scaling.at("original_max_position_embeddings"), base = config_.at("rope_theta");
  std::vector<float> out;
  for (uint32_t i = 0; i < rope_dim_; i += 2) {
    const float frequency = 1 / std::pow(base, static_cast<float>(i) / static_cast<float>(rope_dim_));
    const float wave = 2 * std::numbers::pi_v<float> / frequency;
    const float kept = std::clamp((original / wave - low) / (high - low), 0.0F, 1.0F);
    out.push_back(1 / ((1 - kept) / factor + kept));
  }
  return out;
}

}  // namespace

GgufBuilder architecture_as_gguf(const ArchitectureGolden& golden) {
  return Converter(golden).run();
}

bool has_gguf_form(const ArchitectureGolden& golden) {
  const json config = json::parse(golden.config);
  // Which layers have windows, and the ropes of both kinds, are left to the architecture's name.
  if (config.at("model_type") == "gemma4_text") return true;
  if (config.value("use_sliding_window", false) || config.contains("layer_types")) return false;
  if (config.value("attention_chunk_size", 8192) != 8192) return false;
  if (config.value("decoder_sparse_step", 1) > 1 || !config.value("mlp_only_layers", json::array()).empty())
    return false;
  if (config.contains("rope_parameters") && config.at("rope_parameters").contains("full_attention"))
    return false;
  return !find(kArchitectures, config.at("model_type").get<std::string>()).empty();
}

}  // namespace kvasir::test
