// Qwen's hybrids of recurrent layers and attention: what their files and folders may say, and what is
// refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>

#include "model/model_folder_cases.h"
#include "support/gguf_builder.h"
#include "support/quantized_folder.h"
#include "support/tiny_llama.h"

namespace kvasir {
namespace {

using ops::WeightType;
using test::TinyLlamaShape;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TinyLlamaShape hybrid(const std::string& architecture) {
  for (TinyLlamaShape& shape : test::tiny_hybrids()) {
    if (shape.architecture == architecture) return shape;
  }
  KV_CHECK(false, "{}", architecture);
  return {};
}

TinyFolder hybrid_folder(const std::string& architecture) {
  return make_tiny_folder(hybrid(architecture), WeightType::kBf16, 5);
}

// ---------------------------------------------------------------- folders

// As they are published: a wrapper of text and images, and a layer that predicts further tokens.
TEST(QwenHybrids, TheTextPartOfWrappersIsRead) {
  for (const std::string architecture : {"qwen35", "qwen35moe"}) {
    SCOPED_TRACE(architecture);
    TinyFolder folder = hybrid_folder(architecture);
    const Opened text(folder);
    EXPECT_THAT((*text).warnings(), IsEmpty());
    const std::string type = architecture == "qwen35" ? "qwen3_5" : "qwen3_5_moe";
    folder.texts["config.json"] = R"({"model_type":")" + type +
                                  R"(","architectures":["Qwen3_5ForConditionalGeneration"],)"
                                  R"("image_token_id":7,"vision_config":{"depth":2},"text_config":)" +
                                  folder.texts["config.json"] + "}";
    for (FolderTensor& tensor : folder.tensors) tensor.name = "model.language_model." + tensor.name.substr(6);
    folder.tensors.push_back({"model.visual.merger.a", "BF16", {2}, std::vector<std::byte>(4)});
    folder.tensors.push_back({"mtp.fc.weight", "F32", {1}, std::vector<std::byte>(4)});
    const Opened wrapped(folder);
    EXPECT_EQ((*wrapped).spec().architecture, architecture);
    EXPECT_TRUE((*wrapped).spec() == (*text).spec());
    EXPECT_THAT((*wrapped).warnings(),
                ElementsAre(HasSubstr("1 tensors of images"), HasSubstr("1 tensors of layers behind")));
  }
}

TEST(QwenHybrids, AFolderSaysWhatItsGgufFileSays) {
  for (const TinyLlamaShape& shape : test::tiny_hybrids()) {
    SCOPED_TRACE(shape.architecture);
    const Opened folder(make_tiny_folder(shape, WeightType::kBf16, 5));
    const auto file = ModelFile::from_bytes(make_tiny_llama(shape, WeightType::kBf16, 5), "tiny.gguf");
    ASSERT_TRUE(file.ok()) << file.status().message();
    ModelSpec expected = (*file)->spec();
    expected.name = (*folder).spec().name;
    EXPECT_TRUE((*folder).spec() == expected);
    EXPECT_EQ(expected.recurrent.by_turns, shape.architecture != "qwen3next");
    EXPECT_EQ(expected.attention_layers(), 1);
    EXPECT_EQ(expected.ropes.at(0).dim, shape.head_dim / 2);
  }
}

// Two key heads and six value heads: GGUF's 0, 1, 2, 3, 4, 5 are the folder's 0, 3, 1, 4, 2, 5.
TEST(QwenHybrids, ValueHeadsOfAFolderArePutByTurns) {
  const TinyFolder folder = hybrid_folder("qwen35");
  const Opened opened(folder);
  const FolderTensor* dt = nullptr;
  for (const FolderTensor& tensor : folder.tensors) {
    if (tensor.name == "model.layers.0.linear_attn.dt_bias") dt = &tensor;
  }
  ASSERT_NE(dt, nullptr);
  const std::vector<float>& ours = (*opened).weights().layers[0].recurrent.dt_bias;
  ASSERT_EQ(ours.size(), 6u);
  constexpr size_t kTheirs[] = {0, 3, 1, 4, 2, 5};
  for (size_t h = 0; h < 6; ++h) {
    float theirs = 0;
    std::memcpy(&theirs, dt->data.data() + kTheirs[h] * sizeof(float), sizeof(float));
    EXPECT_EQ(ours[h], theirs) << h;
  }
}

