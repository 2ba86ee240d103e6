// The shapes of models from config.json.
#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/simulate/catalog/catalog_files.h"

namespace kvasir {
namespace {

using Json = nlohmann::json;

// The first of the keys that holds a whole number above 0; 0: none.
uint32_t number(const Json& json, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    const auto it = json.find(key);
    if (it != json.end() && it->is_number_integer() && it->get<int64_t>() > 0 &&
        it->get<int64_t>() <= INT32_MAX) {
      return it->get<uint32_t>();
    }
  }
  return 0;
}

// Families whose MLP has no gate. A config.json does not say; all others of now have one.
bool has_gate(const std::string& type) {
  constexpr std::array kPlain = {"opt",    "gpt2", "gpt_neo",    "gpt_neox", "gptj", "gpt_bigcode",
                                 "falcon", "phi",  "starcoder2", "bloom",    "mpt"};
  return std::find(kPlain.begin(), kPlain.end(), type) == kPlain.end();
}

// Of each layer; empty: none has one.
std::vector<uint32_t> windows_of(const Json& json, const std::string& type, uint32_t layers) {
  const uint32_t window = number(json, {"sliding_window"});
  const auto used = json.find("use_sliding_window");
  if (window == 0 || (used != json.end() && used->is_boolean() && !used->get<bool>())) return {};
  uint32_t period = number(json, {"sliding_window_pattern", "_sliding_window_pattern"});
  if (period == 0 && type.starts_with("gemma")) period = type == "gemma2" ? 2 : 6;
  const uint32_t first = number(json, {"max_window_layers"});
  const auto types = json.find("layer_types");
  std::vector<uint32_t> out(layers, window);
  for (uint32_t l = 0; l < layers; ++l) {
    const bool listed = types != json.end() && types->is_array() && types->size() == layers;
    const bool full =
        listed ? types->at(l) != "sliding_attention" : l < first || (period > 0 && l % period == period - 1);
    if (full) out[l] = 0;
  }
  return out;
}

}  // namespace

Result<ModelShape> parse_model(std::string_view text, const std::string& origin) {
  const Json whole = Json::parse(text, nullptr, false);
  if (!whole.is_object()) return error(ErrorCode::kCorrupt, "{}: not a JSON object", origin);
  // Models of more than text have the decoder's sizes inside.
  const Json& json =
      whole.contains("text_config") && whole["text_config"].is_object() ? whole["text_config"] : whole;
  const auto string_at = [&](const char* key) {
    const auto it = json.find(key);
    return it != json.end() && it->is_string() ? it->get<std::string>() : std::string();
  };
  // As other families' layers without K and V have them, too.
  const auto types = json.find("layer_types");
  const bool some_linear = types != json.end() && types->is_array() &&
                           std::find(types->begin(), types->end(), "linear_attention") != types->end();
  if (some_linear || number(json, {"linear_num_value_heads"}) > 0) {
    return error(ErrorCode::kUnsupported, "{}: {}", origin, kRecurrentLayers);
  }
  ModelShape out;
  out.name = string_at("name");
  if (out.name.empty()) out.name = string_at("_name_or_path");
  if (out.name.empty()) {
    const std::filesystem::path path(origin);
    out.name = (path.filename() == "config.json" ? path.parent_path().filename() : path.stem()).string();
  }
  if (string_at("model_type").starts_with("gemma4"))
    return error(ErrorCode::kUnsupported, "{}: {}", origin, kHeadsOfTwoSizes);
  out.layers = number(json, {"num_hidden_layers", "n_layer", "n_layers", "num_layers"});
  out.hidden = number(json, {"hidden_size", "n_embd", "d_model"});
  out.heads = number(json, {"num_attention_heads", "n_head", "n_heads"});
  out.kv_heads = number(json, {"num_key_value_heads", "num_kv_heads", "n_head_kv"});
  if (out.kv_heads == 0) {
    const auto multi = json.find("multi_query");
    out.kv_heads = multi != json.end() && multi->is_boolean() && multi->get<bool>() ? 1 : out.heads;
  }
  out.head_dim = number(json, {"head_dim"});
  if (out.head_dim == 0 && out.heads > 0) out.head_dim = out.hidden / out.heads;
  if (const uint32_t rank = number(json, {"kv_lora_rank"}); rank > 0) {
    out.latent = {rank, number(json, {"q_lora_rank"}), number(json, {"qk_nope_head_dim"}),
                  number(json, {"qk_rope_head_dim"}), number(json, {"v_head_dim"})};
    if (out.latent.nope_dim == 0 || out.latent.rope_dim == 0 || out.latent.value_dim == 0) {
      return error(ErrorCode::kCorrupt,
                   "{}: qk_nope_head_dim, qk_rope_head_dim or v_head_dim is missing beside kv_lora_rank",
                   origin);
    }
    out.kv_heads = 1;
    out.head_dim = rank + out.latent.rope_dim;
  }
  out.ffn = number(json, {"intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"});
  if (out.ffn == 0) out.ffn = 4 * out.hidden;
  out.experts = number(json, {"num_local_experts", "num_experts", "n_routed_experts"});
  if (out.experts > 0) {
    const auto dense = json.find("mlp_only_layers");
    const bool some_dense = dense != json.end() && dense->is_array() && !dense->empty();
    out.dense_layers = number(json, {"first_k_dense_replace"});
    if (some_dense || out.dense_layers > out.layers ||
        number(json, {"decoder_sparse_step", "moe_layer_freq"}) > 1) {
      return error(ErrorCode::kUnsupported, "{}: {}", origin, kSomeLayers);
    }
    out.experts_used = number(json, {"num_experts_per_tok"});
    out.expert_ffn = number(json, {"moe_intermediate_size", "intermediate_size"});
    out.shared_ffn = number(json, {"shared_expert_intermediate_size", "shared_intermediate_size"});
    if (out.shared_ffn == 0) out.shared_ffn = number(json, {"n_shared_experts"}) * out.expert_ffn;
  }
  out.vocab = number(json, {"vocab_size"});
  out.max_positions = number(json, {"max_position_embeddings", "n_positions", "max_seq_len", "seq_length"});
  out.windows = windows_of(json, string_at("model_type"), out.layers);
  out.gated_mlp = has_gate(string_at("model_type"));
  const auto tied = json.find("tie_word_embeddings");
  out.tied_embeddings = tied != json.end() && tied->is_boolean() && tied->get<bool>();
  // Of gpt-oss the experts are in MXFP4: 17 bytes for 32 values.
  if (whole.contains("quantization_config") && whole["quantization_config"].is_object() &&
      whole["quantization_config"].value("quant_method", Json()) == "mxfp4") {
    out.expert_element_bytes = 17.0 / 32;
  }
  if (out.layers == 0 || out.hidden == 0 || out.heads == 0 || out.head_dim == 0 || out.vocab == 0 ||
      out.heads % out.kv_heads != 0 ||
      (out.experts > 0 && (out.expert_ffn == 0 || out.experts_used == 0 || out.experts_used > out.experts))) {
    return error(ErrorCode::kCorrupt,
                 "{}: num_hidden_layers, hidden_size, num_attention_heads or vocab_size is missing, or "
                 "num_key_value_heads does not divide the heads, or experts have no width or number",
                 origin);
  }
  return out;
}

}  // namespace kvasir
