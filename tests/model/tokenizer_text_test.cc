// Tokenizers in which U+2581 stands for a space: SentencePiece's, and byte pair encoding of characters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/random.h"
#include "model/tokenizers/tokenizer.h"
#include "model/tokenizers/utf8.h"

namespace kvasir {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kBytes = 3;             // <0x00>
constexpr int32_t kFirst = kBytes + 256;  // the first piece

// <unk>, <s>, </s>, the bytes, then `pieces` with their scores.
TokenizerData piece_vocabulary(const std::vector<std::pair<std::string, float>>& pieces) {
  TokenizerData data;
  data.model = TokenizerModel::kPieces;
  data.split.clear();
  data.space_prefix = SpacePrefix::kAlways;
  data.tokens = {"<unk>", "<s>", "</s>"};
  data.token_types = {2, 3, 3};
  for (int byte = 0; byte < 256; ++byte) {
    data.tokens.push_back(fmt::format("<0x{:02X}>", byte));
    data.token_types.push_back(6);
  }
  data.scores.assign(data.tokens.size(), 0);
  for (const auto& [text, score] : pieces) {
    data.tokens.push_back(text);
    data.token_types.push_back(1);
    data.scores.push_back(score);
  }
  data.bos = 1;
  data.unk = 0;
  return data;
}

Tokenizer make_text(TokenizerData data) {
  auto tokenizer = Tokenizer::create(std::move(data));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(tokenizer).value();
}

TEST(Pieces, MergesTheBestScoreAndTheLeftmostOfEquals) {
  // ▁ a b c ▁a ab bc
  const Tokenizer tokenizer = make_text(piece_vocabulary(
      {{"▁", -9}, {"a", -9}, {"b", -9}, {"c", -9}, {"▁a", -3}, {"ab", -1}, {"bc", -1}, {"abc", -8}}));
  EXPECT_THAT(tokenizer.encode("abc", false), ElementsAre(kFirst, kFirst + 7));  // ab, then abc
  EXPECT_THAT(tokenizer.encode("a", false), ElementsAre(kFirst + 4));
  EXPECT_THAT(tokenizer.encode("bcb", false), ElementsAre(kFirst, kFirst + 6, kFirst + 2));
  EXPECT_THAT(tokenizer.encode("", false), ElementsAre());
}

TEST(Pieces, PutsASpaceBeforeEachStretchOfText) {
  auto data = piece_vocabulary({{"▁", -9}, {"a", -9}, {"▁a", -1}, {"▁▁", -2}});
  const Tokenizer always = make_text(data);
  EXPECT_THAT(always.encode("a<s>a a", true), ElementsAre(kFirst + 2, 1, kFirst + 2, kFirst + 2));
  EXPECT_THAT(always.encode(" a", true), ElementsAre(kFirst, kFirst + 2));
  EXPECT_EQ(always.decode(always.encode("a a", false), false).value(), " a a");
  data.space_prefix = SpacePrefix::kUnlessThere;
  EXPECT_THAT(make_text(data).encode(" a<s>a", true), ElementsAre(kFirst + 2, 1, kFirst + 2));
  data.space_prefix = SpacePrefix::kFirst;
  EXPECT_THAT(make_text(data).encode("a<s>a", true), ElementsAre(kFirst + 2, 1, kFirst + 1));
  EXPECT_THAT(make_text(data).encode("<s>a", true), ElementsAre(1, kFirst + 1));
  data.space_prefix = SpacePrefix::kNone;
  EXPECT_THAT(make_text(data).encode("a a", false), ElementsAre(kFirst + 1, kFirst + 2));
}

TEST(Pieces, FallsBackToBytesAndThenToTheUnknownToken) {
  auto data = piece_vocabulary({{"▁", -9}, {"a", -9}});
  const Tokenizer with_bytes = make_text(data);
  EXPECT_THAT(with_bytes.encode("é\n", false),
              ElementsAre(kFirst, kBytes + 0xC3, kBytes + 0xA9, kBytes + '\n'));
  EXPECT_EQ(with_bytes.decode(with_bytes.encode("é\n", false), false).value(), " é\n");
  EXPECT_TRUE(with_bytes.keeps_length());
  for (size_t i = kBytes; i < kFirst; ++i) data.token_types[i] = 5;
  const Tokenizer without = make_text(data);
  EXPECT_FALSE(without.keeps_length());
  EXPECT_THAT(without.encode("aéüa", false), ElementsAre(kFirst, kFirst + 1, 0, kFirst + 1));
  data.fuse_unknown = false;
  EXPECT_THAT(make_text(data).encode("éü", false), ElementsAre(kFirst, 0, 0));
}

TEST(Pieces, NeverMakesAControlTokenOfText) {
  // Its score is the best of all.
  const Tokenizer tokenizer =
      make_text(piece_vocabulary({{"<", -9}, {"s", -9}, {">", -9}, {"<s", -1}, {"s>", -2}}));
  for (const int32_t id : tokenizer.encode("<s>", false)) EXPECT_NE(id, 1);
  EXPECT_THAT(tokenizer.encode("<s>", true), ElementsAre(1));
}

TEST(Pieces, MergesCharactersThatAreNoPieces) {
  const Tokenizer tokenizer = make_text(piece_vocabulary({{"▁", -9}, {"de", -1}, {"def", -2}}));
  EXPECT_THAT(tokenizer.encode("def", false), ElementsAre(kFirst, kFirst + 2));
  EXPECT_THAT(tokenizer.encode("dd", false), ElementsAre(kFirst, kBytes + 'd', kBytes + 'd'));
}

// Against the definition: of all neighbours whose union is a piece, the best score and then the leftmost.
TEST(Pieces, AreThoseOfTheDefinition) {
  Random random(5);
  std::vector<std::pair<std::string, float>> pieces = {{"▁", -20}, {"a", -20}, {"b", -20}, {"é", -20}};
  const std::string letters[] = {"a", "b", "é"};
  for (int i = 0; i < 60; ++i) {
    std::string piece;
    for (uint64_t n = 2 + random.below(3); n > 0; --n) piece += letters[random.below(3)];
    pieces.emplace_back(piece, -static_cast<float>(random.below(12)));
  }
  auto data = piece_vocabulary(pieces);
  const Tokenizer tokenizer = make_text(data);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> parts = {"▁"};
    std::string text;
    for (uint64_t n = 1 + random.below(10); n > 0; --n) {
      parts.push_back(letters[random.below(3)]);
      text += parts.back();
    }
    while (true) {
      int best = -1;
      float best_score = 0;
      for (size_t i = 0; i + 1 < parts.size(); ++i) {
        const auto id = tokenizer.find_token(parts[i] + parts[i + 1]);
        if (!id) continue;
        const float score = data.scores[static_cast<size_t>(*id)];
        if (best < 0 || score > best_score) {
          best = static_cast<int>(i);
          best_score = score;
        }
      }
      if (best < 0) break;
      const auto at = static_cast<size_t>(best);
      parts[at] += parts[at + 1];
      parts.erase(parts.begin() + best + 1);
    }
    std::vector<int32_t> expected;
    for (const std::string& part : parts) expected.push_back(*tokenizer.find_token(part));
    ASSERT_EQ(tokenizer.encode(text, false), expected) << text;
  }
}

