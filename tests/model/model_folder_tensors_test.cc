// The tensors of folders of Hugging Face: by their names, and none that is not known.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/model_folder_cases.h"

namespace kvasir {
namespace {

using ops::WeightType;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Text of a model of text and images: its own part of the configuration, its tensors behind a prefix.
TEST(ModelFolder, ReadsTheTextPartOfWrappers) {
  for (const std::string prefix : {"language_model.model.", "model.language_model."}) {
    TinyFolder folder = tiny_folder_of("gemma3");
    const std::string text = folder.texts["config.json"];
    folder.texts["config.json"] =
        R"({"model_type":"gemma3","architectures":["Gemma3ForConditionalGeneration"],)"
        R"("image_token_index":7,"vision_config":{"hidden_size":4},"text_config":)" +
        text + "}";
    for (FolderTensor& tensor : folder.tensors) tensor.name = prefix + tensor.name.substr(6);
    folder.tensors.push_back({"vision_tower.a.weight", "BF16", {2}, std::vector<std::byte>(4)});
    folder.tensors.push_back({"model.multi_modal_projector.b", "F32", {1}, std::vector<std::byte>(4)});
    const Opened opened(folder);
    EXPECT_EQ((*opened).spec().architecture, "gemma3");
    EXPECT_THAT((*opened).warnings(), ElementsAre(HasSubstr("2 tensors of images")));
    EXPECT_EQ((*opened).gguf().find_tensor("vision_tower.a.weight"), nullptr);
  }
}

TEST(ModelFolder, AnOutputMatrixIsTheModelsOwnUnlessItIsTheEmbedding) {
  const auto folder_with = [](const std::string& tie, bool has_output, bool same) {
    TinyFolder folder = tiny_folder_of();
    folder.edit("config.json", R"(,"tie_word_embeddings":true)", tie);
    if (!has_output) return folder;
    FolderTensor output = folder.tensor("model.embed_tokens.weight");
    output.name = "lm_head.weight";
    if (!same) output.data[0] ^= std::byte{1};
    folder.tensors.push_back(output);
    return folder;
  };
  const std::string yes = R"(,"tie_word_embeddings":true)", no = R"(,"tie_word_embeddings":false)";
  EXPECT_TRUE((*Opened(folder_with(yes, false, false))).spec().tied_embeddings);
  EXPECT_TRUE((*Opened(folder_with(yes, true, true))).spec().tied_embeddings);
  EXPECT_FALSE((*Opened(folder_with(no, true, false))).spec().tied_embeddings);
  EXPECT_FALSE((*Opened(folder_with("", true, false))).spec().tied_embeddings);
  expect_refused(folder_with(yes, true, false), ErrorCode::kUnsupported, "'tie_word_embeddings' is true");
  expect_refused(folder_with(no, false, false), ErrorCode::kCorrupt, "'lm_head.weight' is missing");
  expect_refused(folder_with("", false, false), ErrorCode::kCorrupt,
                 "'lm_head.weight' is missing");  // Llama's default
  // The first is the embedding, which is no reason to take another one for the output.
  TinyFolder two = folder_with(yes, true, true);
  FolderTensor second = two.tensors.back();
  second.name = "model.lm_head.weight";
  second.data[0] ^= std::byte{1};
  two.tensors.push_back(second);
  expect_refused(two, ErrorCode::kCorrupt, "'model.lm_head.weight' is there twice");
}

TEST(ModelFolder, BiasesAreThoseOfTheConfiguration) {
  test::TinyLlamaShape shape = test::tiny_gqa();
  shape.qkv_bias = true;
  TinyFolder folder = make_tiny_folder(shape, WeightType::kBf16, 5);
  expect_refused(folder, ErrorCode::kCorrupt, "'layers.0.self_attn.o_proj.bias' is missing");
  for (int layer = 0; layer < shape.layers; ++layer) {
    folder.tensors.push_back({fmt::format("model.layers.{}.self_attn.o_proj.bias", layer),
                              "F32",
                              {static_cast<uint64_t>(shape.dim)},
                              std::vector<std::byte>(static_cast<size_t>(shape.dim) * 4)});
  }
  const Opened opened(folder);
  EXPECT_FALSE((*opened).weights().layers[0].q_bias.empty());
  EXPECT_FALSE((*opened).weights().layers[0].attn_output_bias.empty());
  folder.edit("config.json", R"("attention_bias":true,)", "");
  expect_refused(folder, ErrorCode::kUnsupported,
                 "_proj.bias' is none that a llama of this configuration has");
}

// Whatever it is: a model that has it computes something else.
TEST(ModelFolder, RefusesATensorOfUnknownRole) {
  for (const char* name :
       {"extra", "blk.0.attn_q.bias", "model.layers.0.self_attn.sinks",
        "model.layers.0.self_attn.q_layernorm.weight", "model.layers.0.pre_feedforward_layernorm.weight",
        "model.layers.0.self_attn.q_proj.lora_A.weight", "model.layers.0.mlp.experts"}) {
    TinyFolder folder = tiny_folder_of();
    folder.tensors.push_back({name, "F32", {1}, std::vector<std::byte>(4)});
    expect_refused(folder, ErrorCode::kUnsupported, fmt::format("the tensor '{}' is none that", name));
  }
}

TEST(ModelFolder, ATensorInTwoFilesIsRefused) {
  const TinyFolder content = tiny_folder_of();
  const FolderInMemory memory(content);
  FolderFiles files = memory.files();
  const auto again = test::safetensors_of({content.tensors[3]});
  files.weights.push_back({"second.safetensors", again});
  const Status status = ModelFile::from_folder(files).status();
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr("is there twice"));
}

TEST(ModelFolder, NamesATensorThatIsMissing) {
  TinyFolder folder = tiny_folder_of();
  const auto drop = [](TinyFolder from, const std::string& name) {
    std::erase_if(from.tensors, [&](const FolderTensor& t) { return t.name == name; });
    return from;
  };
  expect_refused(drop(folder, "model.layers.1.mlp.up_proj.weight"), ErrorCode::kCorrupt,
                 "'layers.1.mlp.up_proj.weight' is missing");
  expect_refused(drop(folder, "model.norm.weight"), ErrorCode::kCorrupt, "'norm.weight' is missing");
  expect_refused(drop(tiny_folder_of("opt"), "model.decoder.final_layer_norm.bias"), ErrorCode::kCorrupt,
                 "'final_layer_norm.bias' is missing");
  expect_refused(drop(tiny_folder_of("qwen2"), "model.layers.0.self_attn.k_proj.bias"), ErrorCode::kCorrupt,
                 "'layers.0.self_attn.k_proj.bias' is missing");
  folder.tensors.push_back({"model.layers.3.mlp.up_proj.weight", "BF16", {1}, std::vector<std::byte>(2)});
  expect_refused(folder, ErrorCode::kUnsupported, "beyond the model's 3 layers");
}

}  // namespace
}  // namespace kvasir
