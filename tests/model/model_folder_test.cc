// Folders of Hugging Face: what config.json means for each architecture, tensors by their names, and one
// clear line for what this program does not compute. That logits are those of the GGUF file:
// exec/bits_test.cc.
#include "model/folders/model_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "model/files/inspect.h"
#include "model/files/model_file.h"
#include "model/tokenizers/tokenizer.h"
#include "support/temp_file.h"
#include "support/tiny_folder.h"

namespace kvasir {
namespace {

using ops::WeightType;
using test::FolderInMemory;
using test::FolderTensor;
using test::make_tiny_folder;
using test::TinyFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

test::TinyLlamaShape shape_of(const std::string& architecture) {
  for (test::TinyLlamaShape& shape : test::tiny_architectures()) {
    if (shape.architecture == architecture) return shape;
  }
  KV_CHECK(false, "{}", architecture);
  return {};
}

TinyFolder tiny_folder_of(const std::string& architecture = "llama") {
  test::TinyLlamaShape shape = shape_of(architecture);
  if (architecture == "llama") shape.window = 0;
  return make_tiny_folder(shape, WeightType::kBf16, 5);
}

// Adds fields to the configuration.
TinyFolder with(TinyFolder folder, const std::string& fields) {
  std::string& config = folder.texts["config.json"];
  config = config.substr(0, config.size() - 1) + "," + fields + "}";
  return folder;
}

struct Opened {
  explicit Opened(const TinyFolder& folder) : bytes(folder), model(ModelFile::from_folder(bytes.files())) {}
  const ModelFile& operator*() const {
    KV_CHECK(model.ok(), "{}", model.status().message());
    return **model;
  }
  FolderInMemory bytes;
  Result<std::unique_ptr<ModelFile>> model;
};

void expect_refused(const TinyFolder& folder, ErrorCode code, const std::string& part) {
  const Opened opened(folder);
  ASSERT_FALSE(opened.model.ok()) << part;
  const Status status = opened.model.status();
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_THAT(status.message(), AllOf(StartsWith("folder"), HasSubstr(part), Not(HasSubstr("\n"))));
}
void expect_field_refused(const std::string& architecture, const std::string& fields,
                          const std::string& part) {
  expect_refused(with(tiny_folder_of(architecture), fields), ErrorCode::kUnsupported, part);
}

std::vector<int32_t> windows_of(const ModelSpec& spec) {
  std::vector<int32_t> out;
  for (const LayerSpec& layer : spec.layer_specs) out.push_back(layer.window);
  return out;
}
std::vector<int32_t> ropes_of(const ModelSpec& spec) {
  std::vector<int32_t> out;
  for (const LayerSpec& layer : spec.layer_specs) out.push_back(layer.rope);
  return out;
}

// ---------------------------------------------------------------- what is read

TEST(ModelFolder, EveryArchitectureHasTheSpecOfItsGgufFile) {
  for (const test::TinyLlamaShape& shape : test::tiny_architectures()) {
    SCOPED_TRACE(shape.architecture);
    const Opened folder(make_tiny_folder(shape, WeightType::kBf16, 5));
    const auto gguf = ModelFile::from_bytes(test::make_tiny_llama(shape, WeightType::kBf16, 5), "model.gguf");
    ASSERT_TRUE(gguf.ok()) << gguf.status().message();
    const ModelSpec& a = (*folder).spec();
    const ModelSpec& b = (*gguf)->spec();
    EXPECT_EQ(a.architecture, b.architecture);
    EXPECT_EQ(
        std::tie(a.layers, a.context_length, a.dim, a.ffn_dim, a.heads, a.kv_heads, a.head_dim, a.vocab_size),
        std::tie(b.layers, b.context_length, b.dim, b.ffn_dim, b.heads, b.kv_heads, b.head_dim,
                 b.vocab_size));
    EXPECT_EQ(std::tie(a.tied_embeddings, a.norm, a.norm_epsilon, a.qk_norm, a.query_scale, a.score_cap),
              std::tie(b.tied_embeddings, b.norm, b.norm_epsilon, b.qk_norm, b.query_scale, b.score_cap));
    EXPECT_EQ(
        std::tie(a.temperature_scale, a.temperature_interval, a.activation, a.gated, a.embedding_scale),
        std::tie(b.temperature_scale, b.temperature_interval, b.activation, b.gated, b.embedding_scale));
    EXPECT_EQ(std::tie(a.residual_scale, a.logit_scale, a.logit_cap, a.position_offset, a.learned_positions),
              std::tie(b.residual_scale, b.logit_scale, b.logit_cap, b.position_offset, b.learned_positions));
    EXPECT_EQ(a.layer_specs, b.layer_specs);
    ASSERT_EQ(a.ropes.size(), b.ropes.size());
    for (size_t r = 0; r < a.ropes.size(); ++r) {
      const Rope &x = a.ropes[r], &y = b.ropes[r];
      EXPECT_EQ(std::tie(x.dim, x.base, x.linear_factor, x.divisors, x.attention_factor),
                std::tie(y.dim, y.base, y.linear_factor, y.divisors, y.attention_factor));
    }
    EXPECT_EQ(a.split_pairs, shape.architecture != "opt");
    EXPECT_THAT((*folder).warnings(), IsEmpty());
  }
}

TEST(ModelFolder, ReadsTheScalingOfRope) {
  const auto rope_of = [](const std::string& fields, const std::string& architecture = "llama") {
    const Opened opened(with(tiny_folder_of(architecture), fields));
    return (*opened).spec().ropes[0];
  };
  EXPECT_EQ(rope_of(R"("rope_scaling":{"type":"linear","factor":4})").linear_factor, 4);
  // Llama 3.1: of 16 pairs over a base of 10000 the first turn fast and stay, the last are divided by 8.
  const Rope llama3 = rope_of(
      R"("rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,)"
      R"("original_max_position_embeddings":1024})");
  ASSERT_EQ(llama3.divisors.size(), 16U);
  EXPECT_EQ(llama3.divisors.front(), 1);
  EXPECT_EQ(llama3.divisors.back(), 8);
  // Pair 7 has the wavelength 2 pi 10000^(7/16) = 353.3: smooth = (1024 / 353.3 - 1) / 3 = 0.6328.
  EXPECT_NEAR(llama3.divisors[7], 1 / (0.3672 / 8 + 0.6328), 1e-3);
  EXPECT_EQ(llama3.linear_factor, 1);