TEST(Pieces, RefuseWhatContradictsItself) {
  auto data = piece_vocabulary({{"a", -1}});
  data.scores.pop_back();
  EXPECT_THAT(Tokenizer::create(data).status().message(), HasSubstr("scores for"));
  data = piece_vocabulary({{"a", NAN}});
  EXPECT_THAT(Tokenizer::create(data).status().message(), HasSubstr("no number"));
  data = piece_vocabulary({{"a", -1}});
  data.tokens[kBytes] = "<0xZZ>";
  EXPECT_THAT(Tokenizer::create(data).status().message(), HasSubstr("said to be a byte"));
}

TEST(TextBpe, MergesCharactersAndSplitsAtNewlines) {
  TokenizerData data;
  data.model = TokenizerModel::kTextBpe;
  data.split = {RunStage{CharSet::kNewline}};
  data.tokens = {"▁", "a", "é", "\n", "▁a", "▁aé", "\n\n", "▁▁"};
  data.merges = {"▁ ▁", "▁ a", "▁a é", "\n \n"};
  const Tokenizer tokenizer = make_text(data);
  EXPECT_THAT(tokenizer.encode("a aé", false), ElementsAre(1, 5));
  EXPECT_THAT(tokenizer.encode(" \n\n  ", false), ElementsAre(0, 6, 7));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("a aé\n  ", false), false).value(), "a aé\n  ");
}

