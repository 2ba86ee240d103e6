// What a packed model says about the numerics of its products.
#include "exec/cpu/packed_model.h"

#include <gtest/gtest.h>

#include <tuple>

#include "support/tiny_llama.h"

namespace kvasir {
namespace {

using ops::ActivationMode;
using ops::WeightType;
using Types = std::vector<std::pair<std::string, WeightType>>;

// "under kAuto under kF32"
std::string activation_types(WeightType type, const Types& others, bool tied = true) {
  test::TinyLlamaShape shape = test::tiny_gqa();
  shape.tied = tied;
  shape.other_types = others;
  auto file = ModelFile::from_bytes(test::make_tiny_llama(shape, type, 5), "model.gguf");
  EXPECT_TRUE(file.ok()) << file.status().message();
  auto packed = PackedModel::make(**file, 64);
  EXPECT_TRUE(packed.ok()) << packed.status().message();
  return (*packed)->activation_types(ActivationMode::kAuto) + " " +
         (*packed)->activation_types(ActivationMode::kF32);
}

TEST(PackedModel, NamesTheRowsThatItsProductsTake) {
  EXPECT_EQ(activation_types(WeightType::kQ4_1, {}), "int8 f32");
  EXPECT_EQ(activation_types(WeightType::kBf16, {}), "bf16 f32");
  EXPECT_EQ(activation_types(WeightType::kQ8_0, {{"attn_v", WeightType::kBf16}}), "bf16+int8 f32");
  EXPECT_EQ(activation_types(WeightType::kBf16, {{"ffn_down", WeightType::kQ4_0}}), "bf16+int8 f32");
  EXPECT_EQ(activation_types(WeightType::kF16, {{"attn_k", WeightType::kBf16}}), "bf16+f32 f32");
  EXPECT_EQ(activation_types(WeightType::kF32, {}), "f32 f32");
}

TEST(PackedModel, ATableThatIsOnlyLookedUpInIsNoProduct) {
  const Types types = {{"token_embd", WeightType::kBf16}};
  EXPECT_EQ(activation_types(WeightType::kQ8_0, types, false), "int8 f32");
  EXPECT_EQ(activation_types(WeightType::kQ8_0, types, true), "bf16+int8 f32");
}

TEST(PackedModel, BiasesStandAsTheColumnsOfQKV) {
  test::TinyLlamaShape shape = test::tiny_gqa();
  shape.qkv_bias = true;
  const test::GgufBuilder whole = test::tiny_llama_builder(shape, WeightType::kQ8_0, 5);
  const auto bias = [](const test::GgufBuilder& b, size_t layer) {
    auto file = ModelFile::from_bytes(b.build(), "model.gguf");
    EXPECT_TRUE(file.ok()) << file.status().message();
    const LayerWeights& l = (*file)->weights().layers[layer];
    auto packed = PackedModel::make(**file, 64);
    EXPECT_TRUE(packed.ok()) << packed.status().message();
    return std::tuple((*packed)->layers()[layer].qkv_bias, l.q_bias, l.k_bias, l.v_bias);
  };
  const std::vector<float> none_q(128), none_kv(64);
  const auto joined = [](std::vector<float> a, const std::vector<float>& b, const std::vector<float>& c) {
    a.insert(a.end(), b.begin(), b.end());
    a.insert(a.end(), c.begin(), c.end());
    return a;
  };
  for (size_t layer : {0U, 2U}) {
    const auto [all, q, k, v] = bias(whole, layer);
    EXPECT_EQ(q.size(), 128U);
    EXPECT_EQ(all, joined(q, k, v));
    // A part that is absent is zero, in its layer only.
    test::GgufBuilder part = whole;
    part.remove_tensor("blk.0.attn_k.bias");
    EXPECT_EQ(std::get<0>(bias(part, layer)), joined(q, layer == 0 ? none_kv : k, v));
    part.remove_tensor("blk.0.attn_q.bias");
    EXPECT_EQ(std::get<0>(bias(part, layer)), layer == 0 ? joined(none_q, none_kv, v) : all);
    part.remove_tensor("blk.0.attn_v.bias");
    EXPECT_EQ(std::get<0>(bias(part, layer)), layer == 0 ? std::vector<float>() : all);
  }
}

}  // namespace
}  // namespace kvasir
