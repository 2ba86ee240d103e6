// What the keys of a GGUF file stand for, and what stands for keys that are missing.
#include "model/tokenizers/tokenizer_gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "model/tokenizers/tokenizer.h"
#include "support/gguf_builder.h"

namespace kvasir {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

test::GgufBuilder file_of(const char* model, const char* pre = nullptr) {
  test::GgufBuilder out;
  out.set_string("general.architecture", "llama");
  out.set_string("tokenizer.ggml.model", model);
  if (pre != nullptr) out.set_string("tokenizer.ggml.pre", pre);
  out.set_strings("tokenizer.ggml.tokens", {"<unk>", "<s>", "</s>", "a", "<|user|>"});
  out.set_i32s("tokenizer.ggml.token_type", {2, 3, 3, 1, 3});
  out.set_f32s("tokenizer.ggml.scores", {0, 0, 0, -1, 0});
  out.set_strings("tokenizer.ggml.merges", {});
  return out;
}

Result<TokenizerData> read_file(const test::GgufBuilder& builder) {
  const std::vector<std::byte> bytes = builder.build();
  KV_ASSIGN_OR_RETURN(const Gguf gguf, Gguf::parse(bytes, "file"));
  return read_tokenizer_data(gguf);
}

TEST(TokenizerGguf, BeginsTextsWithBosWhereTheFileDoesNotSay) {
  EXPECT_TRUE(read_file(file_of("llama"))->add_bos);
  EXPECT_TRUE(read_file(file_of("gemma4"))->add_bos);
  EXPECT_TRUE(read_file(file_of("gpt2", "llama-bpe"))->add_bos);
  EXPECT_TRUE(read_file(file_of("gpt2", "tekken"))->add_bos);
  EXPECT_FALSE(read_file(file_of("gpt2", "gpt-2"))->add_bos);
  EXPECT_FALSE(read_file(file_of("gpt2", "qwen2"))->add_bos);
  auto file = file_of("llama");
  file.set_bool("tokenizer.ggml.add_bos_token", false);
  EXPECT_FALSE(read_file(file)->add_bos);
}

TEST(TokenizerGguf, HasDefaultsOfEachKind) {
  const auto pieces = read_file(file_of("llama", "default")).value();
  EXPECT_EQ(pieces.model, TokenizerModel::kPieces);
  EXPECT_EQ(pieces.space_prefix, SpacePrefix::kAlways);
  EXPECT_EQ(pieces.bos, 1);
  EXPECT_EQ(pieces.eos, 2);
  EXPECT_EQ(pieces.unk, 0);
  EXPECT_TRUE(pieces.split.empty());
  auto file = file_of("llama");
  file.set_bool("tokenizer.ggml.add_space_prefix", false);
  EXPECT_EQ(read_file(file)->space_prefix, SpacePrefix::kNone);
  EXPECT_EQ(read_file(file_of("gemma4"))->space_prefix, SpacePrefix::kNone);
  // Without a name the pattern is not GPT-2's.
  EXPECT_EQ(read_file(file_of("gpt2"))->split, find_pretokenizer("default")->split);
  EXPECT_NE(read_file(file_of("gpt2"))->split, gpt2_split());
  EXPECT_TRUE(read_file(file_of("gpt2", "glm4"))->ignore_merges);
  EXPECT_FALSE(read_file(file_of("gpt2", "dbrx"))->ignore_merges);
}

TEST(TokenizerGguf, Phi3TakesWhiteSpaceAlong) {
  auto file = file_of("llama");
  file.set_string("general.name", "Phi-3-mini");
  EXPECT_THAT(read_file(file)->strips_right, ElementsAre(2, 4));
  EXPECT_TRUE(read_file(file_of("llama"))->strips_right.empty());
}

TEST(TokenizerGguf, WritesWhatItReads) {
  for (const char* pre : {"gpt-2", "smollm", "llama-bpe", "qwen2", "deepseek-v3"}) {
    auto file = file_of("gpt2", pre);
    file.set_u32("tokenizer.ggml.eos_token_id", 2);
    file.set_u32("tokenizer.ggml.eot_token_id", 4);
    file.set_bool("tokenizer.ggml.add_bos_token", true);
    file.set_string("tokenizer.chat_template", "{{ x }}");
    const TokenizerData data = read_file(file).value();
    GgufAssembler out("written");
    ASSERT_TRUE(write_tokenizer_data(data, &out).ok());
    const Gguf written = out.finish();
    const TokenizerData again = read_tokenizer_data(written).value();
    EXPECT_EQ(again.split, data.split) << pre;
    EXPECT_EQ(again.ignore_merges, data.ignore_merges);
    EXPECT_EQ(again.nfc, data.nfc);
    EXPECT_EQ(again.tokens, data.tokens);
    EXPECT_EQ(again.token_types, data.token_types);
    EXPECT_EQ(again.merges, data.merges);
    EXPECT_EQ(std::tie(again.bos, again.eos, again.eot, again.unk, again.add_bos, again.chat_template),
              std::tie(data.bos, data.eos, data.eot, data.unk, data.add_bos, data.chat_template));
  }
  GgufAssembler out("written");
  EXPECT_EQ(write_tokenizer_data(read_file(file_of("llama")).value(), &out).code(), ErrorCode::kUnsupported);
}

// Llama 3.1 has three.
TEST(TokenizerGguf, KeepsEveryTokenThatEndsAnOutput) {
  TokenizerData data = read_file(file_of("gpt2", "gpt-2")).value();
  data.eos = 2;
  data.more_ends = {3, 4};
  const auto ends_of = [](const TokenizerData& from) {
    const auto tokenizer = Tokenizer::create(from);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    return std::vector<int32_t>(tokenizer->ends().begin(), tokenizer->ends().end());
  };
  EXPECT_THAT(ends_of(data), ElementsAre(2, 3, 4));
  const auto written = [](const TokenizerData& from) {
    GgufAssembler out("written");
    EXPECT_TRUE(write_tokenizer_data(from, &out).ok());
    return read_tokenizer_data(out.finish()).value();
  };
  EXPECT_THAT(ends_of(written(data)), ElementsAre(2, 3, 4));
  data.eot = 4;
  EXPECT_THAT(ends_of(written(data)), ElementsAre(2, 4, 3));
  data.more_ends = {0, 1};
  GgufAssembler out("written");
  EXPECT_THAT(write_tokenizer_data(data, &out).message(), HasSubstr("3 tokens beside eos end an output"));
}

TEST(TokenizerGguf, CallsAndAnswersOfGptOssEndOutputs) {
  auto file = file_of("gpt2", "gpt-4o");
  file.set_strings("tokenizer.ggml.tokens", {"a", "<|return|>", "<|end|>", "<|call|>"});
  const auto ends_with_types = [&](const std::vector<int32_t>& types) {
    file.set_i32s("tokenizer.ggml.token_type", types);
    TokenizerData data = read_file(file).value();
    data.eos = 1;
    const auto tokenizer = Tokenizer::create(data);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    return std::vector<int32_t>(tokenizer->ends().begin(), tokenizer->ends().end());
  };
  EXPECT_THAT(ends_with_types({1, 3, 3, 3}), ElementsAre(1, 3));
  EXPECT_THAT(ends_with_types({1, 3, 3, 1}), ElementsAre(1)) << "text that looks like the mark";
  file.set_strings("tokenizer.ggml.tokens", {"a", "<|answer|>", "<|end|>", "<|call|>"});
  EXPECT_THAT(ends_with_types({1, 3, 3, 3}), ElementsAre(1)) << "of another model";
}

TEST(TokenizerGguf, NamesWhatItDoesNotKnow) {
  EXPECT_THAT(read_file(file_of("t5")).status().message(), HasSubstr("'t5'"));
  EXPECT_THAT(read_file(file_of("gpt2", "klingon")).status().message(), HasSubstr("'klingon'"));
  auto file = file_of("llama");
  file.remove("tokenizer.ggml.scores");
  EXPECT_FALSE(read_file(file).ok());
}

}  // namespace
}  // namespace kvasir
