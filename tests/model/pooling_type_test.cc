// What files say about embeddings: how rows are pooled, and how a text ends.
#include "model/files/pooling_type.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/files/convert.h"
#include "model/model_folder_cases.h"
#include "model/tokenizers/tokenizer.h"
#include "support/take.h"
#include "support/temp_file.h"

namespace kvasir {
namespace {

using ops::WeightType;
using test::take;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::unique_ptr<ModelFile> gguf_with(uint32_t type) {
  test::GgufBuilder file = test::tiny_llama_builder(shape_of("llama"), WeightType::kBf16, 5);
  file.set_u32("llama.pooling_type", type);
  return take(ModelFile::from_bytes(file.build(), "model.gguf"));
}

TEST(PoolingType, OfGgufFiles) {
  EXPECT_EQ(gguf_with(0)->pooling(), Pooling::kNone);
  EXPECT_EQ(gguf_with(1)->pooling(), Pooling::kMean);
  EXPECT_EQ(gguf_with(3)->pooling(), Pooling::kLast);
  EXPECT_THAT(gguf_with(3)->warnings(), IsEmpty());
  const auto first = gguf_with(2);
  EXPECT_EQ(first->pooling(), Pooling::kNone);
  EXPECT_THAT(first->warnings(), ElementsAre(HasSubstr("llama.pooling_type is 2, which is not offered")));
}

TEST(PoolingType, OfFolders) {
  TinyFolder folder = tiny_folder_of();
  EXPECT_EQ((*Opened(folder)).pooling(), Pooling::kNone);
  const auto pooling = [&](const char* text) {
    folder.texts["1_Pooling/config.json"] = text;
    return (*Opened(folder)).pooling();
  };
  EXPECT_EQ(
      pooling(R"({"word_embedding_dimension":64,"pooling_mode_cls_token":false,)"
              R"("pooling_mode_mean_tokens":false,"pooling_mode_lasttoken":true,"include_prompt":true})"),
      Pooling::kLast);
  EXPECT_EQ(pooling(R"({"pooling_mode_mean_tokens":true})"), Pooling::kMean);
  EXPECT_EQ(pooling(R"({"embedding_dimension":64,"pooling_mode":"mean"})"), Pooling::kMean);
  EXPECT_EQ(pooling(R"({"pooling_mode_mean_tokens":true,"pooling_mode_max_tokens":true})"), Pooling::kNone);
  EXPECT_EQ(pooling(R"({"pooling_mode_weightedmean_tokens":true})"), Pooling::kNone);
}

// What a folder says, the file that is converted from it says.
TEST(PoolingType, ComesThroughAConversion) {
  TinyFolder folder = tiny_folder_of();
  folder.texts["1_Pooling/config.json"] = R"({"pooling_mode_lasttoken":true})";
  const std::string before = folder.texts["tokenizer.json"];
  // The end of a text that is, and is not, the token that ends an output.
  for (const auto& [token, id] : {std::pair{"<|im_end|>", 2}, std::pair{"<|endoftext|>", 0}}) {
    folder.texts["tokenizer.json"] =
        before.substr(0, before.rfind('}')) +
        fmt::format(
            R"(,"post_processor":{{"type":"TemplateProcessing","single":[)"
            R"({{"Sequence":{{"id":"A","type_id":0}}}},{{"SpecialToken":{{"id":"{}","type_id":0}}}}]}}}})",
            token);
    const Opened model(folder);
    const test::TempFolder to;
    const std::string path = to.path() + "/out.gguf";
    ASSERT_TRUE(convert_model(*model, *find_recipe("bf16"), path, 1).ok());
    const auto converted = take(ModelFile::open(path));
    EXPECT_EQ(converted->pooling(), Pooling::kLast);
    EXPECT_EQ(take((*model).read_tokenizer()).closing, id);
    EXPECT_EQ(take(converted->read_tokenizer()).closing, id);
    EXPECT_FALSE(take(converted->read_tokenizer()).add_bos);
  }
}

}  // namespace
}  // namespace kvasir