TEST(QwenHybrids, FieldsOfAConfigurationAreRefusedByName) {
  const struct {
    const char* architecture;
    const char* fields;
    const char* part;
  } cases[] = {
      {"qwen35", R"("attn_output_gate":false)", "'attn_output_gate' is false"},
      {"qwen35", R"("attention_bias":true)", "'attention_bias' is true"},
      {"qwen35", R"("num_experts":8)", "'num_experts' is 8"},
      {"qwen35", R"("mlp_only_layers":[1])", "'mlp_only_layers' is [1]"},
      {"qwen35", R"("hidden_act":"gelu")", "'hidden_act' is \"gelu\""},
      {"qwen35", R"("layer_types":["linear_attention"])", "where one for each of 5 layers is needed"},
      {"qwen35",
       R"("layer_types":["linear_attention","sliding_attention","linear_attention","linear_attention",)"
       R"("full_attention"])",
       "where only linear_attention and full_attention are supported"},
      {"qwen35", R"("rope_parameters":{"rope_type":"dynamic","rope_theta":10000.0})", "'dynamic'"},
      {"qwen35", R"("rope_parameters":{"rope_type":"default","mrope_size":[1]})", "'mrope_size' is [1]"},
      {"qwen35", R"("rope_parameters":{"partial_rotary_factor":1.5})", "'partial_rotary_factor' is 1.5"},
      {"qwen35moe", R"("norm_topk_prob":false)", "'norm_topk_prob' is false"},
      {"qwen35moe", R"("mlp_only_layers":[1])", "'mlp_only_layers' is [1]"},
      {"qwen3next", R"("attention_bias":true)", "'attention_bias' is true"},
      {"qwen3next", R"("use_sliding_window":true)", "'use_sliding_window' is true"},
  };
  for (const auto& [architecture, fields, part] : cases) {
    SCOPED_TRACE(std::string(architecture) + " " + fields);
    expect_refused(with(hybrid_folder(architecture), fields), ErrorCode::kUnsupported, part);
  }
  expect_refused(with(hybrid_folder("qwen35"), R"("linear_num_value_heads":0)"), ErrorCode::kInvalidArgument,
                 "'linear_num_value_heads' is 0");
}

TEST(QwenHybrids, TensorsThatDoNotFitAreNamed) {
  const auto refused = [](const std::string& fields, const std::string& part) {
    expect_refused(with(hybrid_folder("qwen35"), fields), ErrorCode::kCorrupt, part);
  };
  refused(R"("linear_num_value_heads":8)", "'model.layers.0.linear_attn.A_log' is 6 x 1");
  refused(R"("linear_num_value_heads":5)", "160 values do not divide evenly among 5 heads");
  const auto without = [](const std::string& name) {
    TinyFolder folder = hybrid_folder("qwen35");
    std::erase_if(folder.tensors, [&](const FolderTensor& t) { return t.name == "model." + name; });
    expect_refused(folder, ErrorCode::kCorrupt, "the tensor '" + name + "' is missing");
  };
  for (const char* role : {"in_proj_qkv.weight", "in_proj_z.weight", "in_proj_a.weight", "in_proj_b.weight",
                           "A_log", "dt_bias", "conv1d.weight", "norm.weight", "out_proj.weight"}) {
    without(std::string("layers.1.linear_attn.") + role);
  }
  without("layers.3.self_attn.q_norm.weight");
  // Shapes of what is put by turns.
  const struct {
    const char* role;
    std::vector<uint64_t> shape;
    const char* part;
  } cases[] = {{"out_proj.weight", {192, 128}, "has 128 columns where config.json asks for 192"},
               {"in_proj_qkv.weight", {128, 256}, "has 128 rows where config.json asks for 256"},
               {"in_proj_b.weight", {3, 256}, "has 3 rows where config.json asks for 6"},
               {"dt_bias", {3, 2}, "where the metadata asks for 6 x 1"},
               {"A_log", {2, 3}, "where the metadata asks for 6 x 1"},
               {"conv1d.weight", {128, 1, 8}, "where the metadata asks for 8 x 256"}};
  for (const auto& [role, shape, part] : cases) {
    SCOPED_TRACE(role);
    TinyFolder folder = hybrid_folder("qwen35");
    folder.tensor(std::string("model.layers.0.linear_attn.") + role).shape = shape;
    expect_refused(folder, ErrorCode::kCorrupt, part);
  }
  // Qwen3-Next's tensors are none of Qwen 3.5's.
  TinyFolder mixed = hybrid_folder("qwen35");
  mixed.tensor("model.layers.0.linear_attn.in_proj_a.weight").name =
      "model.layers.0.linear_attn.in_proj_ba.weight";
  expect_refused(mixed, ErrorCode::kUnsupported, "in_proj_ba.weight' is none that a qwen3_5_text");
}

