// Tokens to visible text: stop strings, stop tokens, characters that arrive in parts, log-probabilities.
#include "server/choice_stream.h"

#include <gtest/gtest.h>

#include "server/test_service.h"

namespace kvasir {
namespace {

using test::token_of;

class ChoiceStreamTest : public ::testing::Test {
 protected:
  ChoiceStream make(std::vector<std::string> stops, bool logprobs = false,
                    std::vector<Token> stop_tokens = {2}) {
    Result<ChoiceStream> made =
        ChoiceStream::create(&tokenizer_, std::move(stops), std::move(stop_tokens), logprobs);
    KV_CHECK(made.ok(), "{}", made.status().message());
    return std::move(made).value();
  }
  static TextDelta push(ChoiceStream& stream, std::string_view text) {
    TextDelta delta;
    for (const char c : text) {
      EXPECT_TRUE(stream.push({token_of(c), -1, {}}, delta).ok());
    }
    return delta;
  }

  const Tokenizer tokenizer_ = test::byte_tokenizer();
};

TEST_F(ChoiceStreamTest, HoldsBackPartsOfCharacters) {
  ChoiceStream s = make({});
  EXPECT_EQ(push(s, "a\xE2\x82").text, "a");
  EXPECT_EQ(push(s, "\xAC").text, "\xE2\x82\xAC");
  EXPECT_EQ(push(s, "\xE2").text, "");
  TextDelta end;
  s.finish(end);
  EXPECT_EQ(end.text, "\xEF\xBF\xBD");
  EXPECT_EQ(s.completion_tokens(), 5u);
}

TEST_F(ChoiceStreamTest, HoldsBackWhatMayBecomeAStopString) {
  ChoiceStream s = make({"END", "\n\n"});
  EXPECT_EQ(push(s, "xE").text, "x");
  EXPECT_EQ(push(s, "Ny").text, "ENy");
  EXPECT_EQ(push(s, "\n").text, "");
  EXPECT_FALSE(s.stopped_by_string());
  EXPECT_EQ(push(s, "\nignored").text, "");
  EXPECT_TRUE(s.stopped_by_string());
  TextDelta end;
  s.finish(end);
  EXPECT_EQ(end.text, "");
  // Up to the token that completed the stop string.
  EXPECT_EQ(s.completion_tokens(), 6u);
}

TEST_F(ChoiceStreamTest, FinishShowsWhatWasHeldBack) {
  ChoiceStream s = make({"END"}, true);
  EXPECT_EQ(push(s, "EN").text, "");
  TextDelta end;
  s.finish(end);
  EXPECT_EQ(end.text, "EN");
  EXPECT_EQ(end.logprobs.size(), 2u);
}

TEST_F(ChoiceStreamTest, StopTokensAndSpecialTokensHaveNoText) {
  ChoiceStream s = make({}, true, {2, token_of('z')});
  TextDelta delta;
  ASSERT_TRUE(s.push({1, -1, {}}, delta).ok());
  ASSERT_TRUE(s.push({token_of('z'), -1, {}}, delta).ok());
  s.finish(delta);
  EXPECT_EQ(delta.text, "");
  EXPECT_EQ(s.completion_tokens(), 2u);
  // The special token was generated as any other; the stop token ended it.
  ASSERT_EQ(delta.logprobs.size(), 1u);
  EXPECT_EQ(delta.logprobs[0].id, 1);
}

TEST_F(ChoiceStreamTest, ControlTokensThatAreShownHaveTheirText) {
  const Tokenizer tokenizer = test::byte_tokenizer({}, {"<think>", "[ARGS]"});
  ChoiceStream s = ChoiceStream::create(&tokenizer, {"k>b"}, {2}, true, 0, {test::control_token(0)}).value();
  TextDelta delta;
  for (const Token t : {token_of('a'), test::control_token(0), test::control_token(1), token_of('\xE2')}) {
    ASSERT_TRUE(s.push({t, -1, {}}, delta).ok());
  }
  EXPECT_EQ(delta.text, "a<thin") << "a stop string may begin in it";
  ASSERT_TRUE(s.push({test::control_token(0), -1, {}}, delta).ok());
  EXPECT_EQ(delta.text, "a<think>\xEF\xBF\xBD<thin");
  ASSERT_TRUE(s.push({token_of('b'), -1, {}}, delta).ok());
  EXPECT_TRUE(s.stopped_by_string());
}

TEST_F(ChoiceStreamTest, LogprobsComeWithTheirText) {
  ChoiceStream s = make({"STOP"}, true);
  TextDelta d = push(s, "\xC3\xA9S");
  EXPECT_EQ(d.text, "\xC3\xA9");
  ASSERT_EQ(d.logprobs.size(), 2u);  // both bytes of the character
  EXPECT_EQ(d.logprobs[0].char_offset, 0u);
  EXPECT_EQ(d.logprobs[1].char_offset, 0u);
  d = push(s, "x");
  EXPECT_EQ(d.text, "Sx");
  ASSERT_EQ(d.logprobs.size(), 2u);
  EXPECT_EQ(d.logprobs[0].id, token_of('S'));
  EXPECT_EQ(d.logprobs[0].char_offset, 1u);
  EXPECT_EQ(d.logprobs[1].char_offset, 2u);
  d = push(s, "STOP");
  TextDelta end;
  s.finish(end);
  EXPECT_TRUE(d.empty());
  EXPECT_TRUE(end.empty());
}

TEST_F(ChoiceStreamTest, RefusesIdsOutsideTheVocabulary) {
  ChoiceStream s = make({});
  TextDelta d;
  EXPECT_FALSE(s.push({100000, -1, {}}, d).ok());
}

TEST_F(ChoiceStreamTest, TheFirstTokensAreNotSearchedForStopStrings) {
  ChoiceStream s = ChoiceStream::create(&tokenizer_, {"ab"}, {2}, false, /*min_tokens=*/3).value();
  EXPECT_EQ(push(s, "aba").text, "aba");
  EXPECT_EQ(push(s, "b").text, "b") << "its first character came too early";
  EXPECT_EQ(push(s, "ab").text, "");
  EXPECT_TRUE(s.stopped_by_string());
}

TEST_F(ChoiceStreamTest, AnEchoIsNotSearchedForStopStrings) {
  ChoiceStream s = ChoiceStream::create(&tokenizer_, {"ab"}, {2}, true).value();
  TextDelta delta;
  const std::vector<Token> prompt = {token_of('a'), token_of('b')};
  ASSERT_TRUE(s.echo(prompt, std::vector<PromptToken>{{prompt[1], -2.0F, 1, {}}}, 0, delta).ok());
  EXPECT_EQ(delta.text, "ab");
  ASSERT_EQ(delta.logprobs.size(), 2U);
  EXPECT_FALSE(delta.logprobs[0].logprob);
  EXPECT_EQ(delta.logprobs[1].logprob, -2.0F);
  EXPECT_EQ(delta.logprobs[1].char_offset, 1U);
  EXPECT_EQ(s.completion_tokens(), 0U);
  EXPECT_EQ(push(s, "xab").text, "x");
  EXPECT_TRUE(s.stopped_by_string());
}

TEST_F(ChoiceStreamTest, NamesTheStopString) {
  ChoiceStream s = make({"xy", "no"});
  push(s, "a n");
  EXPECT_EQ(s.stop_string(), "");
  push(s, "o b");
  EXPECT_EQ(s.stop_string(), "no");
}

}  // namespace
}  // namespace kvasir
