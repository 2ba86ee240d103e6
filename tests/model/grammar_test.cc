// Grammars of each kind over small vocabularies, and their limits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "model/grammar/grammar_compiler.h"
#include "model/grammar/grammar_limits.h"
#include "model/grammar/grammar_matcher.h"
#include "model/grammar/output_constraint.h"
#include "support/take.h"
#include "support/tiny_llama.h"

namespace kvasir::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using Kind = OutputGrammar::Kind;

constexpr Token kEnd = 2;

// Ids 0, 1, 2 are <|endoftext|>, <|im_start|>, <|im_end|> (the end); then all bytes, and some merges.
Tokenizer tiny_tokenizer(bool pieces = false) {
  TinyVocabulary vocabulary = pieces ? make_tiny_pieces(512) : make_tiny_vocabulary(512);
  TokenizerData data;
  data.model = pieces ? TokenizerModel::kPieces : TokenizerModel::kByteBpe;
  data.split = find_pretokenizer("smollm").value().split;
  data.tokens = std::move(vocabulary.tokens);
  data.token_types = std::move(vocabulary.types);
  if (pieces) {
    for (size_t i = 0; i < data.tokens.size(); ++i) data.scores.push_back(-static_cast<float>(i));
  } else {
    data.merges = std::move(vocabulary.merges);
  }
  data.eos = kEnd;
  return take(Tokenizer::create(std::move(data)));
}

OutputGrammar of(Kind kind, std::string text) {
  return {kind, std::move(text)};
}

class GrammarTest : public testing::TestWithParam<bool> {
 protected:
  GrammarTest() : tokenizer_(tiny_tokenizer(GetParam())), vocabulary_(tokenizer_) {}