// A layer's experts are in one tensor or in one each, but not in both.
TEST(QwenHybrids, ExpertsInOneTensorAreThoseOfATensorEach) {
  TinyFolder apart = hybrid_folder("qwen35moe"), joined = apart;
  for (int layer = 0; layer < 5; ++layer) {
    const std::string stem = "model.layers." + std::to_string(layer) + ".mlp.experts.";
    FolderTensor both, down;
    for (int e = 0; e < 8; ++e) {
      const std::string of = stem + std::to_string(e);
      for (const auto& [role, to] : {std::pair{".gate_proj.weight", &both},
                                     {".up_proj.weight", &both},
                                     {".down_proj.weight", &down}}) {
        const FolderTensor& one = apart.tensor(of + role);
        to->type = one.type;
        to->shape = {8, one.shape[0] * (to == &both ? 2 : 1), one.shape[1]};
        to->data.insert(to->data.end(), one.data.begin(), one.data.end());
      }
    }
    std::erase_if(joined.tensors, [&](const FolderTensor& t) { return t.name.starts_with(stem); });
    both.name = stem + "gate_up_proj";
    down.name = stem + "down_proj";
    joined.tensors.push_back(both);
    joined.tensors.push_back(down);
  }
  const Opened a(apart), b(joined);
  EXPECT_THAT((*b).warnings(), IsEmpty());
  for (size_t layer = 0; layer < 5; ++layer) {
    const ExpertWeights &x = (*a).weights().layers[layer].experts, &y = (*b).weights().layers[layer].experts;
    ASSERT_EQ(y.gate.size(), 8u);
    for (size_t e = 0; e < 8; ++e) {
      for (const auto& [p, q] :
           {std::pair{&x.gate[e], &y.gate[e]}, {&x.up[e], &y.up[e]}, {&x.down[e], &y.down[e]}}) {
        ASSERT_EQ(p->bytes, q->bytes);
        EXPECT_EQ(std::memcmp(p->data, q->data, p->bytes), 0) << layer << " " << e;
      }
    }
  }
  joined.tensors.push_back(apart.tensor("model.layers.0.mlp.experts.3.up_proj.weight"));
  expect_refused(joined, ErrorCode::kUnsupported, "experts.3.up_proj.weight' is none that");
  joined.tensors.pop_back();
  std::erase_if(joined.tensors,
                [](const FolderTensor& t) { return t.name.ends_with("2.mlp.experts.down_proj"); });
  expect_refused(joined, ErrorCode::kCorrupt, "'layers.2.mlp.experts.down_proj' is missing");
}

