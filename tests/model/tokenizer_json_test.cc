// Hugging Face's files: the same tokenizer as from GGUF, and one clear error for what is not known or
// damaged.
#include "model/tokenizers/tokenizer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/random.h"
#include "model/golden_text.h"
#include "model/tokenizers/tokenizer.h"

namespace kvasir {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

json split_of(const char* regex) {
  return {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}};
}
const json kByteLevel = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};

// A byte-level model with two merges and two added tokens.
json byte_model() {
  json vocab;
  int32_t id = 0;
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
    std::string token;
    append_utf8(printable ? byte : next++, &token);
    vocab[token] = id++;
  }
  vocab["ab"] = 256;
  vocab["Ġab"] = 257;
  return {{"added_tokens",
           {{{"id", 258}, {"content", "<|end|>"}, {"special", true}},
            {{"id", 259}, {"content", "[x]"}, {"special", false}, {"rstrip", true}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split_of(kQwen2), kByteLevel}}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"a b", "Ġ ab"}}}}};
}

// Characters, with U+2581 for a space and bytes for what is missing.
json text_model() {
  json vocab = {{"<unk>", 0}, {"<s>", 1}, {"▁", 2}, {"a", 3}, {"▁a", 4}};
  for (int byte = 0; byte < 256; ++byte) vocab[fmt::format("<0x{:02X}>", byte)] = 5 + byte;
  return {
      {"added_tokens",
       {{{"id", 0}, {"content", "<unk>"}, {"special", true}},
        {{"id", 1}, {"content", "<s>"}, {"special", true}}}},
      {"normalizer",
       {{"type", "Sequence"},
        {"normalizers",
         {{{"type", "Prepend"}, {"prepend", "▁"}},
          {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}}}}},
      {"pre_tokenizer", nullptr},
      {"post_processor",
       {{"type", "TemplateProcessing"},
        {"single", {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}}}}}}}},
      {"model",
       {{"vocab", vocab},
        {"merges", json::array({json::array({"▁", "a"})})},
        {"unk_token", "<unk>"},
        {"fuse_unk", true},
        {"byte_fallback", true}}}};
}

Result<TokenizerData> read(const json& tokenizer, const json& config = json::object(),
                           const json& generation = json::object()) {
  const std::string texts[] = {tokenizer.dump(), config.dump(), generation.dump()};
  TokenizerFiles files;
  files.tokenizer = texts[0];
  files.tokenizer_config = texts[1];
  files.generation_config = texts[2];
  return read_tokenizer_json(files, "folder");
}

Tokenizer make_read(const Result<TokenizerData>& data) {
  EXPECT_TRUE(data.ok()) << data.status().message();
  auto tokenizer = Tokenizer::create(data.value());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(tokenizer).value();
}

void expect_refused(const json& tokenizer, ErrorCode code, const char* part) {
  const auto data = read(tokenizer);
  ASSERT_FALSE(data.ok()) << part;
  EXPECT_EQ(data.status().code(), code) << data.status().message();
  EXPECT_THAT(data.status().message(), HasSubstr(part));
  EXPECT_THAT(data.status().message(), HasSubstr("folder"));
  EXPECT_EQ(data.status().message().find('\n'), std::string::npos);
}

TEST(TokenizerJson, ReadsAByteLevelModel) {
  const json config = {{"eos_token", {{"content", "<|end|>"}}}, {"chat_template", "{{ messages }}"}};
  const auto data = read(byte_model(), config, {{"eos_token_id", {258, 65}}});
  const Tokenizer tokenizer = make_read(data);
  EXPECT_THAT(tokenizer.encode("ab ab<|end|>a", true), ElementsAre(256, 257, 258, 'a'));
  EXPECT_THAT(tokenizer.encode("[x] \na", false), ElementsAre(259, 'a'));
  EXPECT_EQ(tokenizer.eos(), 258);
  EXPECT_TRUE(tokenizer.is_end(65));
  EXPECT_TRUE(tokenizer.is_special(258));
  EXPECT_FALSE(tokenizer.is_special(259));
  EXPECT_FALSE(tokenizer.add_bos());
  EXPECT_EQ(tokenizer.chat_template(), "{{ messages }}");
  EXPECT_EQ(data->split, find_pretokenizer("qwen2")->split);
}

