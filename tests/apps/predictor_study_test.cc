// What is said of a predictor, against figures worked out by hand.
#include "apps/predictor/predictor_study.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/random.h"

namespace kvasir {
namespace {

LengthExample example(uint32_t tokens, std::vector<uint32_t> again = {}) {
  LengthExample e;
  e.prompt = {1};
  e.output_tokens = tokens;
  e.again = std::move(again);
  return e;
}

LengthForecast said(uint32_t tokens, Deviation deviation = Deviation::kUnknown) {
  LengthForecast f;
  f.predicted = {.output_tokens = tokens, .length_class = 5, .deviation = deviation};
  // Of 100 requests: from 40 tokens less to 60 more, evenly.
  f.alike.finished = 100;
  for (size_t i = 0; i < LengthClass::kQuantiles.size(); ++i) {
    f.alike.residuals[i] = static_cast<float>(-40 + 100 * LengthClass::kQuantiles[i]);
  }
  return f;
}

TEST(PredictorStudy, ErrorsAreMeansOverRequests) {
  const std::vector<LengthExample> examples = {example(100), example(200), example(40)};
  // The third is beyond the limit, and counts as 300.
  const std::vector<LengthForecast> forecasts = {said(110, Deviation::kShorter), said(140),
                                                 said(500, Deviation::kLonger)};
  const LengthErrors e = errors_of(forecasts, examples, 300);
  EXPECT_DOUBLE_EQ(e.mean_absolute, (10 + 60 + 260) / 3.0);
  EXPECT_DOUBLE_EQ(e.bias, (10 - 60 + 260) / 3.0);
  EXPECT_DOUBLE_EQ(e.within_50, 1 / 3.0);
  EXPECT_DOUBLE_EQ(e.told, 2 / 3.0);
  EXPECT_DOUBLE_EQ(e.held, 1 / 2.0);
}

TEST(PredictorStudy, PinballCountsNineTimesWhatIsMissing) {
  // Padded to 90 %: 50 tokens more than the point.
  const std::vector<LengthExample> examples = {example(100), example(200)};
  const std::vector<LengthForecast> forecasts = {said(100), said(140)};
  EXPECT_EQ(padded_length(forecasts[0], 0.9, Padding::kQuantile, 1000), 150u);
  EXPECT_NEAR(errors_of(forecasts, examples, 1000).pinball_90, (0.1 * 50 + 0.9 * 10) / 2, 1e-9);
}

TEST(PredictorStudy, TheBestConstantIsTheBest) {
  Random random(3);
  std::vector<LengthExample> examples;
  for (int i = 0; i < 201; ++i) examples.push_back(example(static_cast<uint32_t>(1 + random.below(400))));
  const LengthErrors best = errors_of_best_constant(examples);
  for (uint32_t constant = 1; constant <= 400; constant += 3) {
    double absolute = 0, pinball = 0;
    for (const LengthExample& e : examples) {
      const double more = static_cast<double>(constant) - e.output_tokens;
      absolute += std::abs(more) / 201;
      pinball += (more > 0 ? 0.1 * more : -0.9 * more) / 201;
    }
    EXPECT_LE(best.mean_absolute, absolute + 1e-9);
    EXPECT_LE(best.pinball_90, pinball + 1e-9);
  }
}

TEST(PredictorStudy, OtherAnswersToTheSameRequest) {
  // Answers 10, 20, 60: they differ by 10, 40, 50. The others' medians: 40, 35, 15.
  const std::vector<LengthExample> examples = {example(10, {20, 60}), example(999)};
  EXPECT_NEAR(resampling_spread(examples), 100 / 3.0, 1e-9);
  EXPECT_NEAR(error_of_other_answers(examples), (30 + 15 + 45) / 3.0, 1e-9);
}

TEST(PredictorStudy, WhatIsKeptCoversOrFallsShort) {
  const std::vector<LengthExample> examples = {example(100), example(100), example(100), example(100)};
  const Provision p = provision_of({100, 130, 70, 110}, examples);
  EXPECT_DOUBLE_EQ(p.covered, 0.75);
  EXPECT_DOUBLE_EQ(p.over, 0.5);
  EXPECT_DOUBLE_EQ(p.over_tokens, 20);
  EXPECT_DOUBLE_EQ(p.under_tokens, 30);
  EXPECT_DOUBLE_EQ(p.kept, 102.5);
}

// The row's first element is the log length, give or take; what is longer than 150 is cut.
std::vector<LengthExample> telling_rows(size_t count) {
  Random random(5);
  std::vector<LengthExample> out(count);
  for (LengthExample& e : out) {
    for (int i = 0; i < 12; ++i) e.prompt.push_back(static_cast<Token>(random.below(1000)));
    const double length = 3 + 3 * random.unit();
    e.hidden = {static_cast<float>(length), static_cast<float>(random.unit()), 1};
    e.output_tokens = static_cast<uint32_t>(std::min(150.0, std::exp(length + 0.4 * (random.unit() - 0.5))));
    e.cut = e.output_tokens == 150;
  }
  return out;
}

TEST(PredictorStudy, TrainingInTwoStepsPredictsAndIsCalibrated) {
  const std::vector<LengthExample> all = telling_rows(3000);
  const LengthExamples examples = all;
  HiddenPredictor predictor;
  train_in_two_steps(predictor, examples.first(2400));
  const LengthExamples test = examples.subspan(2400);
  const auto forecasts = forecast(predictor, test, false);
  EXPECT_LT(errors_of(forecasts, test, 150).mean_absolute, 0.3 * errors_of_best_constant(test).mean_absolute);
  double before = 0;
  for (const double confidence : {0.5, 0.8, 0.95}) {
    std::vector<uint32_t> kept;
    for (const LengthForecast& f : forecasts) {
      kept.push_back(padded_length(f, confidence, Padding::kQuantile, 150));
    }
    // Those that were cut are covered by any padding that comes to the limit: more than was stated may be.
    const double covered = provision_of(kept, test).covered;
    EXPECT_GT(covered, confidence - 0.08);
    EXPECT_GT(covered, before);
    before = covered;
  }
}

TEST(PredictorStudy, TheReportSaysHowManyWereCut) {
  const std::vector<LengthExample> all = telling_rows(500);
  const auto cut = std::count_if(all.begin(), all.end(), [](const LengthExample& e) { return e.cut; });
  const std::string report = predictor_report(all, 150);
  EXPECT_NE(report.find("500 requests, in time: 400 for training, then 100 for the test"), std::string::npos)
      << report;
  EXPECT_NE(report.find(fmt::format("{:.1f} % were cut, at 150", static_cast<double>(cut) / 5)),
            std::string::npos)
      << report;
}

}  // namespace
}  // namespace kvasir