// Blocks of 128 inputs, of which a value head has 32: columns cannot be put by turns.
TEST(QwenHybrids, BlocksThatReachOverValueHeadsAreRefused) {
  TinyLlamaShape shape = hybrid("qwen35");
  shape.value_heads = 4;
  shape.ffn = 256;
  const TinyFolder from = make_tiny_folder(shape, WeightType::kBf16, 5);
  const auto with_groups = [&](int64_t group) {
    return test::quantize_folder(from, {.form = "gptq", .group = group}).folder;
  };
  expect_refused(with_groups(128), ErrorCode::kUnsupported,
                 "linear_attn.out_proj.weight' is quantised in groups that reach over its heads of 32");
  const Opened small(with_groups(32));
  EXPECT_EQ((*small).weights().layers[0].attn_output.type, WeightType::kZ4);
  EXPECT_EQ((*small).weights().layers[0].recurrent.qkv.type, WeightType::kZ4);
}

// ---------------------------------------------------------------- GGUF files

using Edit = std::function<void(test::GgufBuilder&)>;

Result<std::unique_ptr<ModelFile>> open_with(const std::string& architecture, const Edit& edit) {
  test::GgufBuilder builder = tiny_llama_builder(hybrid(architecture), WeightType::kF32, 1);
  edit(builder);
  return ModelFile::from_bytes(builder.build(), "hybrid.gguf");
}

// Converters write the layers that predict further tokens behind the others, and count them.
TEST(QwenHybrids, LayersBehindTheLastOneAreNotUsed) {
  for (const std::string architecture : {"qwen3next", "qwen35", "qwen35moe"}) {
    SCOPED_TRACE(architecture);
    const auto with_further = [&](uint32_t further, uint32_t layer) {
      return open_with(architecture, [&](test::GgufBuilder& builder) {
        builder.set_u32(architecture + ".block_count", 6);
        builder.set_u32(architecture + ".nextn_predict_layers", further);
        builder.add_tensor("blk." + std::to_string(layer) + ".attn_norm.weight", {4}, 0,
                           std::vector<std::byte>(16));
      });
    };
    const auto file = with_further(1, 5);
    ASSERT_TRUE(file.ok()) << file.status().message();
    EXPECT_EQ((*file)->spec().layers, 5);
    EXPECT_EQ((*file)->spec().attention_layers(), 1);
    EXPECT_THAT((*file)->warnings(), ElementsAre(HasSubstr("1 tensors of layers behind the last one")));
    EXPECT_THAT(with_further(1, 6).status().message(), HasSubstr("lies beyond the model's 5 layers"));
    EXPECT_THAT(with_further(6, 5).status().message(), HasSubstr("of 6 layers 6 lie behind the last one"));
  }
}

TEST(QwenHybrids, MetadataThatMakesNoSenseIsRefused) {
  const struct {
    const char* key;
    uint32_t value;
    ErrorCode code;
    const char* part;
  } cases[] = {
      {"ssm.time_step_rank", 5, ErrorCode::kCorrupt, "192 values do not divide evenly among 5 heads"},
      {"ssm.time_step_rank", 3, ErrorCode::kCorrupt, "or these among 2 heads of keys"},
      {"ssm.group_count", 0, ErrorCode::kCorrupt, "'qwen35.ssm.group_count' is 0"},
      {"ssm.conv_kernel", 65, ErrorCode::kCorrupt, "'qwen35.ssm.conv_kernel' is 65"},
      {"ssm.state_size", 24, ErrorCode::kUnsupported, "heads of 24 keys and 32 values"},
      {"full_attention_interval", 1000, ErrorCode::kUnsupported, "whose layers are all recurrent"},
      {"expert_count", 8, ErrorCode::kUnsupported, "'qwen35.expert_count' is 8"},
      {"ssm.inner_size", 384, ErrorCode::kCorrupt, "'blk.0.attn_qkv.weight'"},
  };
  for (const auto& [key, value, code, part] : cases) {
    SCOPED_TRACE(std::string(key) + " " + std::to_string(value));
    const auto file = open_with("qwen35", [name = std::string("qwen35.") + key, to = value](
                                              test::GgufBuilder& builder) { builder.set_u32(name, to); });
    ASSERT_FALSE(file.ok());
    EXPECT_EQ(file.status().code(), code);
    EXPECT_THAT(file.status().message(), HasSubstr(part));
  }
}

}  // namespace
}  // namespace kvasir
