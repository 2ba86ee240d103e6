#include "exec/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "base/random.h"

namespace kvasir {
namespace {

const ops::Kernels& kernels() {
  return ops::kernels_for(ops::IsaClass::kPortable);
}

SampledToken pick(const std::vector<float>& logits, SamplingParams params, uint32_t position = 1) {
  return Sampler(kernels()).sample(logits, params, position, {}, SeqId{1});
}

TEST(Sampler, GreedyTakesTheLargestAndTheSmallestIdOfEquals) {
  SamplingParams greedy;
  greedy.temperature = 0;
  EXPECT_EQ(pick({1, 3, 2}, greedy).token, 1);
  EXPECT_EQ(pick({1, 3, 2, 3}, greedy).token, 1);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(pick({nan, 0.5f, nan}, greedy).token, 1);
}

// How often each token comes, over many positions.
std::map<Token, double> shares(const std::vector<float>& logits, SamplingParams params,
                               uint32_t draws = 20000) {
  std::map<Token, double> out;
  for (uint32_t p = 0; p < draws; ++p) out[pick(logits, params, p).token] += 1.0 / draws;
  return out;
}

TEST(Sampler, FollowsTheDistribution) {
  SamplingParams params;
  params.temperature = 2.0f;
  const std::vector<float> logits = {0.0f, 2.0f, 4.0f};  // at T = 2: 1 : e : e^2
  const double e = std::exp(1.0), total = 1 + e + e * e;
  const auto got = shares(logits, params);
  EXPECT_NEAR(got.at(0), 1 / total, 0.01);
  EXPECT_NEAR(got.at(1), e / total, 0.015);
  EXPECT_NEAR(got.at(2), e * e / total, 0.015);
}

TEST(Sampler, TopKAndTopPCutTheTail) {
  // Probabilities 0.5, 0.25, 0.125, 0.125.
  const std::vector<float> logits = {std::log(2.0f), std::log(4.0f), 0.0f, 0.0f};
  SamplingParams params;
  params.top_k = 2;
  auto got = shares(logits, params);
  EXPECT_EQ(got.size(), 2u);
  EXPECT_NEAR(got.at(1), 2.0 / 3, 0.015);

  params.top_k = 3;  // ties of logits go by id: 2 stays, 3 goes
  got = shares(logits, params);
  EXPECT_EQ(got.size(), 3u);
  EXPECT_FALSE(got.contains(3));

  params.top_k = 0;
  params.top_p = 0.6f;  // 0.5 is not enough, 0.75 is
  got = shares(logits, params);
  EXPECT_EQ(got.size(), 2u);
  params.top_p = 0.4f;
  got = shares(logits, params);
  EXPECT_EQ(got.size(), 1u);
  EXPECT_TRUE(got.contains(1));

  params.top_k = 2;  // top_p is of the mass that top_k leaves: 2/3, 1/3
  params.top_p = 0.6f;
  EXPECT_EQ(shares(logits, params).size(), 1u);
}

TEST(Sampler, TopPOverALargeVocabularyIsTheNucleus) {
  Random random(3);
  std::vector<float> logits(1000);
  for (float& l : logits) l = static_cast<float>(random.unit() * 20);
  SamplingParams params;
  params.top_p = 0.9f;
  // The nucleus by a full sort.
  std::vector<size_t> ids(logits.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = i;
  std::sort(ids.begin(), ids.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  double mass = 0, sum = 0;
  for (float l : logits) mass += std::exp(l);
  size_t n = 0;
  while (sum < 0.9 * mass) sum += std::exp(logits[ids[n++]]);
  const auto got = shares(logits, params, 20000);
  EXPECT_GT(n, 10u);
  for (size_t i = n; i < ids.size(); ++i) EXPECT_FALSE(got.contains(static_cast<Token>(ids[i])));
  EXPECT_NEAR(got.at(static_cast<Token>(ids[0])), std::exp(logits[ids[0]]) / sum, 0.02);
}

TEST(Sampler, DependsOnSeedAndPositionOnly) {
  Random random(5);
  std::vector<float> logits(300);
  for (float& l : logits) l = static_cast<float>(random.unit());
  SamplingParams a, b;
  a.seed = 1;
  b.seed = 2;
  int by_seed = 0, by_position = 0;
  for (uint32_t p = 0; p < 100; ++p) {
    EXPECT_EQ(pick(logits, a, p).token, pick(logits, a, p).token);
    by_seed += pick(logits, a, p).token != pick(logits, b, p).token;
    by_position += pick(logits, a, p).token != pick(logits, a, p + 1).token;
  }
  EXPECT_GT(by_seed, 90);
  EXPECT_GT(by_position, 90);
}

TEST(Sampler, LogprobsAreOfTheFullDistribution) {
  SamplingParams params;
  params.temperature = 0;
  params.logprobs = 2;
  const SampledToken got = pick({std::log(2.0f), std::log(5.0f), std::log(3.0f)}, params);
  EXPECT_EQ(got.token, 1);
  EXPECT_NEAR(got.logprob, std::log(0.5), 1e-6);
  ASSERT_EQ(got.top.size(), 2u);
  EXPECT_EQ(got.top[1].token, 2);
  EXPECT_NEAR(got.top[1].logprob, std::log(0.3), 1e-6);
}

TEST(Sampler, AForcedEndComesAtItsPlaceAndNotBefore) {
  const std::vector<float> logits = {0.0f, 5.0f, 1.0f, 0.5f};  // the end is by far the most likely
  for (const float temperature : {0.0f, 1.0f}) {
    for (const float top_p : {1.0f, 0.5f}) {
      SamplingParams params;
      params.temperature = temperature;
      params.top_p = top_p;
      params.forced_end = 50;
      params.end_token = 1;
      std::map<Token, int> before;
      for (uint32_t p = 0; p < 50; ++p) ++before[pick(logits, params, p).token];
      EXPECT_FALSE(before.contains(1));
      EXPECT_EQ(before.size() > 1, temperature > 0 && top_p == 1.0f);
      EXPECT_EQ(pick(logits, params, 50).token, 1);
    }
  }
  // Even where the model would never end there, and where it would do nothing else.
  SamplingParams params;
  params.forced_end = 2;
  params.end_token = 3;
  const float none = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(pick({0, 1, 2, none}, params, 2).token, 3);
  params.end_token = 0;
  EXPECT_EQ(pick({1, none, none}, params, 1).token, 1);
}

TEST(Sampler, AForcedEndLeavesTheRestOfTheDistributionAsItIs) {
  Random random(8);
  std::vector<float> logits(200);
  for (float& l : logits) l = static_cast<float>(random.unit() * 4);
  SamplingParams plain, forced;
  plain.seed = forced.seed = 4;
  plain.logprobs = forced.logprobs = 2;
  forced.forced_end = 300;
  forced.end_token = 7;
  std::vector<float> without = logits;
  without[7] = -std::numeric_limits<float>::infinity();
  for (uint32_t p = 1; p < 300; ++p) {
    EXPECT_EQ(pick(logits, forced, p).token, pick(without, plain, p).token) << p;
  }
  // Log-probabilities are the model's, that of the end included.
  const SampledToken end = pick(logits, forced, 300);
  const SampledToken same = pick(logits, plain, 300);
  EXPECT_EQ(end.token, 7);
  ASSERT_EQ(end.top.size(), 2u);
  EXPECT_EQ(end.top[0].token, same.top[0].token);
  EXPECT_EQ(end.top[0].logprob, same.top[0].logprob);
  double sum = 0;
  for (float l : logits) sum += std::exp(double{l});
  EXPECT_NEAR(end.logprob, logits[7] - std::log(sum), 1e-5);
}

}  // namespace
}  // namespace kvasir
