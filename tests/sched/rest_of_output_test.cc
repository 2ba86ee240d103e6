// What is left of an output that has lived so long, worked by hand.
#include "sched/mechanisms/rest_of_output.h"

#include <gtest/gtest.h>

#include "fakes/views.h"
#include "sched/mechanisms/device_prices.h"

namespace kvasir::test {
namespace {

// Residuals uniform on [-100, 100] between the quantiles of 1 and 99 %, which lie at -98 and 98.
LengthClass uniform_class() {
  LengthClass c;
  c.finished = 100;
  for (size_t i = 0; i < c.residuals.size(); ++i) {
    c.residuals[i] = static_cast<float>(-100 + 200 * LengthClass::kQuantiles[i]);
  }
  return c;
}

TEST(RestOfOutput, OfAUniformResidual) {
  const LengthClass c = uniform_class();
  // The tail: a hundredth, on [98, 98 + 8 * 2 / ln 5 = 107.94]; below, a point mass of a hundredth at -98.
  const auto whole = residual_beyond(c, -200).value();
  EXPECT_NEAR(whole.mean, 200 + 0.01 * (98 + 107.94) / 2 - 0.01 * 98, 0.01);
  EXPECT_NEAR(whole.least, 200 - 90, 0.01);
  // Given more than 0 there are 49 hundredths on [0, 98] and the tail.
  const auto half = residual_beyond(c, 0).value();
  EXPECT_NEAR(half.mean, (0.49 * 49 + 0.01 * 102.97) / 0.5, 0.01);
  EXPECT_NEAR(half.square, (0.49 * 98 * 98 / 3 + 0.01 * (98 * 98 + 98 * 107.94 + 107.94 * 107.94) / 3) / 0.5,
              2);
  EXPECT_NEAR(half.least, 5, 0.01) << "a twentieth of what lives on: 0.025 of 0.49 on 98 tokens";
  EXPECT_FALSE(residual_beyond(c, 108).has_value());
}

SeqView with_prediction(uint32_t point, uint32_t so_far, uint32_t most = 100'000) {
  SeqView s = decoding_seq(1, 20, 20 + so_far);
  s.predicted = {point, 0};
  s.max_total_tokens = 20 + most;
  return s;
}

TEST(RestOfOutput, ByTheTableAsByTheFormula) {
  View view = make_view(10, 10);
  view.length_classes = {uniform_class()};
  RestOfOutput rest;
  rest.observe(view);
  for (uint32_t so_far : {1u, 50u, 150u, 220u}) {
    const auto exact = residual_beyond(uniform_class(), so_far - 200.0).value();
    const OutputRest looked_up = rest.of(with_prediction(200, so_far));
    EXPECT_NEAR(looked_up.mean, exact.mean, 0.02 * exact.mean) << so_far;
    EXPECT_NEAR(looked_up.square, exact.square, 0.05 * exact.square) << so_far;
  }
  EXPECT_GT(rest.of(with_prediction(200, 290)).mean, 1);
  EXPECT_LT(rest.of(with_prediction(200, 220)).mean, rest.of(with_prediction(200, 150)).mean);
}

TEST(RestOfOutput, OneThatHasOutlivedAllHasHalfOfItsAgeToCome) {
  View view = make_view(10, 10);
  view.length_classes = {uniform_class()};
  RestOfOutput rest;
  rest.observe(view);
  EXPECT_EQ(rest.of(with_prediction(200, 400)).mean, 200);
  EXPECT_EQ(rest.of(with_prediction(0, 4)).mean, 8) << "nothing is predicted";
  EXPECT_EQ(rest.of(with_prediction(200, 400, 430)).mean, 30) << "no more than the maximum leaves";
}

TEST(RestOfOutput, ThePointWhileFewHaveEnded) {
  View view = make_view(10, 10);
  view.length_classes = {uniform_class()};
  view.length_classes[0].finished = 19;
  RestOfOutput rest;
  rest.observe(view);
  EXPECT_EQ(rest.of(with_prediction(200, 50)).mean, 150);
  EXPECT_EQ(rest.of(with_prediction(200, 250)).mean, 125);
  EXPECT_EQ(rest.output(with_prediction(200, 50)), 200u);
  EXPECT_EQ(rest.output(with_prediction(200, 251)), 377u) << "251 and 125.5, in whole tokens";
  view.length_classes[0].finished = 20;
  rest.observe(view);
  EXPECT_NE(rest.of(with_prediction(200, 50)).mean, 150) << "the tables follow the view";
}

TEST(RestOfOutput, VolumeIsMemoryTimesSteps) {
  // Of 10 tokens, for exactly 4 steps: 10 + 11 + 12 + 13 is 46, and by the formula, which does not end at
  // whole tokens, 40 + 8.
  EXPECT_EQ(token_steps(10, {4, 16, 4}), 48);
}

}  // namespace
}  // namespace kvasir::test
