// What a packed model says about the numerics of its products.
#include "model/packed_model.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace kvasir
