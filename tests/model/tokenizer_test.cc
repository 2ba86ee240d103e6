// The tokenizer, the streaming detokeniser and the stop matcher on vocabularies small enough to work by hand.
#include "model/tokenizers/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "base/random.h"
#include "model/tokenizers/detokenizer.h"
#include "model/tokenizers/stop_matcher.h"
#include "model/tokenizers/utf8.h"

namespace kvasir {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The bytes 0 to 255 as tokens 0 to 255, spelled as GPT-2 does, then `more`.
TokenizerData byte_vocabulary(const std::vector<std::string>& more = {}) {
  TokenizerData data;
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
    std::string token;
    append_utf8(printable ? byte : next++, &token);
    data.tokens.push_back(token);
    data.token_types.push_back(1);
  }
  for (const std::string& token : more) {
    data.tokens.push_back(token);
    data.token_types.push_back(token.starts_with('<') ? 3 : token.starts_with('[') ? 4 : 1);
  }
  return data;
}

Tokenizer make(TokenizerData data) {
  auto tokenizer = Tokenizer::create(std::move(data));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(tokenizer).value();
}

TEST(Tokenizer, MergesTheBestPairFirstAndTheLeftmostOfEquals) {
  auto data = byte_vocabulary({"ab", "bc", "abc", "aa"});
  data.merges = {"b c", "a b", "a bc", "a a"};
  const Tokenizer tokenizer = make(std::move(data));
  EXPECT_THAT(tokenizer.encode("abc", false), ElementsAre(258));
  EXPECT_THAT(tokenizer.encode("abab", false), ElementsAre(256, 256));
  EXPECT_THAT(tokenizer.encode("aaa", false), ElementsAre(259, 'a'));
  EXPECT_THAT(tokenizer.encode("", false), ElementsAre());
}

TEST(Tokenizer, FindsTheLongestSpecialToken) {
  const Tokenizer tokenizer = make(byte_vocabulary({"<a>", "<a><b>", "[x]"}));
  EXPECT_THAT(tokenizer.encode("z<a><b><a>", true), ElementsAre('z', 257, 256));
  EXPECT_THAT(tokenizer.encode("<a", true), ElementsAre('<', 'a'));
  EXPECT_THAT(tokenizer.encode("<a>", false), ElementsAre('<', 'a', '>'));
  // A user-defined token is part of the text, whoever wrote it.
  EXPECT_THAT(tokenizer.encode("[x]", false), ElementsAre(258));
  EXPECT_FALSE(tokenizer.is_special(258));
  EXPECT_TRUE(tokenizer.is_special(256));
}

TEST(Tokenizer, DropsBytesWithoutATokenAndJoinsTheirNeighbours) {
  auto data = byte_vocabulary({"ab"});
  data.tokens[4] = "unreachable";
  data.merges = {"a b"};
  const Tokenizer tokenizer = make(std::move(data));
  EXPECT_THAT(tokenizer.encode("\x04", false), ElementsAre());
  // U+0004 is no letter, so it ends the word; inside one word of other characters the neighbours meet.
  EXPECT_THAT(tokenizer.encode("a\x04"
                               "b",
                               false),
              ElementsAre('a', 'b'));
  EXPECT_THAT(tokenizer.encode("!\x04!", false), ElementsAre('!', '!'));
}

TEST(Tokenizer, TreatsIllFormedTextAsReplaced) {
  const Tokenizer tokenizer = make(byte_vocabulary());
  for (const std::string& text :
       {std::string("a\xFFz"), std::string("\xE2\x82"), std::string("\xF0\x9F\x98q"),
        std::string("\xED\xA0\x80"), std::string("\xC0\x80\0x", 4)}) {
    EXPECT_EQ(tokenizer.encode(text, false), tokenizer.encode(replace_invalid_utf8(text), false));
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, false), false).value(), replace_invalid_utf8(text));
  }
  EXPECT_EQ(replace_invalid_utf8("\xE2\x82"), "\uFFFD");
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(replace_invalid_utf8("\xF0\x9F\x98q"), "\uFFFDq");
}

// A prompt of one endless word must not cost the square of its length.
TEST(Tokenizer, EncodesAMegabyteOfOneWordInTime) {
  std::vector<std::string> more;
  auto data = byte_vocabulary();
  std::string piece = "a";
  for (int i = 0; i < 12; ++i) {
    data.merges.push_back(piece + " " + piece);
    piece += piece;
    data.tokens.push_back(piece);
    data.token_types.push_back(1);
  }
  const Tokenizer tokenizer = make(std::move(data));
  const std::string text(1 << 20, 'a');
  const auto begin = std::chrono::steady_clock::now();
  const auto ids = tokenizer.encode(text, true);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(ids.size(), text.size() / 4096);
  // A quadratic merge takes minutes; a sanitiser and a busy machine together take less than this.
  EXPECT_LT(seconds.count(), 20.0);
}

TEST(Tokenizer, RefusesWhatContradictsItself) {
  auto expect = [](TokenizerData data, ErrorCode code, const char* part) {
    const auto result = Tokenizer::create(std::move(data));
    ASSERT_FALSE(result.ok()) << part;
    EXPECT_EQ(result.status().code(), code);
    EXPECT_THAT(result.status().message(), HasSubstr(part));
  };
  expect(TokenizerData{}, ErrorCode::kCorrupt, "0 entries");
  auto data = byte_vocabulary();
  data.token_types.pop_back();
  expect(data, ErrorCode::kCorrupt, "255 entries for 256 tokens");
  data = byte_vocabulary();
  data.token_types[7] = 9;
  expect(data, ErrorCode::kCorrupt, "token 7");
  data = byte_vocabulary();
  data.merges = {"ab"};
  expect(data, ErrorCode::kCorrupt, "not two tokens");
  data.merges = {"a b"};
  expect(data, ErrorCode::kCorrupt, "not in the vocabulary");
  data = byte_vocabulary();
  data.eos = 256;
  expect(data, ErrorCode::kCorrupt, "eos token 256");
}

