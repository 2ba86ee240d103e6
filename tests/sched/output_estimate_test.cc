// How much output room is kept for, worked by hand.
#include "sched/mechanisms/output_estimate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "fakes/views.h"

namespace kvasir::test {
namespace {

// Truth less point: uniform from -40 to 60.
LengthClass uniform_class() {
  LengthClass c;
  c.finished = 100;
  for (size_t i = 0; i < c.residuals.size(); ++i) {
    c.residuals[i] = static_cast<float>(100 * LengthClass::kQuantiles[i] - 40);
  }
  return c;
}

struct Estimate {
  View view = make_view(50, 50);
  SeqView seq = waiting_seq(1, 20);
  PaddingOptions options;
  Estimate() {
    view.length_classes = {uniform_class()};
    seq.max_total_tokens = 2000;
    seq.predicted = {100, 0, Deviation::kUnknown};
  }
  uint32_t at(double confidence, Deviation deviation) {
    seq.predicted.deviation = deviation;
    return OutputEstimate(view, confidence, options).output(seq);
  }
};

TEST(OutputEstimate, TheQuantileOfTheSideWhereTheTruthLies) {
  Estimate e;
  EXPECT_EQ(e.at(0.9, Deviation::kUnknown), 150u) << "the 90 % quantile of all";
  // Four tenths had less than was predicted: the 94 % quantile of all is the 90 % one of those with more, the
  // 36 % one of those with less.
  EXPECT_EQ(e.at(0.9, Deviation::kLonger), 154u);
  EXPECT_EQ(e.at(0.9, Deviation::kShorter), 96u);
  EXPECT_EQ(e.at(0.5, Deviation::kUnknown), 110u);
}

TEST(OutputEstimate, MoreConfidenceIsNeverLessRoom) {
  Estimate e;
  for (Padding padding : {Padding::kQuantile, Padding::kHoeffding}) {
    e.options.padding = padding;
    for (Deviation d : {Deviation::kUnknown, Deviation::kLonger}) {
      uint32_t before = 0;
      for (double c = 0; c < 0.999; c += 0.01) {
        const uint32_t now = e.at(c, d);
        EXPECT_GE(now, before) << c;
        before = now;
      }
    }
  }
}

// P(X <= estimate) is the confidence, on both sides; the paper's subtraction keeps the opposite.
TEST(OutputEstimate, TheConfidenceIsTheShareThatItSufficesFor) {
  Estimate e;
  const auto covered = [&](Deviation side, double confidence) {
    const uint32_t room = e.at(confidence, side);
    int all = 0, enough = 0;
    for (int truth = 60; truth < 160; ++truth) {
      if ((truth < 100) != (side == Deviation::kShorter)) continue;
      ++all;
      enough += truth <= static_cast<int>(room);
    }
    return static_cast<double>(enough) / all;
  };
  for (double c : {0.5, 0.7, 0.9}) {
    EXPECT_NEAR(covered(Deviation::kLonger, c), c, 0.03);
    EXPECT_NEAR(covered(Deviation::kShorter, c), c, 0.03);
  }
  e.options.padding = Padding::kHoeffding;
  EXPECT_LT(covered(Deviation::kShorter, 0.9), 0.1);
}

TEST(OutputEstimate, Hoeffding) {
  const LengthClass c = uniform_class();  // 90 tokens from the 5 % to the 95 % quantile
  EXPECT_NEAR(hoeffding_padding(c, 0.5), 90 * std::sqrt(std::log(2.0) / 2), 1e-3);
  EXPECT_NEAR(hoeffding_padding(c, 0.9), 90, 1e-3) << "beyond 0.865 it says nothing: the range";
  EXPECT_EQ(hoeffding_padding(c, 0), 0);
  Estimate e;
  e.options.padding = Padding::kHoeffding;
  EXPECT_EQ(e.at(0.5, Deviation::kLonger), 153u) << "100 + 52.98";
  EXPECT_EQ(e.at(0.5, Deviation::kShorter), 48u) << "100 - 52.98";
  e.seq.predicted.output_tokens = 30;
  EXPECT_EQ(e.at(0.9, Deviation::kShorter), 8u) << "never below the unit";
}

TEST(OutputEstimate, AShareWhereNothingIsKnown) {
  Estimate e;
  e.options.padding = Padding::kShare;
  EXPECT_EQ(e.at(0.9, Deviation::kLonger), 110u);
  e.options.padding = Padding::kQuantile;
  e.view.length_classes[0].finished = 9;
  EXPECT_EQ(e.at(0.9, Deviation::kLonger), 110u);
  e.view.length_classes.clear();
  EXPECT_EQ(e.at(0.9, Deviation::kLonger), 110u);
}

// RLP's: the prediction and so many tokens, whatever is known of others.
TEST(OutputEstimate, SoManyTokensWhateverIsKnown) {
  Estimate e;
  e.options.padding = Padding::kTokens;
  EXPECT_EQ(e.at(0.9, Deviation::kShorter), 200u) << "100 + 100";
  e.options.tokens = 30;
  EXPECT_EQ(e.at(0.5, Deviation::kLonger), 130u);
}

TEST(OutputEstimate, ALongerOutputGetsAUnitMore) {
  Estimate e;
  e.seq = decoding_seq(1, 20, 20 + 160);
  e.seq.max_total_tokens = 2000;
  e.seq.predicted = {100, 0, Deviation::kUnknown};
  EXPECT_EQ(e.at(0.9, Deviation::kUnknown), 168u);
  EXPECT_EQ(OutputEstimate(e.view, 0.9, e.options).rest(e.seq), 8u);
  e.seq.max_total_tokens = 20 + 163;
  EXPECT_EQ(e.at(0.9, Deviation::kUnknown), 163u);
  e.seq.predicted = {};
  e.seq.max_total_tokens = 2000;
  EXPECT_EQ(e.at(0.9, Deviation::kUnknown), 168u) << "nothing predicted";
}

// Of residuals uniform from -40 to 60, those beyond 20 are uniform from there: nine tenths of them are below
// 56. With an output of 120 already the truth is one of them.
TEST(OutputEstimate, OfThoseOnlyThatLiveSoLong) {
  Estimate e;
  e.options.survival = true;
  EXPECT_EQ(e.at(0.9, Deviation::kUnknown), 150u) << "before the first token all of them";
  e.seq = decoding_seq(1, 20, 20 + 120);
  e.seq.max_total_tokens = 2000;
  e.seq.predicted = {100, 0, Deviation::kUnknown};
  EXPECT_EQ(e.at(0.9, Deviation::kUnknown), 156u);
  EXPECT_EQ(e.at(0.5, Deviation::kUnknown), 140u);
  EXPECT_EQ(e.at(0.9, Deviation::kShorter), 156u) << "it was wrong of the direction";
  // Of 80 tokens the residual lies beyond -20: two tenths are gone, and of the shorter ones a half.
  e.seq.known_tokens = 20 + 80;
  EXPECT_EQ(e.at(0.9, Deviation::kUnknown), 152u);
  EXPECT_EQ(e.at(0.5, Deviation::kShorter), 90u);
  EXPECT_EQ(e.at(0.9, Deviation::kLonger), 154u) << "as without";
  e.seq.known_tokens = 20 + 170;
  EXPECT_EQ(e.at(0.9, Deviation::kUnknown), 178u) << "it has outlived all: a unit more";
}

}  // namespace
}  // namespace kvasir::test