TEST(Tokenizer, WholeWordsGoBeforeMerges) {
  TokenizerData data;
  data.tokens = {"a", "b", "c", "ab", "abc"};
  data.merges = {"a b"};
  EXPECT_THAT(make_text(data).encode("abc", false), ElementsAre(3, 2));
  data.ignore_merges = true;
  EXPECT_THAT(make_text(data).encode("abc ab", false), ElementsAre(4, 3));
  EXPECT_THAT(make_text(data).encode("abca", false), ElementsAre(3, 2, 0));
}

TEST(Tokenizer, ComposesTextWhereTheModelDoes) {
  TokenizerData data;
  data.tokens = {"e", "Ã", "©", "Ì", "ģ", "Ã©"};  // é and U+0301 in bytes
  data.merges = {"Ã ©"};
  EXPECT_THAT(make_text(data).encode("e\u0301", false), ElementsAre(0, 3, 4));
  data.nfc = true;
  EXPECT_THAT(make_text(data).encode("e\u0301", false), ElementsAre(5));
  EXPECT_THAT(make_text(data).encode("\u00e9", false), ElementsAre(5));
  EXPECT_FALSE(make_text(data).keeps_length());
}

TEST(Tokenizer, TokensTakeWhiteSpaceAlong) {
  TokenizerData data;
  data.tokens = {"a", "Ġ", "<l>", "<r>", "Ċ"};
  data.token_types = {1, 1, 3, 3, 1};
  data.strips_left = {2};
  data.strips_right = {3};
  const Tokenizer tokenizer = make_text(data);
  EXPECT_THAT(tokenizer.encode("a \n<l> a", true), ElementsAre(0, 2, 1, 0));
  EXPECT_THAT(tokenizer.encode("a <r>\u3000\n a", true), ElementsAre(0, 1, 3, 0));
  EXPECT_THAT(tokenizer.encode("<r> ", true), ElementsAre(3));
}

TEST(Tokenizer, SeveralTokensEndAnOutput) {
  TokenizerData data;
  data.tokens = {"a", "<x>", "<y>", "<z>"};
  data.token_types = {1, 3, 3, 3};
  data.eos = 1;
  data.more_ends = {3};
  const Tokenizer tokenizer = make_text(data);
  EXPECT_TRUE(tokenizer.is_end(1));
  EXPECT_FALSE(tokenizer.is_end(2));
  EXPECT_TRUE(tokenizer.is_end(3));
  data.more_ends = {4};
  EXPECT_FALSE(Tokenizer::create(data).ok());
}

TEST(FitVocabulary, GivesEachRowOneToken) {
  TokenizerData data;
  data.tokens = {"a", "b", "ab", "<x>"};
  data.token_types = {1, 1, 1, 3};
  data.merges = {"a b"};
  data.eos = 3;
  TokenizerData more = data;
  ASSERT_TRUE(fit_vocabulary(&more, 6).ok());
  EXPECT_THAT(more.tokens, ElementsAre("a", "b", "ab", "<x>", "[PAD4]", "[PAD5]"));
  EXPECT_EQ(make_text(more).vocab_size(), 6);
  TokenizerData fewer = data;
  ASSERT_TRUE(fit_vocabulary(&fewer, 2).ok());
  EXPECT_TRUE(fewer.merges.empty());
  EXPECT_FALSE(fewer.eos.has_value());
  EXPECT_THAT(make_text(fewer).encode("ab<x>", true), ElementsAre(0, 1));
  EXPECT_FALSE(fit_vocabulary(&data, 1'000'000).ok());
  EXPECT_FALSE(fit_vocabulary(&data, 0).ok());
}

}  // namespace
}  // namespace kvasir