TEST(Tokenizer, AnswersForIdsOutsideTheVocabulary) {
  const Tokenizer tokenizer = make(byte_vocabulary());
  for (const int32_t id : {-1, 256, INT32_MAX, INT32_MIN}) {
    EXPECT_FALSE(tokenizer.token_bytes(id).ok());
    EXPECT_FALSE(tokenizer.is_special(id));
    EXPECT_FALSE(tokenizer.is_end(id));
    EXPECT_FALSE(StreamDetokenizer(&tokenizer).push(id).ok());
  }
}

TEST(Detokenizer, HoldsBackPartsOfCharacters) {
  const Tokenizer tokenizer = make(byte_vocabulary({"<a>"}));
  StreamDetokenizer stream(&tokenizer);
  EXPECT_EQ(stream.push(0xF0).value(), "");
  EXPECT_EQ(stream.push(0x9F).value(), "");
  EXPECT_EQ(stream.push(256).value(), "");  // skipped: it does not interrupt the character
  EXPECT_EQ(stream.push(0x98).value(), "");
  EXPECT_EQ(stream.push(0x80).value(), "😀");
  EXPECT_EQ(stream.push(0xC3).value(), "");
  EXPECT_EQ(stream.push('x').value(), "\uFFFDx");
  EXPECT_EQ(stream.push(0xE2).value(), "");
  EXPECT_EQ(stream.push(0x82).value(), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(stream.finish(), "");
}

TEST(Detokenizer, StreamsWhatDecodingAtOnceGives) {
  const Tokenizer tokenizer = make(byte_vocabulary({"<a>", "\u00e2\u0124", "\u00ac\u00e2"}));
  Random random(7);
  for (int round = 0; round < 2000; ++round) {
    std::vector<int32_t> ids;
    for (uint64_t n = random.below(12); n > 0; --n) {
      // Mostly lead and continuation bytes, so that characters do form.
      ids.push_back(
          static_cast<int32_t>(random.below(3) == 0 ? random.below(259) : 0x80 + random.below(0x80)));
    }
    for (const bool skip : {true, false}) {
      StreamDetokenizer stream(&tokenizer, skip);
      std::string streamed;
      for (const int32_t id : ids) {
        const std::string piece = stream.push(id).value();
        ASSERT_TRUE(is_valid_utf8(piece));
        streamed += piece;
      }
      streamed += stream.finish();
      ASSERT_EQ(streamed, tokenizer.decode(ids, skip).value());
    }
  }
}

TEST(StopMatcher, CutsAtTheStopString) {
  auto matcher = StopMatcher::create({"END", "\n\n"}).value();
  EXPECT_EQ(matcher.push("one E"), "one ");
  EXPECT_EQ(matcher.push("N"), "");
  EXPECT_EQ(matcher.push("EN"), "EN");
  EXPECT_EQ(matcher.push("D and more"), "");
  EXPECT_EQ(matcher.matched(), 0u);
  EXPECT_EQ(matcher.push("after"), "");
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopMatcher, GivesBackWhatNeverCompleted) {
  auto matcher = StopMatcher::create({"abab!"}).value();
  EXPECT_EQ(matcher.push("xabab"), "x");
  EXPECT_EQ(matcher.push("ab"), "ab");
  EXPECT_EQ(matcher.finish(), "abab");
  EXPECT_FALSE(matcher.matched().has_value());
  auto none = StopMatcher::create({}).value();
  EXPECT_EQ(none.push("text"), "text");
}

TEST(StopMatcher, TheFirstToEndWinsAndThenTheLongest) {
  auto matcher = StopMatcher::create({"b", "ab", "abc"}).value();
  EXPECT_EQ(matcher.push("xxabc"), "xx");
  EXPECT_EQ(matcher.matched(), 1u);
  EXPECT_FALSE(StopMatcher::create({"a", ""}).ok());
}

// Against the plain definition, for random texts, stop strings and cuts over a two-letter alphabet.
TEST(StopMatcher, DoesNotDependOnTheCuts) {
  Random random(11);
  auto letters = [&](uint64_t low, uint64_t high) {
    std::string out;
    for (uint64_t n = low + random.below(high - low + 1); n > 0; --n) out += random.below(2) ? 'a' : 'b';
    return out;
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops;
    for (uint64_t n = random.below(4); n > 0; --n) stops.push_back(letters(1, 6));
    const std::string text = letters(0, 24);

    std::string expected = text;
    for (size_t end = 1; end <= text.size() && expected == text; ++end) {
      size_t longest = 0;
      for (const std::string& s : stops) {
        if (text.substr(0, end).ends_with(s)) longest = std::max(longest, s.size());
      }
      if (longest > 0) {
        expected = text.substr(0, end - longest);
        break;
      }
    }
    auto matcher = StopMatcher::create(stops).value();
    std::string actual;
    for (size_t at = 0; at < text.size();) {
      const size_t length = 1 + random.below(4);
      actual += matcher.push(std::string_view(text).substr(at, length));
      at += length;
    }
    actual += matcher.finish();
    ASSERT_EQ(actual, expected) << text;
    ASSERT_EQ(matcher.matched().has_value(), expected != text);
  }
}

}  // namespace
}  // namespace kvasir
