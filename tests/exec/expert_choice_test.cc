// Choosing and weighing experts, with numbers that are worked out by hand.
#include "exec/cpu/expert_choice.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/mutant.h"

namespace kvasir {
namespace {

struct Choice {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Choice choose(const ExpertSpec& spec, std::vector<float> scores, const std::vector<float>& bias = {}) {
  ExpertChooser chooser(ops::kernels_for(ops::detect_isa()), spec);
  std::vector<ChosenExpert> chosen(static_cast<size_t>(spec.used));
  chooser.choose(scores, bias, chosen);
  Choice out;
  for (const ChosenExpert& c : chosen) {
    out.ids.push_back(c.id);
    out.weights.push_back(c.weight);
  }
  return out;
}

void expect_weights(const Choice& choice, const std::vector<float>& weights) {
  ASSERT_EQ(choice.weights.size(), weights.size());
  for (size_t i = 0; i < weights.size(); ++i) EXPECT_NEAR(choice.weights[i], weights[i], 1e-6) << i;
}

using Ids = std::vector<int32_t>;
constexpr float kLn2 = 0.693147181F;

// Exponentials 1, 4, 2, 1: of all 8, of the chosen 6.
TEST(ExpertChoice, ASoftmaxIsOfAllOrOfTheChosen) {
  const std::vector<float> scores = {0, 2 * kLn2, kLn2, 0};
  const Choice all = choose({.count = 4, .used = 2}, scores);
  EXPECT_EQ(all.ids, (Ids{1, 2}));
  expect_weights(all, {0.5F, 0.25F});
  expect_weights(choose({.count = 4, .used = 2, .renormalise = true}, scores), {2.0F / 3, 1.0F / 3});
  expect_weights(choose({.count = 4, .used = 2, .renormalise = true, .weight_scale = 3}, scores), {2, 1});
}

TEST(ExpertChoice, TiesGoToTheLowerIdAndIdsAscend) {
  const ExpertSpec spec = {.count = 6, .used = 3};
  EXPECT_EQ(choose(spec, {1, 1, 1, 1, 1, 1}).ids, (Ids{0, 1, 2}));
  EXPECT_EQ(choose(spec, {0, 1, 5, 1, 5, 1}).ids, (Ids{1, 2, 4}));
  EXPECT_EQ(choose({.count = 2, .used = 2}, {0, 9}).ids, (Ids{0, 1}));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(choose(spec, {nan, 0, nan, 1, nan, 2}).ids, (Ids{1, 3, 5}));
  EXPECT_EQ(choose(spec, {nan, nan, nan, nan, nan, 2}).ids, (Ids{0, 1, 5})) << "distinct all the same";
#if defined(KVASIR_MUTANTS)
  const ScopedMutant on(Mutant::kTiesByHigherId);
  EXPECT_EQ(choose(spec, {1, 1, 1, 1, 1, 1}).ids, (Ids{3, 4, 5}));
#endif
}

// Sigmoids of ln 3, 0, -ln 3, ln 3: 3/4, 1/2, 1/4, 3/4. With the bias: 0.75, 0.5, 1.25, 0.7.
TEST(ExpertChoice, ABiasChoosesAndDoesNotWeigh) {
  const float ln3 = std::log(3.0F);
  const std::vector<float> scores = {ln3, 0, -ln3, ln3}, bias = {0, 0, 1, -0.05F};
  ExpertSpec spec = {.count = 4, .used = 2, .gating = Gating::kSigmoid};
  const Choice plain = choose(spec, scores, bias);
  EXPECT_EQ(plain.ids, (Ids{0, 2}));
  expect_weights(plain, {0.75F, 0.25F});
  EXPECT_EQ(choose(spec, scores).ids, (Ids{0, 3}));
  spec.renormalise = true;
  spec.weight_scale = 2.5F;
  expect_weights(choose(spec, scores, bias), {2.5F * 0.75F, 2.5F * 0.25F});
  spec.used = 1;
  expect_weights(choose(spec, scores, bias), {2.5F});
#if defined(KVASIR_MUTANTS)
  const ScopedMutant on(Mutant::kBiasWeighs);
  EXPECT_GT(
      std::fabs(choose({.count = 4, .used = 2, .gating = Gating::kSigmoid}, scores, bias).weights[1] - 0.25F),
      0.9F);
#endif
}

// The best expert, 0, is alone in its group: the sums of the two best are 1.4, 1.5, 1.35.
TEST(ExpertChoice, GroupsAreChosenByTheSumOfTheirTwoBest) {
  const auto logit = [](float p) { return std::log(p / (1 - p)); };
  const std::vector<float> scores = {logit(0.9F), logit(0.5F), logit(0.4F), logit(0.8F), logit(0.7F),
                                     logit(0.1F), logit(0.6F), logit(0.7F), logit(0.65F)};
  ExpertSpec spec = {.count = 9, .used = 3, .gating = Gating::kSigmoid, .groups = 3, .groups_used = 1};
  EXPECT_EQ(choose(spec, scores).ids, (Ids{3, 4, 5}));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  spec.used = 2;
  EXPECT_EQ(choose(spec, {scores[0], nan, nan, nan, scores[4], scores[5], nan, scores[7], scores[8]}).ids,
            (Ids{7, 8}))
      << "0.9 alone, 0.8, and 1.35";
  spec.used = 3;
  spec.groups_used = 2;
  EXPECT_EQ(choose(spec, scores).ids, (Ids{0, 3, 4}));
  spec.groups_used = 3;
  spec.used = 4;
  EXPECT_EQ(choose(spec, scores).ids, (Ids{0, 3, 4, 7}));
}

// Of a softmax the group with the best one: 3 beats 2.9 and 2.8, whose exponentials have the larger sum.
TEST(ExpertChoice, GroupsOfASoftmaxAreChosenByTheirBest) {
  ExpertSpec spec = {.count = 4, .used = 2, .groups = 2, .groups_used = 1};
  EXPECT_EQ(choose(spec, {2.9F, 2.8F, 0, 3}).ids, (Ids{2, 3}));
  EXPECT_EQ(choose(spec, {2.9F, 3, 3, 0}).ids, (Ids{0, 1})) << "of equal groups the first";
  spec.groups_used = 2;
  EXPECT_EQ(choose(spec, {2.9F, 2.8F, 0, 3}).ids, (Ids{0, 3}));
}

}  // namespace
}  // namespace kvasir
