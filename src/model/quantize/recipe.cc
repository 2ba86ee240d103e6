#include "model/quantize/recipe.h"

#include "model/files/layer_name.h"

namespace kvasir {
namespace {

using ops::WeightType;

constexpr QuantizationRecipe kRecipes[] = {
    {"q8_0", WeightType::kQ8_0, 7},        {"q4_0", WeightType::kQ4_0, 2},
    {"q4_1", WeightType::kQ4_1, 3},        {"q5_0", WeightType::kQ5_0, 8},
    {"q5_1", WeightType::kQ5_1, 9},        {"q2_k", WeightType::kQ2K, 10},
    {"q3_k_m", WeightType::kQ3K, 12},      {"q4_k_m", WeightType::kQ4K, 15},
    {"q5_k_m", WeightType::kQ5K, 17},      {"q6_k", WeightType::kQ6K, 18},
    {"iq4_nl", WeightType::kIq4Nl, 25},    {"iq4_xs", WeightType::kIq4Xs, 30},
    {"mxfp4_moe", WeightType::kMxfp4, 38}, {"f16", WeightType::kF16, 1},
    {"bf16", WeightType::kBf16, 32},       {"f32", WeightType::kF32, 0},
};

// The first and the last eighth of the layers, and every third between them.
bool has_more_bits(int32_t layer, int32_t layers) {
  const int32_t eighth = layers / 8;
  return layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2;
}

WeightType type_of_values(WeightType type, bool shared, int32_t layers, int32_t layer) {
  switch (type) {
    case WeightType::kQ2K:
      return shared ? WeightType::kQ4K : WeightType::kQ3K;
    case WeightType::kQ3K:
      return layer < 2 ? WeightType::kQ5K : WeightType::kQ4K;
    case WeightType::kQ4K:
    case WeightType::kQ5K:
      return has_more_bits(layer, layers) ? WeightType::kQ6K : type;
    case WeightType::kIq4Nl:
    case WeightType::kIq4Xs:
      return shared ? WeightType::kQ5K : type;
    default:
      return type;
  }
}

// Of V, and of Q, K and V in one tensor. Models of 70 and 72 billion parameters, which llama.cpp knows by
// their layers, have at least Q5_K.
WeightType type_of_values(WeightType type, const ModelSpec& spec, int32_t layer) {
  const HeadShape first = spec.heads_of(0);  // llama.cpp asks the first layer of all
  const WeightType usual = type_of_values(type, first.heads / first.kv_heads >= 4, spec.layers, layer);
  const bool large = spec.layers == 80 && (spec.architecture == "qwen2" ||
                                           (spec.architecture == "llama" && spec.kv_heads != spec.heads));
  const bool few_bits = usual == WeightType::kQ3K || usual == WeightType::kQ4K;
  return large && few_bits ? WeightType::kQ5K : usual;
}

WeightType type_of_down(WeightType type, int32_t layers, int32_t layer) {
  switch (type) {
    case WeightType::kQ2K:
      return WeightType::kQ3K;
    case WeightType::kQ3K:
      return layer < layers / 16 ? WeightType::kQ5K : WeightType::kQ4K;
    case WeightType::kQ4K:
    case WeightType::kQ5K:
      return has_more_bits(layer, layers) ? WeightType::kQ6K : type;
    case WeightType::kIq4Nl:
    case WeightType::kIq4Xs:
      return layer < layers / 8 ? WeightType::kQ5K : type;
    default:
      return type;
  }
}

bool has_five_bits_of_eight_experts(WeightType type) {
  switch (type) {
    case WeightType::kQ2K:
    case WeightType::kQ3K:
    case WeightType::kQ4K:
    case WeightType::kIq4Nl:
    case WeightType::kIq4Xs:
      return true;
    default:
      return false;
  }
}

WeightType in_mixture(WeightType type, const ModelSpec& spec, std::string_view name, bool whole_blocks) {
  if (!ops::is_quantized(type)) return type;
  if (type == WeightType::kMxfp4) {  // experts but shared ones
    const bool expert = name.ends_with("_exps.weight") || parse_expert_name(name).has_value();
    return expert ? type : WeightType::kQ8_0;
  }
  const auto parsed = parse_layer_name(name);
  const int32_t layer = parsed ? static_cast<int32_t>(parsed->layer) : 0;
  const auto is = [name](std::string_view role) { return name.ends_with(role); };
  if (name == "output.weight" || (spec.tied_embeddings && name == "token_embd.weight")) {
    return type == WeightType::kQ8_0 || !whole_blocks ? WeightType::kQ8_0 : WeightType::kQ6K;
  }
  // Of mixtures of eight experts the other matrices are a small part.
  if (spec.experts.count == 8) {
    if (is(".attn_v.weight") || is(".attn_k.weight")) return WeightType::kQ8_0;
    if (is(".attn_output.weight") && has_five_bits_of_eight_experts(type)) return WeightType::kQ5K;
  }
  if (is(".attn_v.weight") || is(".attn_qkv.weight")) return type_of_values(type, spec, layer);
  // Of experts, too.
  if (parsed && parsed->rest.starts_with("ffn_down")) return type_of_down(type, spec.layers, layer);
  if (is(".attn_output.weight") && type == WeightType::kQ2K) return WeightType::kQ3K;
  if (is(".attn_output.weight") && type == WeightType::kQ3K) return WeightType::kQ4K;
  return type;
}

WeightType that_fits(WeightType type, uint64_t columns) {
  if (columns % static_cast<uint64_t>(ops::block_values(type)) == 0) return type;
  if (columns % 32 != 0) return WeightType::kF16;
  switch (type) {
    case WeightType::kQ4K:
      return WeightType::kQ5_0;
    case WeightType::kQ5K:
      return WeightType::kQ5_1;
    case WeightType::kQ6K:
      return WeightType::kQ8_0;
    default:
      return WeightType::kIq4Nl;
  }
}

bool is_of_a_product(std::string_view name, uint32_t dimensions) {
  return dimensions >= 2 && name.ends_with(".weight") && name != "position_embd.weight" &&
         !name.ends_with("_norm.weight") && !name.ends_with("ffn_gate_inp.weight") &&
         !name.ends_with("ffn_gate_inp_shexp.weight") && !name.ends_with("ssm_conv1d.weight");
}

}  // namespace

const QuantizationRecipe* find_recipe(std::string_view name) {
  for (const QuantizationRecipe& recipe : kRecipes) {
    if (recipe.name == name) return &recipe;
  }
  return nullptr;
}

std::vector<std::string> recipe_names() {
  std::vector<std::string> out;
  for (const QuantizationRecipe& recipe : kRecipes) out.emplace_back(recipe.name);
  return out;
}

std::string_view type_in_recipe(const QuantizationRecipe& recipe, const ModelSpec& spec,
                                std::string_view name, uint32_t dimensions, uint64_t columns,
                                std::string_view stored) {
  if (!is_of_a_product(name, dimensions)) return stored == "F16" || stored == "BF16" ? "F32" : stored;
  const WeightType type = in_mixture(recipe.type, spec, name, columns % 256 == 0);
  return ops::weight_type_name(that_fits(type, columns));
}

}  // namespace kvasir
