// What the configurations of several architectures have in common.
#include "model/folders/folder_config.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

namespace kvasir {
namespace {

constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
// Bounds far above any model, for what decides how much is written here.
constexpr int64_t kMostLayers = 1024, kMostHeadDim = 1024, kMostExperts = 4096;

}  // namespace

std::string FolderConfig::key(std::string_view name) const {
  return fmt::format("{}.{}", architecture.name, name);
}

void FolderConfig::read_sizes() {
  const ConfigDefaults& defaults = architecture.defaults;
  const auto count = [this](std::string_view field, int64_t otherwise, int64_t most = kMost) {
    const int64_t value = fields.integer(field, 1, most).value_or(otherwise);
    if (value == 0) fields.unsupported(field, "where a whole number is needed; fetch the file again");
    return value;
  };
  const auto write = [this](std::string_view name, int64_t value) {
    out.set_u32(key(name), static_cast<uint32_t>(value));
  };
  layers = count("num_hidden_layers", defaults.num_hidden_layers, kMostLayers);
  heads = count("num_attention_heads", defaults.num_attention_heads);
  context = count("max_position_embeddings", defaults.max_position_embeddings);
  const int64_t width = count("hidden_size", defaults.hidden_size);
  // null says: as many as there are heads.
  const int64_t kv_heads = fields.is_null("num_key_value_heads") || defaults.num_key_value_heads == 0
                               ? heads
                               : defaults.num_key_value_heads;
  write("block_count", layers);
  write("context_length", context);
  write("embedding_length", width);
  // Where all layers have experts there need be no other width.
  if (architecture.name != "qwen35moe" || fields.has("intermediate_size")) {
    write("feed_forward_length", count(fields.has("ffn_dim")                 ? "ffn_dim"
                                       : fields.has("intermediate_size_mlp") ? "intermediate_size_mlp"
                                                                             : "intermediate_size",
                                       defaults.intermediate_size));
  }
  write("attention.head_count", heads);
  count("num_key_value_heads", kv_heads);
  const int64_t vocabulary = fields.integer("vocab_size", 1, kMost).value_or(defaults.vocab_size);
  if (vocabulary != 0) write("vocab_size", vocabulary);
  // read_latent_sizes() and describe_gemma4() have the rest.
  if (architecture.name == "deepseek2" || architecture.name == "gemma4") return;
  write("attention.head_count_kv", count("num_key_value_heads", kv_heads));
  head_dim = fields.integer("head_dim", 1, kMostHeadDim).value_or(defaults.head_dim);
  if (head_dim == 0 && heads != 0) head_dim = std::min(width / heads, kMostHeadDim + 1);
  if (head_dim == 0 || head_dim > kMostHeadDim) {
    fields.unsupported("head_dim", fmt::format("and {} heads of a width of {} make none", heads, width));
  }
  write("attention.key_length", head_dim);
  write("attention.value_length", head_dim);
}

void FolderConfig::read_latent_sizes() {
  const auto count = [this](std::string_view field, int64_t otherwise) {
    return fields.integer(field, 1, kMostHeadDim).value_or(otherwise);
  };
  const auto write = [this](std::string_view name, int64_t value) {
    out.set_u32(key(name), static_cast<uint32_t>(value));
  };
  kv_rank = count("kv_lora_rank", 512);
  nope_dim = count("qk_nope_head_dim", 128);
  rope_dim = count("qk_rope_head_dim", 64);
  value_dim = count("v_head_dim", 128);
  q_rank = fields.is_null("q_lora_rank") ? 0 : fields.integer("q_lora_rank", 0, kMost).value_or(1536);
  head_dim = rope_dim;  // what RoPE turns
  fields.ignore({"head_dim", "qk_head_dim"});
  write("attention.head_count_kv", 1);
  write("attention.key_length", kv_rank + rope_dim);
  write("attention.value_length", kv_rank);
  write("attention.key_length_mla", nope_dim + rope_dim);
  write("attention.value_length_mla", value_dim);
  write("attention.kv_lora_rank", kv_rank);
  if (q_rank > 0) write("attention.q_lora_rank", q_rank);
  write("rope.dimension_count", rope_dim);
}

void FolderConfig::read_rms_epsilon() {
  const double epsilon = fields.number("rms_norm_eps").value_or(architecture.defaults.rms_norm_eps);
  out.set_f32(key("attention.layer_norm_rms_epsilon"), static_cast<float>(epsilon));
}

void FolderConfig::require_activation(std::string_view field, std::string_view wanted) {
  const std::string found = fields.text(field).value_or(std::string(wanted));
  if (found != wanted && !(wanted == "silu" && found == "swish")) {
    fields.unsupported(field, fmt::format("where only '{}' is supported; use another model", wanted));
  }
}

void FolderConfig::read_attention_bias(bool of_output_too) {
  if (!fields.flag("attention_bias", false)) return;
  biases = {"attn_q", "attn_k", "attn_v"};
  if (of_output_too) biases.emplace_back("attn_output");
}

std::vector<bool> FolderConfig::read_turned_layers() {
  const int64_t interval = fields.integer("no_rope_layer_interval", 1, INT32_MAX).value_or(4);
  std::vector<bool> turned;
  for (int64_t l = 1; l <= layers; ++l) turned.push_back(l % interval != 0);
  if (const auto given = fields.integers("no_rope_layers"); given && !given->empty()) {
    if (static_cast<int64_t>(given->size()) < layers) {
      fields.unsupported("no_rope_layers", fmt::format("where one for each of {} layers is needed", layers));
      return turned;
    }
    for (size_t l = 0; l < turned.size(); ++l) turned[l] = (*given)[l] != 0;
  }
  std::vector<int32_t> ropes;
  for (const bool turns : turned) ropes.push_back(turns ? 0 : -1);
  out.set_i32s("kvasir.layer_ropes", ropes);
  return turned;
}

void FolderConfig::read_experts(std::string_view count, std::string_view ffn) {
  const auto required = [this](std::string_view field, int64_t most) {
    const auto value = fields.integer(field, 1, most);
    if (!value) fields.unsupported(field, "where a whole number is needed; fetch the file again");
    return static_cast<uint32_t>(value.value_or(1));
  };
  experts = required(count, kMostExperts);
  out.set_u32(key("expert_count"), static_cast<uint32_t>(experts));
  out.set_u32(key("expert_used_count"), required("num_experts_per_tok", experts));
  if (!ffn.empty()) out.set_u32(key("expert_feed_forward_length"), required(ffn, kMost));
  // What training and statistics need.
  fields.ignore(
      {"router_aux_loss_coef", "router_jitter_noise", "output_router_logits", "aux_loss_alpha", "seq_aux"});
}

void FolderConfig::read_recurrence() {
  const auto count = [this](std::string_view field, int64_t otherwise) {
    return static_cast<uint32_t>(fields.integer(field, 1, kMostHeadDim).value_or(otherwise));
  };
  const uint32_t of_keys = count("linear_num_key_heads", 16), of_values = count("linear_num_value_heads", 32),
                 key_dim = count("linear_key_head_dim", 128), dim = count("linear_value_head_dim", 128);
  out.set_u32(key("ssm.conv_kernel"), count("linear_conv_kernel_dim", 4));
  out.set_u32(key("ssm.state_size"), key_dim);
  out.set_u32(key("ssm.group_count"), of_keys);
  out.set_u32(key("ssm.time_step_rank"), of_values);
  out.set_u32(key("ssm.inner_size"), of_values * dim);
  if (architecture.heads_by_turns && of_values > of_keys && of_values % of_keys == 0) {
    value_heads = {of_keys, of_values, key_dim, dim};
  }
  const int64_t interval = fields.integer("full_attention_interval", 1, kMost).value_or(4);
  out.set_u32(key("full_attention_interval"), static_cast<uint32_t>(interval));
  std::vector<bool> otherwise;
  for (int64_t l = 1; l <= layers; ++l) otherwise.push_back(l % interval != 0);
  recurrent_layers = layers_of_type("linear_attention", otherwise);
  out.set_i32s("kvasir.layer_recurrent", {recurrent_layers.begin(), recurrent_layers.end()});
}

int64_t FolderConfig::sliding_window() {
  if (fields.is_null("sliding_window")) return 0;
  return fields.integer("sliding_window", 0, kMost).value_or(architecture.defaults.sliding_window);
}

std::vector<bool> FolderConfig::layers_of_type(std::string_view type, const std::vector<bool>& otherwise) {
  const auto types = fields.texts("layer_types");
  if (!types) return otherwise;
  if (static_cast<int64_t>(types->size()) != layers) {
    fields.unsupported("layer_types", fmt::format("where one for each of {} layers is needed", layers));
    return otherwise;
  }
  std::vector<bool> are;
  for (const std::string& one : *types) {
    are.push_back(one == type);
    if (one != type && one != "full_attention") {
      fields.unsupported("layer_types", fmt::format("where only {} and full_attention are supported", type));
    }
  }
  return are;
}

void FolderConfig::write_windows(int64_t window, const std::vector<bool>& otherwise) {
  const std::vector<bool> windowed = layers_of_type("sliding_attention", otherwise);
  if (window == 0 || std::find(windowed.begin(), windowed.end(), true) == windowed.end()) window = 0;
  std::vector<int32_t> windows, ropes;
  for (const bool has : windowed) windows.push_back(has ? static_cast<int32_t>(window) : 0);
  out.set_u32(key("attention.sliding_window"), static_cast<uint32_t>(window));
  out.set_i32s("kvasir.layer_windows", windows);
  if (architecture.name != "gemma3" && architecture.name != "cohere2") return;
  // The others have the first RoPE, or none.
  const int32_t with = architecture.name == "gemma3" ? 1 : 0;
  for (const bool has : windowed) ropes.push_back(has ? with : with - 1);
  out.set_i32s("kvasir.layer_ropes", ropes);
}

}  // namespace kvasir