  const Rope yarn =
      rope_of(R"("rope_scaling":{"type":"yarn","factor":4.0,"original_max_position_embeddings":512})");
  EXPECT_EQ(yarn.divisors.front(), 1);
  EXPECT_EQ(yarn.divisors.back(), 4);
  EXPECT_FLOAT_EQ(yarn.attention_factor, 0.1F * std::log(4.0F) + 1);
  EXPECT_EQ(rope_of(R"("rope_scaling":{"type":"yarn","factor":4.0,"attention_factor":1.5})").attention_factor,
            1.5F);

  // Since transformers 5 one object has all; what it says goes first.
  const Rope newer = rope_of(R"("rope_parameters":{"rope_type":"linear","factor":2.0,"rope_theta":5000.0})");
  EXPECT_EQ(newer.base, 5000);
  EXPECT_EQ(newer.linear_factor, 2);

  const std::string lists = R"("short_factor":[1,1,1,1,1,1,1,2],"long_factor":[3,3,3,3,3,3,3,4])";
  const Rope longrope = rope_of(
      R"("original_max_position_embeddings":512,"rope_scaling":{"type":"longrope",)" + lists + "}", "phi3");
  EXPECT_EQ(longrope.divisors.back(), 2);
  EXPECT_EQ(longrope.long_divisors.back(), 4);
  EXPECT_EQ(longrope.original_context, 512);
  EXPECT_FLOAT_EQ(longrope.attention_factor, std::sqrt(1 + std::log(4.0F) / std::log(512.0F)));
}

TEST(ModelFolder, Gemma3MayHaveTheRopesOfBothKindsOfLayersInOneObject) {
  const Opened opened(
      with(tiny_folder_of("gemma3"),
           R"("rope_parameters":{"full_attention":{"rope_type":"linear","factor":8,"rope_theta":2e6},)"
           R"("sliding_attention":{"rope_type":"default","rope_theta":20000}})"));
  const ModelSpec& spec = (*opened).spec();
  ASSERT_EQ(spec.ropes.size(), 2U);
  EXPECT_EQ(spec.ropes[0].base, 2e6F);
  EXPECT_EQ(spec.ropes[0].linear_factor, 8);
  EXPECT_EQ(spec.ropes[1].base, 20000);
  EXPECT_EQ(spec.ropes[1].linear_factor, 1);
}

TEST(ModelFolder, ReadsWhatDiffersFromLayerToLayer) {
  const Opened gemma3(with(tiny_folder_of("gemma3"), R"("sliding_window_pattern":2)"));
  EXPECT_THAT(windows_of((*gemma3).spec()), ElementsAre(96, 0, 96, 0, 96, 0));
  EXPECT_THAT(ropes_of((*gemma3).spec()), ElementsAre(1, 0, 1, 0, 1, 0));

  const Opened typed(with(tiny_folder_of("gemma2"),
                          R"("layer_types":["full_attention","sliding_attention","full_attention"])"));
  EXPECT_THAT(windows_of((*typed).spec()), ElementsAre(0, 96, 0));

  const Opened smollm3(with(tiny_folder_of("smollm3"),
                            R"("no_rope_layers":[0,1,1,0],"use_sliding_window":true,"sliding_window":64)"));
  EXPECT_THAT(ropes_of((*smollm3).spec()), ElementsAre(-1, 0, 0, -1));
  EXPECT_THAT(windows_of((*smollm3).spec()), ElementsAre(64, 0, 0, 64));

  const Opened qwen2(with(tiny_folder_of("qwen2"),
                          R"("use_sliding_window":true,"sliding_window":64,"max_window_layers":1)"));
  EXPECT_THAT(windows_of((*qwen2).spec()), ElementsAre(0, 64, 64));
  const Opened off(with(tiny_folder_of("qwen2"),
                        R"("use_sliding_window":false,"sliding_window":64,"max_window_layers":1)"));
  EXPECT_THAT(windows_of((*off).spec()), ElementsAre(0, 0, 0));

  TinyFolder mistral = with(tiny_folder_of(), R"("sliding_window":null)");
  mistral.edit("config.json", R"("model_type":"llama")", R"("model_type":"mistral")");
  const Opened none(mistral);
  EXPECT_THAT(windows_of((*none).spec()), ElementsAre(0, 0, 0));
  mistral.edit("config.json", R"("sliding_window":null)", R"("sliding_window":32)");
  const Opened all(mistral);
  EXPECT_THAT(windows_of((*all).spec()), ElementsAre(32, 32, 32));
  mistral.edit(
      "config.json", R"("model_type":"mistral")",
      R"("model_type":"ministral","layer_types":["sliding_attention","full_attention","full_attention"])");
  const Opened some(mistral);
  EXPECT_THAT(windows_of((*some).spec()), ElementsAre(32, 0, 0));
}

TEST(ModelFolder, ReadsConstantsOfGemma) {
  TinyFolder folder = tiny_folder_of("gemma2");
  folder.edit("config.json", R"("query_pre_attn_scalar":32)", R"("query_pre_attn_scalar":144)");
  folder.edit("config.json", R"("attn_logit_softcapping":50.0)", R"("attn_logit_softcapping":null)");
  folder.edit("config.json", R"("final_logit_softcapping":30.0)", R"("final_logit_softcapping":20.0)");
  const Opened opened(folder);
  EXPECT_FLOAT_EQ((*opened).spec().query_scale, 1.0F / 12);
  EXPECT_EQ((*opened).spec().score_cap, 0);
  EXPECT_EQ((*opened).spec().logit_cap, 20);
}

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
  expect_refused(folder, ErrorCode::kUnsupported, "changes what the model computes");
}

