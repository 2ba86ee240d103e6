// The other files of folders of Hugging Face, shards, and how a folder describes itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "model/files/inspect.h"
#include "model/model_folder_cases.h"
#include "model/tokenizers/tokenizer.h"
#include "support/temp_file.h"

namespace kvasir {
namespace {

using ops::WeightType;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

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

TEST(ModelFolder, SaysWhatWindowsLeaveUnread) {
  const Opened gemma3(tiny_folder_of("gemma3"));
  const ModelSpec& spec = (*gemma3).spec();  // five layers of six have a window of 96
  EXPECT_THAT(
      describe_model(*gemma3),
      HasSubstr("windows:              5 of 6 layers attend to the last 96 tokens only; "
                "of K and V of 2048 tokens 21 % are read and kept, in whole blocks; a GPU keeps all\n"));
  EXPECT_EQ(
      describe_windows(spec, 192),
      "5 of 6 layers attend to the last 96 tokens only; of K and V of 192 tokens 58 % are read and kept, in "
      "whole blocks; a GPU keeps all");
  EXPECT_EQ(describe_windows(spec, 96), "");
  EXPECT_EQ(describe_windows((*Opened(tiny_folder_of())).spec(), 2048), "");
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
  const auto dot = ModelFile::open(one.path() + "/.");
  ASSERT_TRUE(dot.ok());
  EXPECT_EQ((*dot)->spec().name, std::filesystem::path(one.path()).filename().string());
}

TEST(ModelFolder, OpensShardsByTheirIndexAndNamesWhatIsMissing) {
  const test::TempFolder folder;
  const TinyFolder content = tiny_folder_of();
  content.write(folder.path(), 3);
  const auto model = ModelFile::open(folder.path());
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ((*model)->weight_files(), 3U);
  (*model)->release_pages();
  EXPECT_TRUE((*model)->read_tokenizer().ok());
  EXPECT_EQ((*model)->files().size(), 7U);  // three texts, the index, the weights

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
  // An index may be larger than any configuration.
  std::ofstream(index, std::ios::app) << std::string(size_t{3} << 20, ' ');
  EXPECT_TRUE(ModelFile::open(folder.path()).ok());
  std::filesystem::remove(folder.path() + "/model-00002-of-00003.safetensors");
  refused(ErrorCode::kNotFound, "model-00002-of-00003.safetensors: no such file");
  std::filesystem::remove(index);
  for (int part : {1, 3})
    std::filesystem::remove(fmt::format("{}/model-{:05}-of-00003.safetensors", folder.path(), part));
  refused(ErrorCode::kNotFound, "no .safetensors file");
  std::filesystem::remove(folder.path() + "/config.json");
  refused(ErrorCode::kInvalidArgument, "directory without a config.json");
}

}  // namespace
}  // namespace kvasir