  CompiledGrammar compiled(const OutputGrammar& grammar) { return take(vocabulary_.compile(grammar)); }
  std::string refusal(const OutputGrammar& grammar) {
    const Result<CompiledGrammar> result = vocabulary_.compile(grammar);
    EXPECT_FALSE(result.ok());
    if (result.ok()) return {};
    EXPECT_EQ(result.status().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(result.status().message().find('\n'), std::string::npos);
    return result.status().message();
  }

  // The bytes of the tokens that may come after an output of these bytes, one token each; "$": the end.
  std::set<std::string> next(const OutputGrammar& grammar, const std::string& output) {
    GrammarMatcher matcher(compiled(grammar));
    std::vector<Token> tokens;
    for (const char c : output) tokens.push_back(3 + static_cast<uint8_t>(c));
    EXPECT_TRUE(matcher.follow(tokens)) << output;
    TokenMask mask;
    matcher.mask(mask);
    std::set<std::string> out;
    for (Token t = 0; t < tokenizer_.vocab_size(); ++t) {
      if (!mask.has(t)) continue;
      EXPECT_TRUE(t == kEnd || !tokenizer_.is_special(t)) << t;
      out.insert(t == kEnd ? "$" : std::string(*tokenizer_.token_bytes(t)));
    }
    return out;
  }

  // A text of tokens drawn evenly from the masks, up to the end.
  std::string written(const OutputGrammar& grammar, uint64_t seed) {
    Random random(seed);
    GrammarMatcher matcher(compiled(grammar));
    std::vector<Token> tokens;
    std::string text;
    TokenMask mask;
    while (tokens.size() < 2000) {
      EXPECT_TRUE(matcher.follow(tokens));
      matcher.mask(mask);
      std::vector<Token> allowed;
      for (Token t = 0; t < tokenizer_.vocab_size(); ++t) {
        if (mask.has(t)) allowed.push_back(t);
      }
      const Token t = allowed.at(random.below(allowed.size()));
      if (t == kEnd) return text;
      tokens.push_back(t);
      text += *tokenizer_.token_bytes(t);
    }
    ADD_FAILURE() << "no end: " << text;
    return text;
  }

  const Tokenizer tokenizer_;
  const GrammarVocabulary vocabulary_;
};

using Texts = std::set<std::string>;

TEST_P(GrammarTest, AChoiceMayBeginAnother) {
  const OutputGrammar grammar{Kind::kChoice, {}, {"xq", "xqz", "\"\\\n"}};
  EXPECT_EQ(next(grammar, ""), (Texts{"x", "\""}));
  EXPECT_EQ(next(grammar, "xq"), (Texts{"$", "z"}));
  EXPECT_EQ(next(grammar, "xqz"), (Texts{"$"}));
  EXPECT_EQ(next(grammar, "\"\\"), (Texts{"\n"}));
  std::set<std::string> all;
  for (uint64_t seed = 0; seed < 40; ++seed) all.insert(written(grammar, seed));
  EXPECT_EQ(all, (Texts{"xq", "xqz", "\"\\\n"}));
}

TEST_P(GrammarTest, ARegexMatchesTheWholeOutput) {
  const OutputGrammar grammar = of(Kind::kRegex, "[0-9]{2}-[xz]+");
  EXPECT_FALSE(next(grammar, "").contains("$"));
  EXPECT_EQ(next(grammar, "42"), (Texts{"-"}));
  EXPECT_TRUE(next(grammar, "42-x").contains("$"));
  EXPECT_FALSE(next(grammar, "42-x").contains("q"));
}

TEST_P(GrammarTest, CharactersOfSeveralBytes) {
  const OutputGrammar grammar = of(Kind::kRegex, "é[à-ü]");
  EXPECT_EQ(next(grammar, ""), (Texts{"\xC3"}));
  EXPECT_EQ(next(grammar, "\xC3"), (Texts{"\xA9"}));
  for (uint64_t seed = 0; seed < 5; ++seed) EXPECT_EQ(written(grammar, seed).size(), 4u);
}

TEST_P(GrammarTest, ASchemaHasItsPropertiesInOrder) {
  const OutputGrammar grammar =
      of(Kind::kJsonSchema,
         R"({"type":"object","properties":{"z":{"type":"string","maxLength":4},"a":{"enum":[1,true,"x"]},
             "list":{"type":"array","items":{"type":"boolean"},"maxItems":3}},
             "required":["z","a","list"],"additionalProperties":false})");
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::string text = written(grammar, seed);
    const json value = json::parse(text, nullptr, false);
    ASSERT_TRUE(value.is_object()) << text;
    EXPECT_EQ(value.size(), 3u) << text;
    EXPECT_TRUE(value["z"].is_string() && value["list"].size() <= 3) << text;
    EXPECT_LT(text.find("\"z\""), text.find("\"a\"")) << text;
  }
}

TEST_P(GrammarTest, ASchemaMayReferToItself) {
  const OutputGrammar grammar = of(
      Kind::kJsonSchema,
      R"({"$defs":{"n":{"type":"object","properties":{"v":{"type":"null"},"next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},
          "required":["v","next"]}},"$ref":"#/$defs/n"})");
  for (uint64_t seed = 0; seed < 5; ++seed) {
    EXPECT_TRUE(json::parse(written(grammar, seed), nullptr, false).contains("next"));
  }
}

TEST_P(GrammarTest, AnyJsonIsAnObject) {
  const OutputGrammar grammar{Kind::kJson};
  for (const std::string& text : next(grammar, "")) EXPECT_EQ(text[0], '{');
  EXPECT_TRUE(next(grammar, "{\"a\":").contains("["));
  EXPECT_TRUE(next(grammar, "{\"a\":[1]}").contains("$"));
}

TEST_P(GrammarTest, Ebnf) {
  const OutputGrammar grammar = of(Kind::kGrammar, "root ::= \"(\" root \")\" | item\nitem ::= [xz]");
  EXPECT_EQ(next(grammar, "((x"), (Texts{")"}));
  EXPECT_EQ(next(grammar, "((x))"), (Texts{"$"}));
}