// What a GGUF file of the same model says, and so the same ids.
TEST(TokenizerJson, GivesTheVocabularyThatGgufGives) {
  const TokenizerData read_data = read(byte_model()).value();
  TokenizerData data;
  data.split = find_pretokenizer("qwen2")->split;
  data.tokens = read_data.tokens;
  data.token_types.assign(258, 1);
  data.token_types.push_back(3);
  data.token_types.push_back(4);
  data.merges = {"a b", "Ġ ab"};
  EXPECT_EQ(read_data.token_types, data.token_types);
  EXPECT_EQ(read_data.merges, data.merges);
  const Tokenizer one = make_read(read_data);
  const Tokenizer other = make_read(data);
  for (const auto& line : test::read_split_goldens().lines) {
    ASSERT_EQ(one.encode(line.text, true), other.encode(line.text, true)) << line.text;
    ASSERT_EQ(one.decode(one.encode(line.text, true), false).value(), line.text);
  }
}

TEST(TokenizerJson, ReadsAModelOfCharacters) {
  const Tokenizer tokenizer = make_read(read(text_model()));
  EXPECT_THAT(tokenizer.encode("a a", false), ElementsAre(4, 4));
  EXPECT_THAT(tokenizer.encode("é", false), ElementsAre(2, 5 + 0xC3, 5 + 0xA9));
  EXPECT_TRUE(tokenizer.add_bos());
  EXPECT_EQ(tokenizer.bos(), 1);
  EXPECT_EQ(tokenizer.space_prefix(), SpacePrefix::kAlways);
  auto metaspace = text_model();
  metaspace["normalizer"] = nullptr;
  metaspace["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}, {"split", false}};
  EXPECT_EQ(read(metaspace)->space_prefix, SpacePrefix::kFirst);
  EXPECT_FALSE(make_read(read(text_model(), {{"add_bos_token", false}})).add_bos());
}

TEST(TokenizerJson, ReadsVocabularyAndMerges) {
  TokenizerFiles files;
  files.vocab = R"({"a": 0, "b": 1, "ab": 2, "Ġ": 3})";
  files.merges = "#version: 0.2\na b\r\n\n";
  files.tokenizer_config =
      R"({"added_tokens_decoder": {"4": {"content": "<s>", "special": true}}, "bos_token": "<s>", "add_bos_token": true})";
  const Tokenizer tokenizer = make_read(read_tokenizer_json(files, "folder"));
  EXPECT_THAT(tokenizer.encode("ab a<s>", true), ElementsAre(2, 3, 0, 4));
  EXPECT_TRUE(tokenizer.add_bos());
  files.tokenizer_config = R"({"tokenizer_class": "RobertaTokenizer"})";
  EXPECT_THAT(read_tokenizer_json(files, "folder").status().message(), HasSubstr("RobertaTokenizer"));
  EXPECT_EQ(read_tokenizer_json({}, "folder").status().code(), ErrorCode::kNotFound);
}

TEST(TokenizerJson, ATemplateOfItsOwnGoesBeforeThatOfTheConfiguration) {
  const std::string tokenizer = byte_model().dump();
  TokenizerFiles files;
  files.tokenizer = tokenizer;
  files.tokenizer_config = R"({"chat_template": "old"})";
  EXPECT_EQ(read_tokenizer_json(files, "folder")->chat_template, "old");
  files.chat_template = "template";
  EXPECT_EQ(read_tokenizer_json(files, "folder")->chat_template, "template");
}

TEST(TokenizerJson, FillsHolesBetweenIds) {
  auto model = byte_model();
  model["added_tokens"][1]["id"] = 300;
  const Tokenizer tokenizer = make_read(read(model));
  EXPECT_EQ(tokenizer.vocab_size(), 301);
  EXPECT_THAT(tokenizer.encode("[x]", false), ElementsAre(300));
}

TEST(TokenizerJson, NamesWhatItDoesNotKnow) {
  auto model = byte_model();
  model["pre_tokenizer"]["pretokenizers"][0] = split_of(R"(\p{Han}+|\w+)");
  expect_refused(model, ErrorCode::kUnsupported, R"(\\p{Han}+|\\w+)");
  model["pre_tokenizer"]["pretokenizers"][0] = {{"type", "BertPreTokenizer"}};
  expect_refused(model, ErrorCode::kUnsupported, "BertPreTokenizer");
  model["pre_tokenizer"]["pretokenizers"] = {kByteLevel, split_of(kQwen2)};
  expect_refused(model, ErrorCode::kUnsupported, "after ByteLevel");
  model["pre_tokenizer"] = nullptr;
  expect_refused(model, ErrorCode::kUnsupported, "neither bytes nor");
  model = byte_model();
  model["normalizer"] = {{"type", "NFKC"}};
  expect_refused(model, ErrorCode::kUnsupported, "NFKC");
  model = byte_model();
  model["model"]["type"] = "Unigram";
  expect_refused(model, ErrorCode::kUnsupported, "Unigram");
  model = byte_model();
  model["model"]["end_of_word_suffix"] = "</w>";
  expect_refused(model, ErrorCode::kUnsupported, "end_of_word_suffix");
  model = byte_model();
  model["added_tokens"][0]["single_word"] = true;
  expect_refused(model, ErrorCode::kUnsupported, "<|end|>");
}

TEST(TokenizerJson, RefusesWhatIsDamaged) {
  auto model = byte_model();
  model["model"]["vocab"]["huge"] = int64_t{1} << 40;
  expect_refused(model, ErrorCode::kCorrupt, "huge");
  model = byte_model();
  model["model"]["vocab"]["twice"] = 7;
  expect_refused(model, ErrorCode::kCorrupt, "the id 7");
  model = byte_model();
  model["model"]["vocab"] = 5;
  expect_refused(model, ErrorCode::kCorrupt, "no JSON object");
  model = byte_model();
  model.erase("model");
  expect_refused(model, ErrorCode::kCorrupt, "model");
  const std::string whole = byte_model().dump(), brackets(1 << 20, '[');
  TokenizerFiles files;
  for (size_t size = 0; size < whole.size(); size += 97) {
    files.tokenizer = std::string_view(whole).substr(0, size);
    EXPECT_FALSE(read_tokenizer_json(files, "folder").ok()) << size;
  }
  files.tokenizer = brackets;
  EXPECT_EQ(read_tokenizer_json(files, "folder").status().code(), ErrorCode::kCorrupt);
  model = byte_model();
  const auto ends = read(model, json::object(), {{"eos_token_id", std::vector<int>(1000, 1)}});
  EXPECT_EQ(ends.status().code(), ErrorCode::kCorrupt);
}

// JSON that is well formed, and so deep that a copy of it would overflow the stack.
TEST(TokenizerJson, RefusesWhatIsNestedTooDeeply) {
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  const std::string whole = byte_model().dump();
  for (const char* part : {"added_tokens", "normalizer", "pre_tokenizer", "post_processor"}) {
    const std::string name = "\"" + std::string(part) + "\":";
    const std::string text = whole.substr(0, whole.size() - 1) + "," + name + deep + "}";
    TokenizerFiles files;
    files.tokenizer = text;
    const Status status = read_tokenizer_json(files, "folder").status();
    EXPECT_EQ(status.code(), ErrorCode::kCorrupt) << part;
    EXPECT_THAT(status.message(), HasSubstr("nested deeper than 32")) << part;
  }
  TokenizerFiles files;
  files.tokenizer = whole;
  const std::string ends = R"({"eos_token_id":)" + deep + "}";
  files.generation_config = ends;
  EXPECT_THAT(read_tokenizer_json(files, "folder").status().message(), HasSubstr("nested deeper than 32"));
  // Brackets in texts are no depth.
  auto model = byte_model();
  model["added_tokens"][0]["content"] = std::string(100, '[') + "\\\"" + std::string(100, '{');
  EXPECT_TRUE(read(model).ok());
}

TEST(TokenizerJson, MessagesAreShort) {
  auto model = byte_model();
  model["normalizer"] = {{"type", "NFKC"}, {"x", std::string(100'000, 'x')}};
  EXPECT_LT(read(model).status().message().size(), 300U);
}

// Whatever a byte becomes, the answer is a tokenizer that works, or an error.
TEST(TokenizerJson, SurvivesMutations) {
  Random random(3);
  for (const std::string& whole : {byte_model().dump(), text_model().dump()}) {
    for (int round = 0; round < 400; ++round) {
      std::string text = whole;
      for (uint64_t n = 1 + random.below(3); n > 0; --n) {
        constexpr std::string_view kBytes = "\"{}[]:,0919nulltrue- \\\xff";
        text[random.below(whole.size())] = kBytes[random.below(kBytes.size())];
      }
      TokenizerFiles files;
      files.tokenizer = text;
      const auto data = read_tokenizer_json(files, "folder");
      if (!data.ok()) continue;
      const auto tokenizer = Tokenizer::create(*data);
      if (!tokenizer.ok()) continue;
      const auto ids = tokenizer->encode(" ab\u00e9\U0001F600 a\n<s>", true);
      ASSERT_TRUE(tokenizer->decode(ids, false).ok());
    }
  }
}

}  // namespace
}  // namespace kvasir