TEST(ModelFolder, WarnsOfWhatIsNotUsed) {
  TinyFolder folder =
      with(tiny_folder_of(), R"("some_new_field":3,"another":{"a":1},"empty":[],"off":false)");
  folder.tensors.push_back(
      {"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {1}, std::vector<std::byte>(4)});
  folder.tensors.push_back({"extra", "F32", {1}, std::vector<std::byte>(4)});
  const Opened opened(folder);
  EXPECT_THAT((*opened).warnings(), ElementsAre(HasSubstr("are not used: 'another', 'some_new_field'"),
                                                HasSubstr("the tensor 'extra' is not used")));
}

// ---------------------------------------------------------------- tokenizer, sampling, description

TEST(ModelFolder, TheTokenizerIsThatOfTheGgufFile) {
  const Opened folder(tiny_folder_of());
  const auto gguf =
      ModelFile::from_bytes(test::make_tiny_llama(shape_of("llama"), WeightType::kBf16, 5), "model.gguf");
  ASSERT_TRUE(gguf.ok());
  auto a = (*folder).read_tokenizer(), b = (*gguf)->read_tokenizer();
  ASSERT_TRUE(a.ok() && b.ok()) << a.status().message();
  EXPECT_EQ(a->chat_template, test::kTinyChatTemplate);
  const auto x = Tokenizer::create(std::move(a).value()), y = Tokenizer::create(std::move(b).value());
  ASSERT_TRUE(x.ok() && y.ok());
  const std::string text = "the memory of<|im_end|> 123 token's\n\nworld";
  EXPECT_EQ(x->encode(text, true), y->encode(text, true));
  EXPECT_EQ(x->vocab_size(), y->vocab_size());
}

TEST(ModelFolder, ATokenizerHasAsManyTokensAsTheEmbeddingHasRows) {
  test::TinyLlamaShape shape = test::tiny_gqa();
  TinyFolder folder = make_tiny_folder(shape, WeightType::kBf16, 5);
  shape.vocab = 300;  // the embedding has 512 rows
  folder.texts["tokenizer.json"] = make_tiny_folder(shape, WeightType::kBf16, 5).texts["tokenizer.json"];
  const Opened opened(folder);
  const auto data = (*opened).read_tokenizer();
  ASSERT_TRUE(data.ok()) << data.status().message();
  EXPECT_EQ(data->tokens.size(), 512U);
}

TEST(ModelFolder, ReadsHowTheModelIsMeantToBeSampled) {
  TinyFolder folder = tiny_folder_of();
  EXPECT_EQ((*Opened(folder)).sampling_defaults().text(), "");
  folder.texts["generation_config.json"] =
      R"({"do_sample":true,"temperature":0.5,"top_p":0.25,"top_k":20,"repetition_penalty":1.5,"eos_token_id":[2,0]})";
  const Opened opened(folder);
  EXPECT_EQ((*opened).sampling_defaults().text(),
            "temperature 0.5, top_p 0.25, top_k 20, repetition_penalty 1.5");
  EXPECT_THAT((*opened).read_tokenizer()->more_ends, ElementsAre(0));
  EXPECT_THAT(describe_model(*opened), HasSubstr("sampling:             temperature 0.5, top_p 0.25"));
  folder.texts["generation_config.json"] = R"({"do_sample":false})";
  EXPECT_EQ((*Opened(folder)).sampling_defaults().temperature, 0.0F);
  folder.texts["generation_config.json"] = R"({"top_p":"high"})";
  expect_refused(folder, ErrorCode::kInvalidArgument, "generation_config.json: 'top_p' is \"high\"");

  test::GgufBuilder gguf = test::tiny_llama_builder(test::tiny_gqa(), WeightType::kQ8_0, 1);
  gguf.set_f32("general.sampling.temp", 0.5F);
  gguf.set_i32("general.sampling.top_k", -1);
  const auto model = ModelFile::from_bytes(gguf.build(), "model.gguf");
  ASSERT_TRUE(model.ok());
  EXPECT_EQ((*model)->sampling_defaults().text(), "temperature 0.5, top_k -1");
}

TEST(ModelFolder, DescribesItself) {
  const Opened opened(tiny_folder_of());
  const std::string text = describe_model(*opened);
  for (const char* part : {"folder:               folder (", "Hugging Face folder, 1 file of weights",
                           "architecture:         llama", "BF16", "512 tokens, 253 merges, BPE of bytes",
                           "chat template:        yes", "sampling:             not given"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  TinyFolder bare = tiny_folder_of("opt");
  bare.texts.erase("tokenizer.json");
  const Opened opt(bare);
  EXPECT_THAT(describe_model(*opt),
              AllOf(HasSubstr("positions:            learned"), HasSubstr("none that can be read")));
  EXPECT_EQ((*opt).read_tokenizer().status().code(), ErrorCode::kNotFound);
}

TEST(ModelFolder, TheFingerprintNamesTheModelAndNotItsPlace) {
  const auto fingerprint = [](const TinyFolder& folder) { return to_hex((*Opened(folder)).fingerprint()); };
  const std::string base = fingerprint(tiny_folder_of());
  EXPECT_EQ(fingerprint(tiny_folder_of()), base);
  EXPECT_NE(fingerprint(with(tiny_folder_of(), R"("x":1)")), base);
  TinyFolder other = tiny_folder_of();
  other.tensor("model.layers.1.mlp.up_proj.weight").data.back() ^= std::byte{1};
  EXPECT_NE(fingerprint(other), base);
  other = tiny_folder_of();
  other.texts["tokenizer_config.json"] += " ";
  EXPECT_NE(fingerprint(other), base);

  const test::TempFolder one, two;
  tiny_folder_of().write(one.path());
  tiny_folder_of().write(two.path());
  const auto a = ModelFile::open(one.path()), b = ModelFile::open(two.path() + "/");
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ((*a)->fingerprint(), (*b)->fingerprint());
}

// ---------------------------------------------------------------- files

TEST(ModelFolder, OpensShardsByTheirIndexAndNamesWhatIsMissing) {
  const test::TempFolder folder;
  const TinyFolder content = tiny_folder_of();
  content.write(folder.path(), 3);
  const auto model = ModelFile::open(folder.path());
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ((*model)->weight_files(), 3U);
  (*model)->release_pages();
  EXPECT_TRUE((*model)->read_tokenizer().ok());

  const auto refused = [&](ErrorCode code, const std::string& part) {
    const Status status = ModelFile::open(folder.path()).status();
    ASSERT_FALSE(status.ok()) << part;
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_THAT(status.message(), AllOf(StartsWith(folder.path()), HasSubstr(part)));
  };
  const std::string index = folder.path() + "/model.safetensors.index.json";
  const auto write_index = [&](const std::string& text) { std::ofstream(index) << text; };
  write_index(R"({"weight_map":{"not.there":"model-00002-of-00003.safetensors"}})");
  refused(ErrorCode::kCorrupt, "'not.there' is not in 'model-00002-of-00003.safetensors'");
  write_index(R"({"weight_map":{"a":"../secret.safetensors"}})");
  refused(ErrorCode::kCorrupt, "not a .safetensors file of this folder");
  write_index(R"({"weight_map":{"a":3}})");
  refused(ErrorCode::kCorrupt, "not a .safetensors file of this folder");
  write_index(R"({"weight_map":[]})");
  refused(ErrorCode::kCorrupt, "it has no weight_map");
  std::filesystem::remove(index);
  refused(ErrorCode::kInvalidArgument, "no model.safetensors.index.json");
  content.write(folder.path(), 3);
  std::filesystem::remove(folder.path() + "/model-00002-of-00003.safetensors");
  refused(ErrorCode::kNotFound, "model-00002-of-00003.safetensors: no such file");
  std::filesystem::remove(index);
  for (int part : {1, 3})
    std::filesystem::remove(fmt::format("{}/model-{:05}-of-00003.safetensors", folder.path(), part));
  refused(ErrorCode::kNotFound, "no .safetensors file");
  std::filesystem::remove(folder.path() + "/config.json");
  refused(ErrorCode::kInvalidArgument, "directory without a config.json");
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

// ---------------------------------------------------------------- what is refused

TEST(ModelFolder, NamesAFieldThatItDoesNotCompute) {
  const std::vector<std::array<std::string, 3>> cases = {
      {"llama", R"("quantization_config":{"quant_method":"awq"})", "'quantization_config' is {"},
      {"llama", R"("mlp_bias":true)", "'mlp_bias' is true"},
      {"llama", R"("is_causal":false)", "'is_causal' is false"},
      {"llama", R"("architectures":["LlamaForSequenceClassification"])", "not a model that generates text"},
      {"llama", R"("rope_scaling":{"type":"dynamic","factor":2})", "scaling of type 'dynamic'"},
      {"llama", R"("rope_scaling":{"type":"linear","factor":2,"new":1})", "rope_scaling: 'new' is 1"},
      {"llama", R"("rope_scaling":{"type":"linear"})", "rope_scaling: 'factor' is not given"},
      {"llama", R"("rope_scaling":{"type":"yarn","factor":2,"truncate":false})", "'truncate' is false"},
      {"llama", R"("rope_scaling":3)", "'rope_scaling' is 3"},
      {"llama", R"("partial_rotary_factor":0.5)", "'partial_rotary_factor' is 0.5"},
      {"qwen2", R"("layer_types":["chunked_attention","full_attention","full_attention"])",
       "'layer_types' is ["},
      {"qwen2", R"("layer_types":["full_attention"])", "where one for each of 3 layers is needed"},
      {"gemma3", R"("use_bidirectional_attention":true)", "'use_bidirectional_attention' is true"},
      {"gemma3", R"("attn_logit_softcapping":50.0)", "'attn_logit_softcapping' is 50.0"},
      {"smollm3", R"("no_rope_layers":[1])", "'no_rope_layers' is [1]"},
      {"granite", R"("residual_multiplier":0.0)", "'residual_multiplier' is 0.0"},
      {"opt", R"("do_layer_norm_before":false)", "'do_layer_norm_before' is false"},
      {"opt", R"("word_embed_proj_dim":64)", "projections of the embedding"},
      {"opt", R"("_remove_final_layer_norm":true)", "'_remove_final_layer_norm' is true"},
      {"opt", R"("activation_function":"gelu")", "'activation_function' is \"gelu\""},
      {"llama", R"("hidden_act":"gelu")", "'hidden_act' is \"gelu\""},
      {"gemma2", R"("hidden_activation":"gelu")", "'hidden_activation' is \"gelu\""},
      {"llama", R"("model_type":"mixtral")", "the model_type 'mixtral' is not supported; use one of gemma2"},
  };
  for (const auto& [architecture, fields, part] : cases) expect_field_refused(architecture, fields, part);
}

TEST(ModelFolder, NamesAFieldThatMakesNoSense) {
  const auto refused = [](const std::string& fields, const std::string& part) {
    expect_refused(with(tiny_folder_of(), fields), ErrorCode::kInvalidArgument, part);
  };
  refused(R"("hidden_size":"wide")", "'hidden_size' is \"wide\", where a whole number");
  refused(R"("num_hidden_layers":2000000000)", "'num_hidden_layers' is 2000000000");
  refused(R"("num_attention_heads":-1)", "'num_attention_heads' is -1");
  refused(R"("num_attention_heads":2.5)", "'num_attention_heads' is 2.5");
  refused(R"("head_dim":1e300)", "'head_dim' is 1e+300");
  refused(R"("attention_bias":"no")", "'attention_bias' is \"no\", where true or false");
  refused(R"("rms_norm_eps":[])", "'rms_norm_eps' is [], where a finite number");
  TinyFolder folder = tiny_folder_of();
  folder.texts["config.json"] = "[1]";
  expect_refused(folder, ErrorCode::kCorrupt, "config.json: this is not a JSON object");
  folder.texts["config.json"] = R"({"a":)" + std::string(100, '[') + std::string(100, ']') + "}";
  expect_refused(folder, ErrorCode::kCorrupt, "config.json: this is not a JSON object");
  folder.texts["config.json"] = std::string(size_t{3} << 20, ' ');
  expect_refused(folder, ErrorCode::kInvalidArgument, "more than any configuration");
  folder = tiny_folder_of();
  folder.edit("config.json", R"("num_hidden_layers":3,)", "");
  expect_refused(folder, ErrorCode::kUnsupported, "'num_hidden_layers' is not given");
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
