// Every string of tests/golden/tokenizer_*.txt, encoded with the real vocabulary, against Hugging Face's ids.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "model/files/gguf.h"
#include "model/files/mapped_file.h"
#include "model/golden_model.h"
#include "model/golden_text.h"
#include "model/tokenizers/detokenizer.h"
#include "model/tokenizers/tokenizer.h"
#include "model/tokenizers/tokenizer_gguf.h"
#include "model/tokenizers/utf8.h"

namespace kvasir {
namespace {

using test::fnv1a;
using test::unescape;

Result<Tokenizer> load_tokenizer(const std::string& path) {
  KV_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  KV_ASSIGN_OR_RETURN(const Gguf gguf, Gguf::parse(file.bytes(), path));
  KV_ASSIGN_OR_RETURN(TokenizerData data, read_tokenizer_data(gguf));
  return Tokenizer::create(std::move(data));
}

std::string spell(const std::vector<int32_t>& ids) {
  std::string out;
  for (const int32_t id : ids) out += fmt::format("{}{:x}", out.empty() ? "" : ",", id);
  return out;
}

struct Golden {
  bool parse_special;
  std::string check;
  std::string text;
};

std::vector<Golden> read_goldens(const std::string& file) {
  std::ifstream in(std::string(KVASIR_SOURCE_DIR) + "/tests/golden/tokenizer_" + file + ".txt");
  EXPECT_TRUE(in.good()) << file;
  std::vector<Golden> out;
  std::string line;
  while (std::getline(in, line)) {
    const size_t tab = line.find('\t', 2);
    EXPECT_NE(tab, std::string::npos) << line;
    out.push_back(
        {line[0] == 's', line.substr(2, tab - 2), unescape(std::string_view(line).substr(tab + 1))});
  }
  return out;
}

constexpr const char* kFiles[] = {"text", "edge", "code", "scripts", "digits", "spaces", "special", "random"};

TEST(TokenizerGolden, EncodesLikeHuggingFace) {
  const std::string path = golden_model_path();
  if (path.empty()) GTEST_SKIP() << kNoGoldenModel;
  const auto tokenizer = load_tokenizer(path);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();

  size_t compared = 0;
  size_t wrong = 0;
  for (const char* file : kFiles) {
    for (const Golden& golden : read_goldens(file)) {
      const auto ids = tokenizer->encode(golden.text, golden.parse_special);
      const bool hashed = golden.check.starts_with('#');
      const std::string actual = hashed ? fmt::format("#{:016x}", fnv1a(ids)) : spell(ids);
      ++compared;
      if (actual == golden.check) continue;
      if (++wrong <= 20)
        ADD_FAILURE() << file << ": [" << golden.text << "] is " << spell(ids) << ", expected "
                      << golden.check;
    }
  }
  EXPECT_EQ(wrong, 0u);
  EXPECT_GE(compared, 10000u);
}

// Decoding what was encoded gives the text back, token by token as at once, unless the vocabulary lacks bytes
// of it (this one lacks six control characters and the lead bytes of the last planes).
TEST(TokenizerGolden, DecodesBackAndStreams) {
  const std::string path = golden_model_path();
  if (path.empty()) GTEST_SKIP() << kNoGoldenModel;
  const auto tokenizer = load_tokenizer(path);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();

  size_t lossless = 0;
  for (const char* file : kFiles) {
    for (const Golden& golden : read_goldens(file)) {
      const auto ids = tokenizer->encode(golden.text, golden.parse_special);
      const auto once = tokenizer->decode(ids, false);
      ASSERT_TRUE(once.ok());
      StreamDetokenizer stream(&*tokenizer, false);
      std::string streamed;
      for (const int32_t id : ids) {
        const auto piece = stream.push(id);
        ASSERT_TRUE(piece.ok());
        ASSERT_TRUE(is_valid_utf8(*piece));
        streamed += *piece;
      }
      streamed += stream.finish();
      ASSERT_EQ(streamed, *once);
      const bool lacks_bytes =
          golden.text.find_first_of("\x04\x06\x13\x14\x16\x1d\xF1\xF2") != std::string::npos;
      if (!lacks_bytes) {
        ASSERT_EQ(*once, golden.text);
        ++lossless;
      }
    }
  }
  EXPECT_GE(lossless, 9000u);
}

TEST(TokenizerGolden, KnowsItsSpecialTokens) {
  const std::string path = golden_model_path();
  if (path.empty()) GTEST_SKIP() << kNoGoldenModel;
  const auto tokenizer = load_tokenizer(path);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ(tokenizer->vocab_size(), 49152);
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), 2);
  EXPECT_FALSE(tokenizer->add_bos());
  EXPECT_TRUE(tokenizer->is_end(2));
  EXPECT_TRUE(tokenizer->is_special(16));
  EXPECT_FALSE(tokenizer->is_special(17));
  EXPECT_TRUE(tokenizer->chat_template().has_value());
}

}  // namespace
}  // namespace kvasir
