#include "golden/tiny_models.h"

#include <ostream>

namespace kvasir::test {
namespace {

constexpr int32_t kVocab = 288;  // small, so that all logits of a row fit in a golden
constexpr int32_t kContext = 1024;
constexpr uint64_t kSeed = 2024;

TinyLlamaShape small(TinyLlamaShape shape) {
  shape.vocab = kVocab;
  shape.context = kContext;
  return shape;
}

TinyLlamaShape with_heads(int32_t heads, int32_t kv_heads, int32_t head_dim) {
  TinyLlamaShape shape = small(tiny_mha());
  shape.heads = heads;
  shape.kv_heads = kv_heads;
  shape.head_dim = head_dim;
  return shape;
}

std::vector<GoldenModel> make_models() {
  using ops::WeightType;
  const TinyLlamaShape mha = small(tiny_mha());
  const TinyLlamaShape gqa = small(tiny_gqa());
  TinyLlamaShape untied = gqa;
  untied.tied = false;
  TinyLlamaShape base = gqa;
  base.rope_base = 100000.0F;
  TinyLlamaShape linear = gqa;
  linear.rope_linear_factor = 4.0F;
  TinyLlamaShape factors = gqa;
  factors.rope_factors = true;
  const auto biased = [](TinyLlamaShape shape) {
    shape.qkv_bias = true;
    return shape;
  };
  return {
      {"mha_f32", mha, WeightType::kF32},
      {"mha_bf16", mha, WeightType::kBf16},
      {"mha_f16", mha, WeightType::kF16},
      {"gqa_f32", gqa, WeightType::kF32},
      {"gqa_q8_0", gqa, WeightType::kQ8_0},
      {"gqa_q4_0", gqa, WeightType::kQ4_0},
      {"gqa_q4_1", gqa, WeightType::kQ4_1},
      {"untied_q8_0", untied, WeightType::kQ8_0},
      {"rope_base_f32", base, WeightType::kF32},
      {"rope_linear_f32", linear, WeightType::kF32},
      {"rope_factors_f32", factors, WeightType::kF32},
      {"head16_f32", with_heads(6, 2, 16), WeightType::kF32},
      {"head48_f32", with_heads(2, 1, 48), WeightType::kF32},
      {"bias_mha_f32", biased(mha), WeightType::kF32},
      {"bias_gqa_q8_0", biased(gqa), WeightType::kQ8_0},
      // The heads together are wider than the residual stream.
      {"head64_q8_0", with_heads(4, 1, 64), WeightType::kQ8_0},
  };
}

}  // namespace

void PrintTo(const GoldenModel& model, std::ostream* out) {
  *out << model.name;
}

const std::vector<GoldenModel>& golden_models() {
  static const std::vector<GoldenModel> models = make_models();
  return models;
}

std::vector<std::byte> golden_model_bytes(const GoldenModel& model) {
  return make_tiny_llama(model.shape, model.type, kSeed);
}

uint64_t fnv1a(const std::vector<std::byte>& bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (std::byte b : bytes) hash = (hash ^ static_cast<uint64_t>(b)) * 0x100000001b3;
  return hash;
}

}  // namespace kvasir::test
