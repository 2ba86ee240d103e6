// Where patterns cut, by hand and as Hugging Face's tokenizers does (tests/golden/splits.txt).
#include "model/tokenizers/splitter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "model/golden_text.h"
#include "model/tokenizers/split_patterns.h"

namespace kvasir {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> words_of(const char* pre, std::string_view text) {
  const Pretokenizer pretokenizer = find_pretokenizer(pre).value();
  WordSplitter splitter(pretokenizer.split, text);
  std::vector<std::string> out;
  std::string_view word;
  while (splitter.next(&word)) out.emplace_back(word);
  return out;
}

TEST(Pretokenizer, CutsLikeThePattern) {
  const auto* gpt2 = "gpt-2";
  EXPECT_THAT(words_of(gpt2, "it's  a 12x"), ElementsAre("it", "'s", " ", " a", " 12", "x"));
  EXPECT_THAT(words_of(gpt2, "a\n\nb"), ElementsAre("a", "\n", "\n", "b"));
  EXPECT_THAT(words_of(gpt2, "a  \n"), ElementsAre("a", "  \n"));
  EXPECT_THAT(words_of(gpt2, "I'LL 'll"), ElementsAre("I", "'", "LL", " '", "ll"));
  EXPECT_THAT(words_of(gpt2, "x\u00a0y"), ElementsAre("x", "\u00a0", "y"));
  EXPECT_THAT(words_of(gpt2, ""), ElementsAre());
}

TEST(Pretokenizer, SmollmSetsDigitsApart) {
  const auto* smollm = "smollm";
  EXPECT_THAT(words_of(smollm, "a 12x"), ElementsAre("a", " ", "1", "2", "x"));
  EXPECT_THAT(words_of(smollm, "  1  b"), ElementsAre("  ", "1", " ", " b"));
  EXPECT_THAT(words_of(smollm, "\u0664\u00bd\u2167"), ElementsAre("\u0664", "\u00bd", "\u2167"));
  EXPECT_THAT(words_of(smollm, "\u4e00\u4e8c"), ElementsAre("\u4e00\u4e8c"));
}

TEST(Pretokenizer, NamesWhatItDoesNotKnow) {
  const auto kind = find_pretokenizer("telken");
  ASSERT_FALSE(kind.ok());
  EXPECT_EQ(kind.status().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(kind.status().message(), HasSubstr("'telken'"));
}

TEST(Pretokenizer, DefaultIsNotGpt2) {
  EXPECT_THAT(words_of("default", "a 12345!b"), ElementsAre("a", " ", "123", "45", "!", "b"));
  EXPECT_THAT(words_of("gpt-2", "a 12345!b"), ElementsAre("a", " 12345", "!", "b"));
}

TEST(Pretokenizer, TakesAnyCharacterBeforeLetters) {
  EXPECT_THAT(words_of("llama-bpe", "x.y (a) 1234 IT'S"),
              ElementsAre("x", ".y", " (", "a", ")", " ", "123", "4", " IT", "'S"));
  EXPECT_THAT(words_of("llama-bpe", "a \n\n b !\n"), ElementsAre("a", " \n\n", " b", " !\n"));
  EXPECT_THAT(words_of("qwen2", "12"), ElementsAre("1", "2"));
  // The long s folds to s.
  EXPECT_THAT(words_of("llama-bpe", "it'\u017f"), ElementsAre("it", "'\u017f"));
}

TEST(Pretokenizer, MarksJoinLettersOnlyWhereThePatternSaysSo) {
  EXPECT_THAT(words_of("qwen2", "e\u0301a"), ElementsAre("e", "\u0301a"));
  EXPECT_THAT(words_of("qwen35", "e\u0301a"), ElementsAre("e\u0301a"));
  EXPECT_THAT(words_of("gpt-4o", "e\u0301a"), ElementsAre("e\u0301a"));
}

TEST(Pretokenizer, CutsWhereCaseRises) {
  EXPECT_THAT(words_of("tekken", "fooBarHTTPServer"), ElementsAre("foo", "Bar", "HTTPServer"));
  EXPECT_THAT(words_of("tekken", "HTTP I'm"), ElementsAre("HTTP", " I", "'m"));
  EXPECT_THAT(words_of("gpt-4o", "HTTP I'm //\n/"), ElementsAre("HTTP", " I'm", " //\n/"));
  // A letter without case, given back to the part that must not be empty.
  EXPECT_THAT(words_of("tekken", "\u00aaAB"), ElementsAre("\u00aa", "AB"));
  EXPECT_THAT(words_of("tekken", "\u0301AB"), ElementsAre("\u0301", "AB"));
}

TEST(Pretokenizer, CutsInStages) {
  EXPECT_THAT(words_of("deepseek-v3", "a1234\u4e2d\u6587b .x"),
              ElementsAre("a", "123", "4", "\u4e2d\u6587", "b", " .", "x"));
  // What no alternative matches stays together.
  EXPECT_THAT(words_of("deepseek-v3", "\x01\x02!"), ElementsAre("\x01\x02", "!"));
  EXPECT_THAT(words_of("deepseek-llm", "a b  "), ElementsAre("a", " b", "  "));
}

TEST(Pretokenizer, CutsLikeHuggingFace) {
  const test::SplitGoldens goldens = test::read_split_goldens();
  ASSERT_GE(goldens.patterns.size(), 13u);
  ASSERT_GE(goldens.lines.size(), 1000u);
  for (size_t p = 0; p < goldens.patterns.size(); ++p) {
    for (const auto& line : goldens.lines) {
      uint32_t hash = 0x811C9DC5;
      for (const std::string& word : words_of(goldens.patterns[p].c_str(), line.text)) {
        for (int shift = 0; shift < 32; shift += 8) {
          hash = (hash ^ ((static_cast<uint32_t>(word.size()) >> shift) & 0xFF)) * 0x01000193;
        }
      }
      ASSERT_EQ(hash, line.hashes[p]) << goldens.patterns[p] << ": " << line.text;
    }
  }
}

// Long runs of what patterns look ahead over, or give back.
TEST(Pretokenizer, IsLinear) {
  const auto begin = std::chrono::steady_clock::now();
  for (const char* pre :
       {"default", "qwen2", "tekken", "deepseek-v3", "deepseek-llm", "deepseek-coder", "bloom"}) {
    for (const char* unit : {" ", " x", "A", "\u00aaA", "1", "!", "\u0301", "\n", "\x01", " \n", "'"}) {
      std::string text;
      while (text.size() < 200'000) text += unit;
      size_t total = 0;
      for (const std::string& word : words_of(pre, text)) total += word.size();
      ASSERT_EQ(total, text.size());
    }
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(seconds.count(), 60.0);
}

TEST(SplitPattern, IsRecognisedHoweverItIsWritten) {
  const SplitStage llama3 = find_pretokenizer("llama-bpe").value().split.front();
  EXPECT_EQ(
      parse_split_pattern(
          R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)"),
      llama3);
  EXPECT_EQ(parse_split_pattern("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
                                "| ?[^\\s\\p{L}\\p{N}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"),
            llama3);
  EXPECT_EQ(parse_split_pattern(R"(\p{L}+)"), std::nullopt);
  EXPECT_EQ(parse_split_pattern(""), std::nullopt);
  // Letters with marks, and others that are without them.
  EXPECT_EQ(
      parse_split_pattern(R"([^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+)"),
      std::nullopt);
}

}  // namespace
}  // namespace kvasir