TEST_P(GrammarTest, ATagBeginsAConstrainedPart) {
  const OutputGrammar grammar = of(
      Kind::kStructuralTag,
      R"({"type":"structural_tag","format":{"type":"triggered_tags","triggers":["<f"],"tags":[{"begin":"<f>","content":{"type":"json_schema",
          "json_schema":{"type":"object","properties":{"x":{"type":"boolean"}},"required":["x"]}},"end":"</f>"}]}})");
  EXPECT_TRUE(next(grammar, "free text").contains("$"));
  EXPECT_EQ(next(grammar, "free <f"), (Texts{">"}));
  EXPECT_FALSE(next(grammar, "<f>{\"x\": true").contains("$"));
  EXPECT_EQ(next(grammar, "<f>{\"x\": true}<"), (Texts{"/"}));
  EXPECT_TRUE(next(grammar, "<f>{\"x\": true}</f>").contains("q"));
}

TEST_P(GrammarTest, WhatIsNoGrammarIsRefusedInOneLine) {
  EXPECT_NE(refusal(of(Kind::kRegex, "[a-")), "");
  EXPECT_NE(refusal(of(Kind::kRegex, "a(?=b)")), "");
  EXPECT_NE(refusal(of(Kind::kGrammar, "root ::= nothing")), "");
  EXPECT_NE(refusal(of(Kind::kGrammar, "no rule at all")), "");
  EXPECT_NE(refusal(of(Kind::kJsonSchema, R"({"type":"strin"})")), "");
  // Also the second time.
  for (int i = 0; i < 2; ++i) {
    EXPECT_NE(refusal(of(Kind::kJsonSchema, R"({"$ref":"elsewhere"})")), "");
    EXPECT_NE(refusal(of(Kind::kJsonSchema, R"({"type":"number","multipleOf":0.5})")), "");
  }
  EXPECT_NE(refusal(of(Kind::kStructuralTag, R"({"type":"structural_tag"})")), "");
}

// Back, and on another way: what comes next is what it is for a matcher that was never elsewhere.
TEST_P(GrammarTest, AMatcherFollowsAnyOutput) {
  const CompiledGrammar grammar = compiled(of(Kind::kRegex, "(ab|ac|b[x-z]{3})*"));
  GrammarMatcher matcher(grammar);
  const auto tokens_of = [](const std::string& text) {
    std::vector<Token> out;
    for (const char c : text) out.push_back(3 + static_cast<uint8_t>(c));
    return out;
  };
  TokenMask got, expected;
  for (const char* text : {"ab", "abbx", "a", "ac", "", "bxyzab", "bxz", "ab"}) {
    EXPECT_TRUE(matcher.follow(tokens_of(text))) << text;
    matcher.mask(got);
    GrammarMatcher fresh(grammar);
    EXPECT_TRUE(fresh.follow(tokens_of(text)));
    fresh.mask(expected);
    EXPECT_EQ(got.words, expected.words) << text;
  }
  // Not allowed, then allowed again.
  EXPECT_FALSE(matcher.follow(tokens_of("abq")));
  matcher.mask(got);
  EXPECT_THAT(matcher.faults(), IsEmpty());
  EXPECT_TRUE(got.has(kEnd));
  EXPECT_FALSE(got.has(3 + 'a'));
  EXPECT_TRUE(matcher.follow(tokens_of("ab")));
  matcher.mask(got);
  EXPECT_EQ(got.words, expected.words);
}

