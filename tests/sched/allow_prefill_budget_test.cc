// Equation 1 of LayerKV with numbers.
#include "sched/mechanisms/allow_prefill_budget.h"

#include <gtest/gtest.h>

#include <utility>

#include "fakes/views.h"

namespace kvasir::test {
namespace {

constexpr Nanos kMs = 1'000'000;
constexpr double kStep = 0.040;
// Of outputs from 31 tokens on, and of those below.
const std::vector<LengthClass> kClasses = {{.low = 0, .high = 31}, {.low = 31, .high = 100}};

// A prompt of 20 tokens and 11 of output, the first of which came at 1 s; 100 ms a token are allowed.
SeqView eleven_tokens() {
  SeqView s = decoding_seq(1, 20, 31);
  s.slo.tpot_ms = 100;
  s.first_token_time = 1000 * kMs;
  s.predicted = {.output_tokens = 50, .length_class = 1};
  return s;
}

PrefillAllowance at(const SeqView& s, Nanos ms) {
  return allowed_prefill(s, kClasses, ms * kMs, kStep);
}

// ---------------------------------------------------------------- N_future

TEST(FutureTokens, AreTheLowerBoundLessTheOutputSoFar) {
  const SeqView s = eleven_tokens();
  EXPECT_EQ(least_future_tokens(s, kClasses), 20u) << "31 - 11";
  EXPECT_EQ(predicted_future_tokens(s), 39u) << "50 - 11";
}

TEST(FutureTokens, WhatAFewOfTheClassHadIsTheLowerBoundIfItIsLess) {
  // Predicted are 40; one in twenty had at least 25 fewer: 15, of which 11 are there.
  std::vector<LengthClass> classes = kClasses;
  classes[1].finished = 100;
  classes[1].residuals.fill(0);
  classes[1].residuals[0] = -30;
  classes[1].residuals[1] = -25;  // at 0.05
  SeqView s = decoding_seq(1, 20, 31);
  s.predicted = {.output_tokens = 40, .length_class = 1};
  EXPECT_EQ(least_future_tokens(s, classes), 4u);
  // Never more than the class's bound, and never below nothing.
  classes[1].residuals.fill(5);
  EXPECT_EQ(least_future_tokens(s, classes), 20u) << "31 - 11";
  classes[1].residuals.fill(-100);
  EXPECT_EQ(least_future_tokens(s, classes), 1u);
}

TEST(FutureTokens, AreAtLeastOne) {
  SeqView s = eleven_tokens();
  s.predicted.length_class = 0;
  EXPECT_EQ(least_future_tokens(s, kClasses), 1u) << "it has outlived its class";
  s.predicted = {.output_tokens = 11, .length_class = 1};
  EXPECT_EQ(predicted_future_tokens(s), 1u) << "the prediction is reached";
  s.predicted.length_class = 2;
  EXPECT_EQ(least_future_tokens(s, kClasses), 1u) << "there is no such class";
  s.predicted = {};
  EXPECT_EQ(least_future_tokens(s, kClasses), 1u) << "nothing is predicted";
  EXPECT_EQ(predicted_future_tokens(s), 1u);
}

// ---------------------------------------------------------------- TPOT

TEST(AllowedPrefill, WorkedExample) {
  // N_past = 10 behind the first, N_future = 20, T_past = 0.5 s, T_future = 20 x 0.04 s:
  // 0.1 x 30 - (0.5 + 0.8) = 1.7 s, of 3 s in all.
  const PrefillAllowance a = at(eleven_tokens(), 1500);
  EXPECT_NEAR(a.seconds, 1.7, 1e-12);
  EXPECT_NEAR(a.share, 1.7 / 3, 1e-12);
  EXPECT_FALSE(a.missed);
}

TEST(AllowedPrefill, WithoutAPredictionOneTokenMoreIsCountedOn) {
  // 0.1 x (10 + 1) - (0.5 + 0.04) = 0.56 s.
  SeqView s = eleven_tokens();
  s.predicted = {};
  EXPECT_NEAR(at(s, 1500).seconds, 0.56, 1e-12);
  EXPECT_NEAR(at(s, 1500).share, 0.56 / 1.1, 1e-12);
}

TEST(AllowedPrefill, TheFirstTokenIsNotCounted) {
  // One token of output, at this moment: 0.1 x (0 + 30) - (0 + 30 x 0.04) = 1.8 s.
  SeqView s = eleven_tokens();
  s.known_tokens = 21;
  s.ready_tokens = 20;
  EXPECT_NEAR(at(s, 1000).seconds, 1.8, 1e-12);
}

TEST(AllowedPrefill, AFirstTokenThatIsStillSampledBeginsNow) {
  // As if it came at this moment, whenever that is.
  SeqView s = eleven_tokens();
  s.known_tokens = 21;
  s.ready_tokens = 20;
  s.first_token_time = 0;
  EXPECT_NEAR(at(s, 70'000).seconds, 1.8, 1e-12);
  s.slo.tbt_ms = 200;
  EXPECT_NEAR(at(s, 70'000).seconds, 0.16, 1e-12) << "0.2 - 0.04";
}

TEST(AllowedPrefill, WhatOnlyTheLowerBoundCountsAsMissedAllowsNothing) {
  // T_past = 2.8 s. With 20 tokens to come 3 - (2.8 + 0.8) = -0.6; with the 39 that are predicted
  // 4.9 - (2.8 + 1.56) = 0.54: it may catch up, and allows nothing until then.
  const PrefillAllowance a = at(eleven_tokens(), 3800);
  EXPECT_EQ(a.seconds, 0);
  EXPECT_EQ(a.share, 0);
  EXPECT_FALSE(a.missed);
}

TEST(AllowedPrefill, ABoundMissedForGoodIsMissed) {
  // T_past = 5 s: 3 - 5.8 = -2.8, and 4.9 - 6.56 = -1.66.
  const PrefillAllowance a = at(eleven_tokens(), 6000);
  EXPECT_TRUE(a.missed);
  EXPECT_EQ(a.seconds, 0) << "and a late request allows nothing";
}

// A step takes 40 ms, but a request gets a token in every third step: N_past = 10, N_future = 20,
// T_past = 0.5 s, T_future = 20 x 0.12 s, so 3 - (0.5 + 2.4) = 0.1 s. At 0.13 s a token 3 - (0.5 + 2.6)
// = -0.1 s; with the 39 that are predicted 0.1 x 49 - (0.5 + 39 x 0.13) = -0.67 s.
TEST(AllowedPrefill, TheFutureTakesTheTpotAsItIsNotAStep) {
  const auto allowed = [](double tpot_s) {
    return allowed_prefill(eleven_tokens(), kClasses, 1500 * kMs, DecodePace(kStep, tpot_s));
  };
  EXPECT_NEAR(allowed(0.120).seconds, 0.1, 1e-12);
  EXPECT_NEAR(allowed(0.120).share, 0.1 / 3, 1e-12);
  EXPECT_FALSE(allowed(0.120).missed);
  EXPECT_EQ(allowed(0.130).seconds, 0);
  EXPECT_TRUE(allowed(0.130).missed);
}

TEST(AllowedPrefill, AGapIsEndedByAStep) {
  // 0.2 - 0.05 - 0.04 = 0.11 s, however many steps a token takes on the average.
  SeqView s = eleven_tokens();
  s.slo = {.tbt_ms = 200};
  s.last_token_time = 1450 * kMs;
  EXPECT_NEAR(allowed_prefill(s, kClasses, 1500 * kMs, DecodePace(kStep, 1)).seconds, 0.11, 1e-12);
}

// Alone a step takes 30 ms and 1 ms for each token of the history: 61 ms.
TEST(AllowedPrefill, ABoundShorterThanAStepAloneIsBeyondReach) {
  CostModel costs;
  costs.step_s = 0.030;
  costs.context_s = 0.001;
  SeqView s = eleven_tokens();
  for (const auto& [slo, beyond] : {std::pair{Slo{.tpot_ms = 60}, true},
                                    {Slo{.tpot_ms = 62}, false},
                                    {Slo{.tbt_ms = 60}, true},
                                    {Slo{.tpot_ms = 62, .tbt_ms = 62}, false},
                                    {Slo{.ttft_ms = 1}, false}}) {
    s.slo = slo;
    EXPECT_EQ(beyond_reach(s, costs), beyond) << slo.tpot_ms << ' ' << slo.tbt_ms;
  }
}

// ---------------------------------------------------------------- TBT

TEST(AllowedPrefill, WhatIsLeftOfTheGapLessTheStepThatEndsIt) {
  SeqView s = eleven_tokens();
  s.slo = {.tbt_ms = 200};
  s.last_token_time = 1450 * kMs;
  // 0.2 - 0.05 - 0.04 = 0.11 s, of 0.2 s.
  EXPECT_NEAR(at(s, 1500).seconds, 0.11, 1e-12);
  EXPECT_NEAR(at(s, 1500).share, 0.55, 1e-12);
  // 20 ms are left, and the step takes 40.
  EXPECT_EQ(at(s, 1630).seconds, 0);
  EXPECT_FALSE(at(s, 1630).missed);
  // 10 ms too late.
  EXPECT_TRUE(at(s, 1660).missed);
  // A bound that no step can meet would block every prefill for as long as the request lives.
  s.slo = {.tbt_ms = 40};
  EXPECT_TRUE(at(s, 1450).missed);
  s.slo = {.tbt_ms = 41};
  EXPECT_FALSE(at(s, 1450).missed);
}

TEST(AllowedPrefill, OfTwoBoundsTheNarrower) {
  SeqView s = eleven_tokens();
  s.slo.tbt_ms = 200;
  s.last_token_time = 1450 * kMs;
  EXPECT_NEAR(at(s, 1500).seconds, 0.11, 1e-12) << "1.7 s by the mean";
  EXPECT_NEAR(at(s, 1500).share, 0.55, 1e-12);
  // At 2,790 ms: by the mean 3 - (1.79 + 0.8) = 0.41 s, 0.137 of 3 s; by the gap 0.6 - 0.04 - 0.04 = 0.52.
  s.slo.tbt_ms = 600;
  s.last_token_time = 2750 * kMs;
  EXPECT_NEAR(at(s, 2790).seconds, 0.41, 1e-12);
  EXPECT_NEAR(at(s, 2790).share, 0.41 / 3, 1e-12);
}

TEST(AllowedPrefill, WithoutABoundOnTokensThereIsNoLimit) {
  SeqView s = eleven_tokens();
  for (const Slo& slo : {Slo{}, Slo{.ttft_ms = 1, .e2el_ms = 1}}) {
    s.slo = slo;
    EXPECT_EQ(at(s, 60'000).seconds, kNoLimit);
    EXPECT_EQ(at(s, 60'000).share, 1);
    EXPECT_FALSE(at(s, 60'000).missed);
  }
}

// No class of the view has had an end: 50 less 11 are left, exactly. 100 ms * (10 + 39) - (2 + 39 * 0.04).
TEST(AllowedPrefill, ByWhatIsLeftOfOutputsThatLiveSoLong) {
  const RestOfOutput rest;
  const SeqView s = eleven_tokens();
  EXPECT_NEAR(allowed_prefill(s, kClasses, 3000 * kMs, kStep, &rest).seconds, 4.9 - 3.56, 1e-9);
  // By the paper's lower bound, of which 20 are left: 100 ms * 30 - (2 + 0.8).
  EXPECT_NEAR(allowed_prefill(s, kClasses, 3000 * kMs, kStep).seconds, 0.2, 1e-9);
}

}  // namespace
}  // namespace kvasir::test
