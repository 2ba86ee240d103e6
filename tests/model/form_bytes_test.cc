// What X takes beside K and V: numbers worked by hand.
#include "model/files/form_bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/files/inspect.h"
#include "model/files/model_file.h"
#include "support/tiny_llama.h"

namespace kvasir {
namespace {

using ops::ActivationMode;
using ops::ActivationType;
using ops::KvType;
using ops::WeightType;
using ::testing::HasSubstr;

ModelSpec shape(int32_t layers, int32_t dim, int32_t heads, int32_t kv_heads, int32_t head_dim) {
  ModelSpec c;
  c.layers = layers;
  c.dim = dim;
  c.heads = heads;
  c.kv_heads = kv_heads;
  c.head_dim = head_dim;
  return c;
}

TEST(FormBytes, OfMultiHeadAttention) {
  const ModelSpec c = shape(12, 768, 12, 12, 64);
  const FormBytes int8 = form_bytes(c, ActivationType::kInt8);
  EXPECT_EQ(int8.x_per_token_layer, 816U);  // 768 + 24 scales of 2
  EXPECT_EQ(int8.x_per_token, 9792U);
  EXPECT_DOUBLE_EQ(x_to_kv(c, int8, KvType::kBf16), 816.0 / 3072);  // 0.266
  EXPECT_DOUBLE_EQ(x_to_kv(c, int8, KvType::kF32), 816.0 / 6144);
  EXPECT_DOUBLE_EQ(x_to_kv(c, int8, KvType::kQ8_0), 816.0 / (2 * 12 * 66));  // 0.515
  const FormBytes bf16 = form_bytes(c, ActivationType::kBf16);
  EXPECT_EQ(bf16.x_per_token_layer, 1536U);
  EXPECT_DOUBLE_EQ(x_to_kv(c, bf16, KvType::kBf16), 0.5);
  const FormBytes f32 = form_bytes(c, ActivationType::kF32);
  EXPECT_EQ(f32.x_per_token_layer, 3072U);
  EXPECT_DOUBLE_EQ(x_to_kv(c, f32, KvType::kBf16), 1.0);
}

// SmolLM2-135M: three query heads for each KV head.
TEST(FormBytes, OfGroupedQueries) {
  const ModelSpec c = shape(30, 576, 9, 3, 64);
  const FormBytes forms = form_bytes(c, ActivationType::kInt8);
  EXPECT_EQ(forms.x_per_token_layer, 612U);
  EXPECT_EQ(forms.x_per_token, 18360U);
  EXPECT_DOUBLE_EQ(x_to_kv(c, forms, KvType::kBf16), 612.0 / 768);  // 0.797
  EXPECT_DOUBLE_EQ(x_to_kv(c, forms, KvType::kQ8_0), 612.0 / 396);  // 1.55
}

// TinyLlama-1.1B: eight for each.
TEST(FormBytes, OfManyQueriesForEachKvHead) {
  const ModelSpec c = shape(22, 2048, 32, 4, 64);
  const FormBytes forms = form_bytes(c, ActivationType::kInt8);
  EXPECT_EQ(forms.x_per_token_layer, 2176U);
  EXPECT_DOUBLE_EQ(x_to_kv(c, forms, KvType::kBf16), 2.125);
  EXPECT_DOUBLE_EQ(x_to_kv(c, forms, KvType::kF32), 1.0625);
}

TEST(FormBytes, AreMultiplesOfFour) {
  // 96 values and 3 scales.
  EXPECT_EQ(form_bytes(shape(2, 96, 3, 3, 32), ActivationType::kInt8).x_per_token_layer, 104U);
  EXPECT_EQ(form_bytes(shape(2, 33, 1, 1, 33), ActivationType::kBf16).x_per_token_layer, 68U);
}

std::unique_ptr<ModelFile> model(const test::TinyLlamaShape& s, WeightType type) {
  auto file = ModelFile::from_bytes(test::make_tiny_llama(s, type, 5), "model.gguf");
  KV_CHECK(file.ok(), "{}", file.status().message());
  return std::move(file).value();
}

TEST(FormBytes, XIsWhatTheProductsOfKAndVTake) {
  using Types = std::vector<std::pair<std::string, WeightType>>;
  const auto x_type = [](WeightType type, const Types& others, ActivationMode mode = ActivationMode::kAuto) {
    test::TinyLlamaShape s = test::tiny_gqa();
    s.other_types = others;
    return x_type_of(model(s, type)->weights(), mode);
  };
  EXPECT_EQ(x_type(WeightType::kQ4_1, {}), ActivationType::kInt8);
  EXPECT_EQ(x_type(WeightType::kQ4_1, {}, ActivationMode::kF32), ActivationType::kF32);
  EXPECT_EQ(x_type(WeightType::kBf16, {}), ActivationType::kBf16);
  EXPECT_EQ(x_type(WeightType::kF16, {}), ActivationType::kF32);
  EXPECT_EQ(x_type(WeightType::kQ4_1, {{"attn_v", WeightType::kQ8_0}}), ActivationType::kInt8);
  EXPECT_EQ(x_type(WeightType::kQ4_1, {{"attn_q", WeightType::kBf16}}), ActivationType::kInt8);
  EXPECT_EQ(x_type(WeightType::kQ4_1, {{"attn_v", WeightType::kBf16}}), ActivationType::kF32);
  EXPECT_EQ(x_type(WeightType::kQ4_1, {{"blk.1.attn", WeightType::kBf16}}), ActivationType::kF32)
      << "one layer is different";
}

TEST(FormBytes, InspectSaysWhereXPays) {
  const auto text = [](int32_t dim, int32_t heads, int32_t kv_heads, WeightType type) {
    test::TinyLlamaShape s;
    s.layers = 1;
    s.dim = dim;
    s.heads = heads;
    s.kv_heads = kv_heads;
    s.head_dim = 64;
    s.ffn = 32;
    return describe_model(*model(s, type));
  };
  EXPECT_THAT(text(256, 4, 4, WeightType::kQ8_0),
              HasSubstr("hidden cache:         X pays: with K and V in f32 or bf16 or q8_0\n"));
  const std::string smol = text(576, 9, 3, WeightType::kQ8_0);
  EXPECT_THAT(smol,
              HasSubstr("X per token:          612 B (int8: 0.40 of f32, 0.80 of bf16, 1.55 of q8_0)\n"));
  EXPECT_THAT(
      text(512, 8, 1, WeightType::kQ8_0),
      HasSubstr(
          "hidden cache:         X does not pay, and is never chosen: it takes no less than K and V in f32 "
          "or bf16 or q8_0\n"));
  EXPECT_THAT(text(256, 4, 4, WeightType::kF32), HasSubstr("(f32: 0.50 of f32, 1.00 of bf16, 1.94 of q8_0)"));
}

}  // namespace
}  // namespace kvasir