TEST_P(GrammarTest, AFaultIsOfTheOutputThatItCameWith) {
  GrammarMatcher matcher(compiled(of(Kind::kRegex, "a*")));
  const std::vector<Token> beyond = {3 + 'a', 99'999};
  EXPECT_FALSE(matcher.follow(beyond));
  ASSERT_THAT(matcher.faults(), SizeIs(1));
  EXPECT_THAT(matcher.faults()[0], HasSubstr("99999"));
  TokenMask mask;
  matcher.mask(mask);
  EXPECT_TRUE(mask.has(kEnd));
  EXPECT_THAT(matcher.faults(), SizeIs(1));
  EXPECT_TRUE(matcher.follow(std::span(beyond).first(1)));
  EXPECT_THAT(matcher.faults(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, GrammarTest, testing::Bool(),
                         [](const auto& p) { return p.param ? "pieces" : "bytes"; });

// ---------------------------------------------------------------- limits

TEST(GrammarLimits, APatternIsMeasuredWrittenOut) {
  EXPECT_EQ(expanded_size("abc", false, 1000), 3u);
  EXPECT_EQ(expanded_size("a{7}b{2,5}[xyz]*", false, 1000), 13u);
  EXPECT_EQ(expanded_size("(ab{3}|c){10}", false, 1000), 50u);  // a, b b b, c
  EXPECT_EQ(expanded_size("((a{100}){100}){100}", false, 1000), 1001u);
  EXPECT_EQ(expanded_size("a{99999999999999999999}", false, 1000), 1001u);
  EXPECT_EQ(expanded_size(R"(r ::= "a{9}"{3})", true, 1000), 16u);  // r, ::=, four bytes three times
}

TEST(GrammarLimits, WhatIsBeyondThemIsNamed) {
  const auto says = [](const OutputGrammar& grammar, const char* words) {
    const Status status = check_size(grammar);
    ASSERT_FALSE(status.ok()) << words;
    EXPECT_THAT(status.message(), HasSubstr(words));
  };
  says(of(Kind::kRegex, std::string(70'000, 'a')), "at most 65536");
  says(of(Kind::kRegex, "(a{1000}){1000}"), "16384 characters");
  says(of(Kind::kRegex, std::string(100, '(') + "a" + std::string(100, ')')), "64 levels");
  says(of(Kind::kRegex, ")" + std::string(100, ')') + std::string(70, '(')), "64 levels");
  std::string repeated = "a";
  for (int i = 0; i < 40; ++i) repeated += "+*";
  says(of(Kind::kRegex, repeated), "64 levels");
  says(of(Kind::kJsonSchema, R"({"pattern":")" + repeated + "\"}"), "64 levels");
  EXPECT_TRUE(check_size(of(Kind::kRegex, "(a+b*c?[(]{3}|d+)+" + std::string(200, 'x') + "[((((]")).ok());
  says(of(Kind::kRegex, ""), "not be empty");
  says(of(Kind::kGrammar, "root ::= (\"aaaa\"{2000}){2000}"), "16384 characters");
  says({Kind::kChoice}, "there must be a choice");
  says({Kind::kChoice, {}, {"a", ""}}, "none may be empty");
  says({Kind::kChoice, {}, std::vector<std::string>(1025, "a")}, "at most 1024");
  says(of(Kind::kJsonSchema, "{"), "not valid JSON");
  says(of(Kind::kJsonSchema, "[]"), "must be a JSON object");
  says(of(Kind::kJsonSchema, R"({"type":"array","maxItems":1e9})"), "'maxItems' is larger");
  says(of(Kind::kJsonSchema, R"({"properties":{"a":{"pattern":"(a{200}){200}"}}})"), "16384 characters");
  says(of(Kind::kJsonSchema, R"({"properties":{"a":{"not":{"type":"null"}}}})"), "keyword 'not'");
  says(of(Kind::kJsonSchema, R"({"items":{"anyOf":[{"uniqueItems":true}]}})"), "keyword 'uniqueItems'");
  says(of(Kind::kJsonSchema, R"({"$ref":"#/default","default":{"pattern":"a"}})"), "'$ref'");
  says(of(Kind::kJsonSchema, R"({"$ref":"#/$defs/a/default","$defs":{"a":{"default":{}}}})"), "'$ref'");
  EXPECT_TRUE(
      check_size(of(Kind::kJsonSchema, R"({"$ref":"#/$defs/a","$defs":{"a":{"type":"null"}}})")).ok());
  says(of(Kind::kStructuralTag,
          R"({"format":{"elements":[{"type":"json_schema","json_schema":{"pattern":"(a{200}){200}"}}]}})"),
       "16384 characters");
  std::string deep = "1";
  for (int i = 0; i < 70; ++i) deep = R"({"items":)" + deep + "}";
  says(of(Kind::kJsonSchema, deep), "64 levels");
  // Names of properties and values are no keywords.
  EXPECT_TRUE(
      check_size(of(Kind::kJsonSchema, R"({"properties":{"not":{"enum":[{"if":1}]}},"required":["not"]})"))
          .ok());
}

// ---------------------------------------------------------------- the compiler

TEST(GrammarCompilerTest, KeepsWhatWasUsedLast) {
  const Tokenizer tokenizer = tiny_tokenizer();
  GrammarCompiler::Options options;
  options.cache_bytes = 100'000;
  GrammarCompiler compiler(tokenizer, options);
  const OutputGrammar first = of(Kind::kRegex, "first[0-9]+");
  EXPECT_FALSE(compiler.is_cached(first));
  EXPECT_TRUE(compiler.compile(first).ok());
  EXPECT_TRUE(compiler.is_cached(first));
  EXPECT_TRUE(compiler.compile(first).ok());
  EXPECT_EQ(compiler.stats().compiled, 1u);
  bool dropped = false;
  for (int i = 0; i < 200 && !dropped; ++i) {
    EXPECT_TRUE(compiler.compile(of(Kind::kRegex, "[a-z]{" + std::to_string(i + 1) + "}x")).ok());
    EXPECT_TRUE(compiler.compile(of(Kind::kRegex, "[a-z]{1}x")).ok());
    dropped = !compiler.is_cached(first);
  }
  EXPECT_TRUE(dropped);
  EXPECT_TRUE(compiler.is_cached(of(Kind::kRegex, "[a-z]{1}x"))) << "it was used all the time";
}

TEST(GrammarCompilerTest, TwoGrammarsAreNotOne) {
  const Tokenizer tokenizer = tiny_tokenizer();
  GrammarCompiler compiler(tokenizer);
  EXPECT_TRUE(compiler.compile({Kind::kChoice, {}, {"a1:b"}}).ok());
  EXPECT_FALSE(compiler.is_cached({Kind::kChoice, {}, {"a", "b"}}));
  EXPECT_FALSE(compiler.is_cached(of(Kind::kRegex, "4:a1:b")));
  EXPECT_FALSE(compiler.compile(of(Kind::kRegex, "[")).ok());
  EXPECT_FALSE(compiler.is_cached(of(Kind::kRegex, "[")));
}

TEST(GrammarCompilerTest, GivesUpWhatTakesTooLong) {
  const Tokenizer tokenizer = tiny_tokenizer();
  GrammarCompiler::Options options;
  options.patience = 0;
  options.threads = 1;
  GrammarCompiler compiler(tokenizer, options);
  const OutputGrammar slow = of(Kind::kRegex, "([a-f]{40}[0-9]){60}");
  const Result<CompiledGrammar> refused = compiler.compile(slow);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.status().message(), HasSubstr("longer than 0 s"));
  // Its thread is at work until it is kept.
  while (!compiler.is_cached(slow)) {
    const Result<CompiledGrammar> other = compiler.compile(of(Kind::kRegex, "a"));
    // The thread may have become free since, and no time is left for this one either.
    if (other.ok() || other.status().code() == ErrorCode::kInvalidArgument) break;
    EXPECT_EQ(other.status().code(), ErrorCode::kExhausted);
    std::this_thread::yield();
  }
  while (!compiler.is_cached(slow)) std::this_thread::yield();
  EXPECT_TRUE(compiler.compile(slow).ok());
  std::atomic<bool> left{true};
  const Result<CompiledGrammar> abandoned = compiler.compile(of(Kind::kRegex, "b"), &left);
  if (!abandoned.ok()) {
    EXPECT_EQ(abandoned.status().code(), ErrorCode::kUnavailable);
  }
}

TEST(GrammarCompilerTest, RefusesWhatIsSlowToBeMasked) {
  const Tokenizer tokenizer = tiny_tokenizer();
  GrammarCompiler::Options options;
  options.mask_time = -1;
  GrammarCompiler compiler(tokenizer, options);
  const Result<CompiledGrammar> refused = compiler.compile(of(Kind::kRegex, "a"));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.status().message(), HasSubstr("which is the limit"));
  EXPECT_FALSE(compiler.is_cached(of(Kind::kRegex, "a")));
}

TEST(GrammarCompilerTest, AModelWithoutAnEndIsRefused) {
  TinyVocabulary vocabulary = make_tiny_vocabulary(512);
  TokenizerData data;
  data.tokens = std::move(vocabulary.tokens);
  data.token_types = std::move(vocabulary.types);
  data.merges = std::move(vocabulary.merges);
  const Tokenizer tokenizer = take(Tokenizer::create(std::move(data)));
  GrammarCompiler compiler(tokenizer);
  const Result<CompiledGrammar> refused = compiler.compile(of(Kind::kRegex, "a"));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), ErrorCode::kUnsupported);
}

// ---------------------------------------------------------------- constraints

TEST(OutputConstraintTest, AMaskDependsOnTheOutputAlone) {
  const Tokenizer tokenizer = tiny_tokenizer();
  GrammarCompiler compiler(tokenizer);
  const CompiledGrammar grammar = take(compiler.compile(of(Kind::kRegex, "(xq|zq*)+")));
  const std::shared_ptr<TokenConstraint> constraint = compiler.constrain(grammar);
  Random random(5);
  std::vector<Token> output;
  for (int i = 0; i < 300; ++i) {
    if (random.below(10) == 0) output.resize(random.below(output.size() + 1));  // computed again
    const TokenMask* mask = constraint->after(output, 10 * kNanosPerSecond);
    ASSERT_NE(mask, nullptr);
    GrammarMatcher fresh(grammar);
    TokenMask expected;
    ASSERT_TRUE(fresh.follow(output));
    fresh.mask(expected);
    ASSERT_EQ(mask->words, expected.words) << i;
    std::vector<Token> allowed;
    for (Token t = 3; t < tokenizer.vocab_size(); ++t) {
      if (mask->has(t)) allowed.push_back(t);
    }
    output.push_back(allowed.at(random.below(allowed.size())));
    if (random.below(2) == 0) constraint->expect(output);
  }
  EXPECT_EQ(compiler.stats().masks_late, 0u);
  EXPECT_GE(compiler.stats().masks_asked, 300u);
}

TEST(OutputConstraintTest, NothingIsWaitedForBeyondItsPatience) {
  const Tokenizer tokenizer = tiny_tokenizer();
  auto compiler = std::make_unique<GrammarCompiler>(tokenizer);
  const std::shared_ptr<TokenConstraint> constraint =
      compiler->constrain(take(compiler->compile(of(Kind::kRegex, "x*"))));
  EXPECT_NE(constraint->after({}, 0), nullptr) << "the first mask was made with the constraint";
  compiler.reset();
  // No thread makes it any more.
  const std::vector<Token> output = {3 + 'x'};
  EXPECT_EQ(constraint->after(output, kNanosPerMilli), nullptr);
  // It was late, so no step waits any more.
  EXPECT_EQ(constraint->after(output, 1000 * kNanosPerSecond), nullptr);
  constraint->expect(output);
}

}  // namespace
}  // namespace kvasir::test
