// Each parameter by numbers worked by hand. Where the logits are logarithms of whole numbers, the weights at
// temperature 1 are those numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <set>

#include "base/mutant.h"
#include "exec/sampler.h"

namespace kvasir {
namespace {

using testing::ElementsAre;

const ops::Kernels& kernels() {
  return ops::kernels_for(ops::IsaClass::kPortable);
}

SamplingParams greedy_with(LogitRules rules, uint32_t prompt_tokens = 0) {
  SamplingParams params;
  params.temperature = 0;
  params.rules = std::make_shared<const LogitRules>(std::move(rules));
  params.prompt_tokens = prompt_tokens;
  return params;
}

// The tokens in the order of their logits after the rules, without those that have no probability: greedy
// choices, of which each bars the tokens before it.
std::vector<Token> ranking(const std::vector<float>& logits, const LogitRules& rules,
                           const std::vector<Token>& history, uint32_t prompt_tokens) {
  const auto last = static_cast<Token>(logits.size());  // a token that no rule knows comes last
  std::vector<float> left = logits;
  left.push_back(-1e6F);
  Sampler sampler(kernels());
  std::vector<Token> out;
  for (;;) {
    const auto position = static_cast<uint32_t>(history.size());
    const Token t =
        sampler.sample(left, greedy_with(rules, prompt_tokens), position, history, SeqId{1}).token;
    if (t == last) return out;
    out.push_back(t);
    left[static_cast<size_t>(t)] = -std::numeric_limits<float>::infinity();
  }
}

// The tokens that come at all, at temperature 1, and their shares.
std::map<Token, double> shares(const std::vector<float>& logits, const SamplingParams& params,
                               uint32_t draws = 20000) {
  std::map<Token, double> out;
  Sampler sampler(kernels());
  for (uint32_t p = 0; p < draws; ++p)
    out[sampler.sample(logits, params, p, {}, SeqId{1}).token] += 1.0 / draws;
  return out;
}

std::set<Token> support(const std::vector<float>& logits, const SamplingParams& params) {
  std::set<Token> out;
  for (const auto& [token, share] : shares(logits, params, 4000)) out.insert(token);
  return out;
}

std::vector<float> logs(const std::vector<double>& weights) {
  std::vector<float> out;
  for (const double w : weights) out.push_back(static_cast<float>(std::log(w)));
  return out;
}

TEST(SamplerRules, RepetitionDividesWhatIsAboveZeroAndMultipliesWhatIsBelow) {
  LogitRules rules;
  rules.repetition_penalty = 2;
  // Token 0 is in the prompt, 3 in the output: 4 -> 2 and -1 -> -2. Unseen: 3, 1.5, -1.5.
  const std::vector<float> logits = {4, 3, 1.5, -1, -1.5};
  EXPECT_THAT(ranking(logits, {}, {0, 3}, 1), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(ranking(logits, rules, {0, 3}, 1), ElementsAre(1, 0, 2, 4, 3));
  // It does not count how often.
  EXPECT_THAT(ranking(logits, rules, {0, 0, 0, 3, 3}, 2), ElementsAre(1, 0, 2, 4, 3));
  rules.repetition_penalty =
      0.5F;  // below 1 it favours what was there: 1.5 -> 3 before 3 by id? 1.5 / 0.5 = 3
  EXPECT_THAT(ranking({4, 2.5, 1.5}, rules, {2}, 1), ElementsAre(0, 2, 1));
}

TEST(SamplerRules, FrequencyCountsInTheOutputOnly) {
  LogitRules rules;
  rules.frequency_penalty = 1.5F;
  // Token 0 is twice in the output (5 - 3 = 2), token 1 once (4 - 1.5 = 2.5), 2 in the prompt only (3).
  EXPECT_THAT(ranking({5, 4, 3, 2.25}, rules, {2, 2, 2, 0, 1, 0}, 3), ElementsAre(2, 1, 3, 0));
  rules.frequency_penalty = -1;  // 3 + 2 * 1 = 5 before 4
  EXPECT_THAT(ranking({4, 3}, rules, {1, 1}, 0), ElementsAre(1, 0));
}

TEST(SamplerRules, PresenceCountsOnceAndInTheOutputOnly) {
  LogitRules rules;
  rules.presence_penalty = 1.5F;
  // Token 0 is three times in the output and loses 1.5 all the same: 5 -> 3.5; 2 is in the prompt: stays 3.
  EXPECT_THAT(ranking({5, 4, 3}, rules, {2, 0, 0, 0}, 1), ElementsAre(1, 0, 2));
}

TEST(SamplerRules, PenaltiesComeInThisOrder) {
  LogitRules rules;
  rules.repetition_penalty = 2;
  rules.frequency_penalty = 1;
  rules.presence_penalty = 0.5F;
  rules.bias = {{0, 2.0F}};
  // (4 + 2) / 2 - 1 - 0.5 = 1.5. If the bias came last: 4 / 2 - 1.5 + 2 = 2.5; if the division came
  // last: 2.25.
  EXPECT_THAT(ranking({4, 2.0, 1.75, 1.25}, rules, {0}, 0), ElementsAre(1, 2, 0, 3));
  // Nor does the frequency count the prompt where the repetition reads it.
  EXPECT_THAT(ranking({4, 2.0, 1.75, 1.25}, rules, {0, 0, 0}, 2), ElementsAre(1, 2, 0, 3));
}

TEST(SamplerRules, ABiasIsAdded) {
  LogitRules rules;
  rules.bias = {{2, 3.0F}, {0, -100.0F}, {77, 5.0F}, {-1, 5.0F}};  // the last two are no tokens of the model
  EXPECT_THAT(ranking({1, 0.5F, 0}, rules, {}, 0), ElementsAre(2, 1, 0));
}

TEST(SamplerRules, EndsAreBarredUntilThereAreEnoughTokens) {
  LogitRules rules;
  rules.min_tokens = 2;
  rules.ends = {0, 2};
  const std::vector<float> logits = {9, 1, 8};
  // A prompt of 3 tokens, then outputs of 0, 1 and 2.
  EXPECT_THAT(ranking(logits, rules, {1, 1, 1}, 3), ElementsAre(1));
  EXPECT_THAT(ranking(logits, rules, {1, 1, 1, 1}, 3), ElementsAre(1));
  EXPECT_THAT(ranking(logits, rules, {1, 1, 1, 1, 1}, 3), ElementsAre(0, 2, 1));
}

TEST(SamplerRules, ABadWordIsBarredWhereItWouldBeComplete) {
  LogitRules rules;
  rules.bad_words = {{2}, {1, 0}, {1, 1, 3}};
  const std::vector<float> logits = {9, 8, 7, 6};
  // Prompt {1}: it does not count, so 0 may come. 2 may never.
  EXPECT_THAT(ranking(logits, rules, {1}, 1), ElementsAre(0, 1, 3));
  EXPECT_THAT(ranking(logits, rules, {1, 1}, 1), ElementsAre(1, 3));
  EXPECT_THAT(ranking(logits, rules, {1, 1, 1}, 1), ElementsAre(1));
  EXPECT_THAT(ranking(logits, rules, {1, 1, 0, 1}, 1), ElementsAre(1, 3));
}

TEST(SamplerRules, CountsDoNotPassFromOneRowToTheNext) {
  LogitRules rules;
  rules.frequency_penalty = 1;
  Sampler sampler(kernels());
  const auto pick = [&](const std::vector<Token>& history) {
    const auto position = static_cast<uint32_t>(history.size());
    return sampler.sample(std::vector<float>{1.5F, 1, 0}, greedy_with(rules), position, history, SeqId{1})
        .token;
  };
  EXPECT_EQ(pick({0, 0}), 1);
  EXPECT_EQ(pick({1}), 0);  // 1.5 - 0
  EXPECT_EQ(pick({0, 0}), 1);
#if defined(KVASIR_MUTANTS)
  ScopedMutant fault(Mutant::kCountsKept);
  pick({0, 0});
  EXPECT_NE(pick({0, 0}), 1);
#endif
}

TEST(SamplerRules, LogprobsAreOfTheModel) {
  LogitRules rules;
  rules.bias = {{0, -100.0F}};
  SamplingParams params = greedy_with(rules);
  params.logprobs = 1;
  const SampledToken got = Sampler(kernels()).sample(logs({5, 3, 2}), params, 0, {}, SeqId{1});
  EXPECT_EQ(got.token, 1);
  EXPECT_NEAR(got.logprob, std::log(0.3), 1e-6);
  ASSERT_EQ(got.top.size(), 1U);
  EXPECT_EQ(got.top[0].token, 0);
  EXPECT_NEAR(got.top[0].logprob, std::log(0.5), 1e-6);
}

TEST(SamplerCuts, MinPIsAShareOfTheLargestProbability) {
  // Probabilities 0.4, 0.3, 0.2, 0.1: the largest times 0.5 is 0.2.
  const std::vector<float> logits = logs({4, 3, 1.999, 1});
  SamplingParams params;
  params.min_p = 0.5F;
  auto got = shares(logits, params);
  EXPECT_EQ(got.size(), 2U);
  EXPECT_NEAR(got.at(0), 4.0 / 7, 0.015);
  params.min_p = 0.49F;
  EXPECT_EQ(support(logits, params), (std::set<Token>{0, 1, 2}));
  params.min_p = 1;
  EXPECT_EQ(support(logits, params), (std::set<Token>{0}));
  // It is of the probabilities at the temperature: at T = 2 the weights are 2, 1.73, 1.41, 1.
  params.min_p = 0.55F;
  params.temperature = 2;
  EXPECT_EQ(support(logits, params), (std::set<Token>{0, 1, 2}));
}

TEST(SamplerCuts, TypicalPTakesWhatIsNearTheEntropy) {
  // p = 0.5, 0.25, 0.125, 0.125: H = 0.5 + 0.5 + 0.375 + 0.375 = 1.75 bits. |-log2 p - H| = 0.75,
  // 0.25, 1.25, 1.25.
  const std::vector<float> logits = logs({4, 2, 1, 1});
  SamplingParams params;
  params.typical_p = 0.2F;  // the second reaches it alone: the most likely token is left out
  EXPECT_EQ(support(logits, params), (std::set<Token>{1}));
  params.typical_p = 0.7F;  // 0.25 + 0.5
  auto got = shares(logits, params);
  EXPECT_EQ(got.size(), 2U);
  EXPECT_NEAR(got.at(0), 2.0 / 3, 0.015);
  params.typical_p = 0.8F;  // and the first of the equal ones
  EXPECT_EQ(support(logits, params), (std::set<Token>{0, 1, 2}));
  params.typical_p = 1;
  EXPECT_EQ(support(logits, params), (std::set<Token>{0, 1, 2, 3}));
}

TEST(SamplerCuts, EachTakesWhatTheOneBeforeHasLeft) {
  // Probabilities 0.4, 0.3, 0.2, 0.1. min_p 0.3 leaves 4/9, 3/9, 2/9; top_k 2 leaves 4/7, 3/7; top_p 0.5 the
  // first, which has only 0.4 of all.
  const std::vector<float> logits = logs({4, 3, 2, 1});
  SamplingParams params;
  params.min_p = 0.3F;
  EXPECT_EQ(support(logits, params), (std::set<Token>{0, 1, 2}));
  params.top_k = 2;
  EXPECT_EQ(support(logits, params), (std::set<Token>{0, 1}));
  params.top_p = 0.5F;
  EXPECT_EQ(support(logits, params), (std::set<Token>{0}));
  params.top_p = 0.6F;
  EXPECT_EQ(support(logits, params), (std::set<Token>{0, 1}));
  // Of min_p's 4/9, 3/9, 2/9 the entropy is 1.53 bits and the distances are 0.36, 0.05 and 0.64. Of all four
  // it is 1.85, and the second is the nearest, too; then the third (0.47) and not the first (0.52).
  params = {};
  params.min_p = 0.3F;
  params.typical_p = 0.5F;
  EXPECT_EQ(support(logits, params), (std::set<Token>{0, 1}));
  params.min_p = 0;
  params.typical_p = 0.4F;
  EXPECT_EQ(support(logits, params), (std::set<Token>{1, 2}));
}

TokenMask mask_of(std::initializer_list<Token> tokens, size_t words = 1) {
  TokenMask mask{std::vector<uint32_t>(words)};
  for (const Token t : tokens) mask.words[static_cast<size_t>(t) / 32] |= uint32_t{1} << (t % 32);
  return mask;
}

std::map<Token, double> masked_shares(const std::vector<float>& logits, const SamplingParams& params,
                                      const TokenMask& mask, uint32_t draws = 20000) {
  std::map<Token, double> out;
  Sampler sampler(kernels());
  for (uint32_t p = 0; p < draws; ++p) {
    out[sampler.sample(logits, params, p, {}, SeqId{1}, &mask).token] += 1.0 / draws;
  }
  return out;
}

TEST(SamplerMask, OnlyItsTokensHaveAProbability) {
  const std::vector<float> logits = logs({8, 1, 4, 3});
  SamplingParams params;
  auto got = masked_shares(logits, params, mask_of({1, 3}));
  EXPECT_EQ(got.size(), 2U);
  EXPECT_NEAR(got.at(1), 0.25, 0.015);
  // The cuts and the greedy choice take what it has left.
  params.top_k = 1;
  EXPECT_EQ(masked_shares(logits, params, mask_of({1, 2}), 50).begin()->first, 2);
  params = {};
  params.top_p = 0.5F;
  EXPECT_EQ(masked_shares(logits, params, mask_of({1, 2}), 50).begin()->first, 2);
  params = {};
  params.min_p = 0.3F;
  EXPECT_EQ(masked_shares(logits, params, mask_of({1, 2}), 50).begin()->first, 2);
  params = {};
  params.temperature = 0;
  EXPECT_EQ(masked_shares(logits, params, mask_of({1}), 1).begin()->first, 1);
}

TEST(SamplerMask, WordsOfThirtyTwoTokens) {
  // 70 tokens, the last word is ragged; a whole word, an empty one and single bits.
  std::vector<float> logits(70);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i);
  SamplingParams params;
  params.temperature = 0;
  Sampler sampler(kernels());
  const auto pick = [&](const TokenMask& mask) {
    return sampler.sample(logits, params, 0, {}, SeqId{1}, &mask).token;
  };
  EXPECT_EQ(pick({{UINT32_MAX, UINT32_MAX, UINT32_MAX}}), 69);
  EXPECT_EQ(pick({{UINT32_MAX, UINT32_MAX}}), 63) << "beyond its words nothing is in it";
  EXPECT_EQ(pick({{UINT32_MAX, 0, 0}}), 31);
  EXPECT_EQ(pick(mask_of({5, 32, 64}, 3)), 64);
  EXPECT_EQ(pick(mask_of({0}, 3)), 0);
}

TEST(SamplerMask, RulesComeBeforeItAndItWins) {
  SamplingParams params;
  LogitRules rules;
  rules.bias = {{0, 100.0F}, {1, 2.0F}, {2, -100.0F}};
  rules.min_tokens = 5;
  rules.ends = {3};
  params = greedy_with(rules);
  const std::vector<float> logits = {4, 1, 2, 9};
  Sampler sampler(kernels());
  const auto pick = [&](const TokenMask& mask, const std::vector<float>& l) {
    return sampler.sample(l, params, 0, {}, SeqId{1}, &mask).token;
  };
  EXPECT_EQ(pick(mask_of({1, 2, 3}), logits), 1) << "1 + 2 before 2 - 100; 3 is barred";
  // Where the rules bar all that it allows, the model's own logits decide among them.
  EXPECT_EQ(pick(mask_of({3}), logits), 3);
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(pick(mask_of({1, 2}), {4, kNone, kNone, 9}), 1) << "the model bars them, too";
  EXPECT_EQ(pick(mask_of({2}), {4, 1, std::nanf(""), 9}), 2);
}

TEST(SamplerMask, LogprobsAreTheModels) {
  SamplingParams params;
  params.logprobs = 1;
  params.temperature = 0;
  const TokenMask mask = mask_of({1});
  const SampledToken got = Sampler(kernels()).sample(logs({2, 5, 3}), params, 0, {}, SeqId{1}, &mask);
  EXPECT_NEAR(got.logprob, std::log(0.5), 1e-6);
  const TokenMask other = mask_of({0});
  const SampledToken least = Sampler(kernels()).sample(logs({2, 5, 3}), params, 0, {}, SeqId{1}, &other);
  EXPECT_NEAR(least.logprob, std::log(0.2), 1e-6);
  EXPECT_EQ(least.top.at(0).token, 1);
}

TEST(SamplerScore, ATokenOfThePromptHasLogprobRankAndRivals) {
  const ScoredToken got = Sampler(kernels()).score(logs({2, 5, 3}), 0, 2);
  EXPECT_EQ(got.token, 0);
  EXPECT_NEAR(got.logprob, std::log(0.2), 1e-6);
  EXPECT_EQ(got.rank, 3U);
  ASSERT_EQ(got.top.size(), 2U);
  EXPECT_EQ(got.top[0].token, 1);
  EXPECT_NEAR(got.top[1].logprob, std::log(0.3), 1e-6);
}

}  // namespace
}  // namespace kvasir
