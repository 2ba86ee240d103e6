#include "model/folders/folder_gemma4.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir {
namespace {

using nlohmann::json;

constexpr int64_t kShortestHead = 2, kLongestHead = 1024;  // a pair of RoPE
constexpr const char* kNotSupported = "which is not supported; use another model";

struct Heads {
  int64_t dim;
  int64_t kv;
};

void end_of(ConfigFields& inner, ConfigFields& fields) {
  for (const std::string& field : inner.unread()) inner.refuse(field);
  fields.fail(inner.status());
}

// "per_layer_config" as transformers 5.24 writes it: what layers have of their own, by their index.
void read_layers(FolderConfig& c, std::vector<Heads>& heads) {
  const json& layers = c.fields.object("per_layer_config");
  for (const auto& [index, of_layer] : layers.items()) {
    size_t layer = heads.size();
    const char* const end = index.data() + index.size();
    const bool is_index = std::from_chars(index.data(), end, layer).ptr == end && layer < heads.size();
    if (!is_index || !of_layer.is_object()) {
      c.fields.unsupported("per_layer_config", "where an object for each layer is needed");
      return;
    }
    ConfigFields own(of_layer, fmt::format("{}: per_layer_config: {}", c.fields.origin(), index));
    Heads& h = heads[layer];
    h.dim = own.integer("head_dim", kShortestHead, kLongestHead).value_or(h.dim);
    h.kv = own.integer("num_key_value_heads", 1, INT32_MAX).value_or(h.kv);
    end_of(own, c.fields);
  }
}

// Of each layer. Those without a window have a length of their own, and, where V is K, so many KV heads.
std::vector<Heads> read_heads(FolderConfig& c, const std::vector<bool>& windowed, bool keys_as_values) {
  const Heads local = {c.fields.integer("head_dim", kShortestHead, kLongestHead).value_or(256),
                       c.fields.integer("num_key_value_heads", 1, INT32_MAX).value_or(4)};
  Heads global = {c.fields.integer("global_head_dim", kShortestHead, kLongestHead).value_or(512), local.kv};
  const auto kv = c.fields.integer("num_global_key_value_heads", 1, INT32_MAX);
  if (keys_as_values) global.kv = kv.value_or(local.kv);
  std::vector<Heads> out(windowed.size(), local);
  if (c.fields.has("per_layer_config")) {
    read_layers(c, out);
    return out;
  }
  for (size_t l = 0; l < out.size(); ++l) {
    if (!windowed[l]) out[l] = global;
  }
  return out;
}

// RoPE turns the first part of the pairs of a head; the others, by GGUF's convention, next to nothing.
void read_ropes(FolderConfig& c) {
  ConfigFields both(c.fields.object("rope_parameters"),
                    fmt::format("{}: rope_parameters", c.fields.origin()));
  ConfigFields full(both.object("full_attention"), both.origin() + ": full_attention");
  ConfigFields sliding(both.object("sliding_attention"), both.origin() + ": sliding_attention");
  const bool given = both.has("full_attention");  // a part without a type is the default one
  const double part = full.number("partial_rotary_factor").value_or(given ? 1 : 0.25);
  if (part < 0 || part > 1) full.unsupported("partial_rotary_factor", "not from 0 to 1");
  std::vector<float> divisors(static_cast<size_t>(c.head_dim / 2), 1e30F);
  const auto turned = static_cast<size_t>(static_cast<double>(c.head_dim) * std::clamp(part, 0.0, 1.0)) / 2;
  std::fill_n(divisors.begin(), std::min(turned, divisors.size()), 1.0F);
  c.out.add_vector("rope_freqs.weight", divisors);
  c.out.set_f32(c.key("rope.freq_base"), static_cast<float>(full.number("rope_theta").value_or(1e6)));
  c.out.set_f32(c.key("rope.freq_base_swa"), static_cast<float>(sliding.number("rope_theta").value_or(1e4)));
  c.out.set_bool("kvasir.split_pairs", true);
  if (full.text("rope_type").value_or(given ? "default" : "proportional") != "proportional") {
    full.unsupported("rope_type", "where only proportional is supported; use another model");
  }
  if (sliding.text("rope_type").value_or("default") != "default")
    sliding.unsupported("rope_type", kNotSupported);
  end_of(full, both);
  end_of(sliding, both);
  end_of(both, c.fields);
}

void refuse_others(ConfigFields& fields) {
  const bool is_null = fields.is_null("hidden_size_per_layer_input");
  const int64_t inputs =
      fields.integer("hidden_size_per_layer_input", 0, INT32_MAX).value_or(is_null ? 0 : 256);
  if (inputs != 0) {
    fields.fail(
        error(ErrorCode::kUnsupported,
              "{}: the model has inputs of {} values for each layer, which are not supported; use another "
              "model",
              fields.origin(), inputs));
  }
  for (const char* field : {"num_kv_shared_layers", "enable_moe_block", "use_double_wide_mlp"})
    fields.refuse(field);
  // Images alone are looked at in both directions.
  if (fields.text("use_bidirectional_attention").value_or("vision") != "vision")
    fields.unsupported("use_bidirectional_attention", kNotSupported);
  fields.ignore({"vocab_size_per_layer_input", "num_experts", "top_k_experts", "moe_intermediate_size"});
}

}  // namespace

void describe_gemma4(FolderConfig& c) {
  refuse_others(c.fields);
  c.read_sizes();
  c.read_rms_epsilon();
  c.require_activation("hidden_activation", "gelu_pytorch_tanh");
  c.read_attention_bias();
  std::vector<bool> windowed;
  for (int64_t l = 1; l <= c.layers; ++l) windowed.push_back(l % 6 != 0);
  windowed = c.layers_of_type("sliding_attention", windowed);
  if (windowed.empty()) return;
  windowed.back() = false;  // as transformers has it
  const bool keys_as_values = c.fields.flag("attention_k_eq_v", false);
  const std::vector<Heads> heads = read_heads(c, windowed, keys_as_values);
  c.head_dim = heads.back().dim;
  int64_t local_dim = c.head_dim;
  for (size_t l = 0; l < heads.size(); ++l) {
    if (windowed[l]) local_dim = heads[l].dim;
  }
  std::vector<int32_t> kv_heads, pattern;
  for (size_t l = 0; l < heads.size(); ++l) {
    if (heads[l].dim != (windowed[l] ? local_dim : c.head_dim))
      c.fields.unsupported("per_layer_config",
                           "which gives layers of one type heads of two sizes; use another model");
    kv_heads.push_back(static_cast<int32_t>(heads[l].kv));
    pattern.push_back(windowed[l] ? 1 : 0);
    c.keys_as_values.push_back(keys_as_values && !windowed[l]);
  }
  const auto write = [&c](std::string_view name, int64_t value) {
    c.out.set_u32(c.key(name), static_cast<uint32_t>(value));
  };
  for (const char* name : {"attention.key_length", "attention.value_length"}) write(name, c.head_dim);
  for (const char* name :
       {"attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"})
    write(name, local_dim);
  write("embedding_length_per_layer_input", 0);  // llama.cpp wants it
  c.out.set_i32s(c.key("attention.head_count_kv"), kv_heads);
  c.out.set_i32s(c.key("attention.sliding_window_pattern"), pattern);
  write("attention.sliding_window", c.sliding_window());
  c.out.set_f32(c.key("final_logit_softcapping"),
                static_cast<float>(c.fields.number("final_logit_softcapping").value_or(0)));
  read_ropes(c);
}

}  // namespace kvasir
