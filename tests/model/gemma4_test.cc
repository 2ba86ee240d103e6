// Gemma 4: heads of two sizes, in folders and GGUF files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "model/model_folder_cases.h"

namespace kvasir {
namespace {

using ops::WeightType;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Published files say the heads of layers without a window by fields of their own, those that transformers
// has saved since say them by layer.
TEST(Gemma4, HasHeadsOfTwoSizes) {
  const Opened published(tiny_folder_of("gemma4"));
  const ModelSpec& spec = (*published).spec();
  std::vector<HeadShape> heads;
  std::vector<int32_t> ropes;
  for (const LayerSpec& layer : spec.layer_specs) {
    heads.push_back(spec.heads_of(layer));
    ropes.push_back(layer.rope);
  }
  const HeadShape local = {4, 4, 32}, global = {4, 2, 64};
  EXPECT_THAT(heads, ElementsAre(local, global, local, global));
  EXPECT_THAT(ropes, ElementsAre(1, 0, 1, 0));
  EXPECT_THAT(spec.windows(), ElementsAre(96, 0, 96, 0));
  ASSERT_EQ(spec.ropes.size(), 2U);
  EXPECT_EQ(spec.ropes[0].dim, 64);
  EXPECT_THAT(spec.ropes[0].divisors, AllOf(SizeIs(32), Contains(1.0F).Times(8), Contains(1e30F).Times(24)));
  EXPECT_EQ(spec.ropes[1].dim, 32);
  EXPECT_TRUE(spec.ropes[1].divisors.empty());
  EXPECT_EQ(spec.query_scale, 1);

  TinyFolder saved =
      with(tiny_folder_of("gemma4"), R"("per_layer_config":{"1":{"head_dim":64,"num_key_value_heads":2},)"
                                     R"("3":{"head_dim":64,"num_key_value_heads":2}})");
  saved.edit("config.json", R"("global_head_dim":64,)", "");
  saved.edit("config.json", R"("num_global_key_value_heads":2,)", "");
  EXPECT_EQ((*Opened(saved)).spec(), spec);
}

// All layers have planes of the largest one's size.
TEST(Gemma4, APlaneIsAsLargeAsTheLargestLayersIs) {
  const auto plane = [](int32_t kv_heads, int32_t window_kv_heads) {
    test::TinyLlamaShape shape = shape_of("gemma4");
    shape.kv_heads = kv_heads;
    shape.window_kv_heads = window_kv_heads;
    const Opened opened(make_tiny_folder(shape, WeightType::kBf16, 5));
    return (*opened).spec().kv_plane_bytes_per_token_layer(ops::KvType::kBf16);
  };
  EXPECT_EQ(plane(2, 4), 2U * 2 * 64);
  EXPECT_EQ(plane(1, 4), 2U * 4 * 32);
  EXPECT_EQ(plane(4, 1), 2U * 4 * 64);
}

TEST(Gemma4, KeysMayBeValues) {
  const TinyFolder folder = tiny_folder_of("gemma4");
  const Opened opened(folder);
  const TensorTable& weights = (*opened).weights();
  EXPECT_EQ(weights.layers[1].attn_v.data, weights.layers[1].attn_k.data);
  EXPECT_NE(weights.layers[0].attn_v.data, weights.layers[0].attn_k.data);
  EXPECT_EQ(weights.layers[1].v_norm, std::vector<float>(64, 1.0F));
  TinyFolder apart = folder;
  apart.edit("config.json", R"("attention_k_eq_v":true)", R"("attention_k_eq_v":false)");
  expect_refused(apart, ErrorCode::kCorrupt, "v_proj");
}

TEST(Gemma4, FoldersOfPartsThatAreNotComputedAreRefused) {
  for (const auto& [fields, part] : std::vector<std::pair<std::string, std::string>>{
           {R"("hidden_size_per_layer_input":256)", "inputs of 256 values for each layer"},
           {R"("num_kv_shared_layers":2)", "'num_kv_shared_layers' is 2"},
           {R"("enable_moe_block":true)", "'enable_moe_block' is true"},
           {R"("use_double_wide_mlp":true)", "'use_double_wide_mlp' is true"},
           {R"("use_bidirectional_attention":"all")", "'use_bidirectional_attention' is \"all\""},
           {R"("per_layer_config":{"4":{"head_dim":64}})", "where an object for each layer is needed"},
           {R"("per_layer_config":{"1":{"sliding_window":8}})", "per_layer_config: 1: 'sliding_window' is 8"},
           {R"("per_layer_config":{"1":{"head_dim":64}})",
            "which gives layers of one type heads of two sizes"},
           {R"("rope_parameters":{"full_attention":{"rope_type":"proportional","factor":2.0}})",
            "full_attention: 'factor' is 2"},
           {R"("rope_parameters":{"full_attention":{"rope_type":"yarn"}})", "'rope_type' is \"yarn\""}}) {
    expect_field_refused("gemma4", fields, part);
  }
  // Without the field there are 256.
  TinyFolder folder = tiny_folder_of("gemma4");
  folder.edit("config.json", R"("hidden_size_per_layer_input":0,)", "");
  expect_refused(folder, ErrorCode::kUnsupported, "inputs of 256 values for each layer");
}

TEST(Gemma4, FilesOfPartsThatAreNotComputedAreRefused) {
  for (const char* key : {"attention.shared_kv_layers", "embedding_length_per_layer_input", "expert_count"}) {
    test::GgufBuilder file = test::tiny_llama_builder(shape_of("gemma4"), WeightType::kBf16, 5);
    const std::string name = std::string("gemma4.") + key;
    file.set_u32(name, 0);
    EXPECT_TRUE(ModelFile::from_bytes(file.build(), "model.gguf").ok()) << key;
    file.remove(name);
    file.set_u32(name, 2);
    const auto model = ModelFile::from_bytes(file.build(), "model.gguf");
    ASSERT_FALSE(model.ok()) << key;
    EXPECT_EQ(model.status().code(), ErrorCode::kUnsupported);
    EXPECT_THAT(model.status().message(), HasSubstr("'" + name + "' is 2, which is not supported"));
  }
}

}  // namespace
}  // namespace kvasir
