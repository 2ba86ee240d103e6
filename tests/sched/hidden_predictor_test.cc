// The predictor that reads the served model's hidden row: it learns what is there, finds out where nothing
// is, in two steps or while it serves, and takes nothing from a file that it has not saved.
#include "sched/beliefs/hidden_predictor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "base/random.h"

namespace kvasir {
namespace {

struct RowSample {
  std::vector<Token> prompt;
  std::vector<float> hidden;
  uint32_t tokens = 1;

  PromptFeatures features() const { return {prompt, 0.7f, 1, 0, hidden}; }
  PromptFeatures waiting() const { return {prompt, 0.7f, 1, 0, {}}; }
};

double row_normal(Random& random) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += random.unit();
  return sum;
}

// The prompt's tokens say nothing. The row has a mean of its own, one element that is a hundred times as
// large as the others, and log length along one direction.
std::vector<RowSample> row_samples(size_t count, size_t width, uint64_t seed) {
  Random random(seed);
  Random along(17);  // the same direction for every seed
  std::vector<double> direction(width);
  for (double& d : direction) d = row_normal(along);
  std::vector<RowSample> out(count);
  for (RowSample& s : out) {
    for (int i = 0; i < 30; ++i) s.prompt.push_back(static_cast<Token>(random.below(5000)));
    const double length = row_normal(random);
    for (size_t i = 0; i < width; ++i) {
      const double scale = i == 3 ? 100 : 1;
      s.hidden.push_back(static_cast<float>(scale * (2 + 0.8 * direction[i] * length + row_normal(random))));
    }
    s.tokens = static_cast<uint32_t>(std::max(1.0, std::exp(4.5 + 0.9 * length + 0.15 * row_normal(random))));
  }
  return out;
}

void permute_rows(std::vector<RowSample>& all, uint64_t seed) {
  Random random(seed);
  for (size_t i = all.size(); i > 1; --i) std::swap(all[i - 1].hidden, all[random.below(i)].hidden);
}

struct RowScore {
  double error = 0, mean_error = 0, told = 0, held = 0;
};

// Learns from all, and scores the second half.
RowScore learn_rows(HiddenPredictor& predictor, const std::vector<RowSample>& all) {
  RowScore out;
  double sum = 0;
  const size_t half = all.size() / 2;
  for (size_t i = 0; i < all.size(); ++i) {
    const LengthPrediction p = predictor.predict(all[i].features());
    const double truth = all[i].tokens;
    if (i >= half) {
      out.error += std::abs(p.output_tokens - truth) / static_cast<double>(all.size() - half);
      out.mean_error +=
          std::abs(sum / static_cast<double>(i) - truth) / static_cast<double>(all.size() - half);
      out.told += p.deviation != Deviation::kUnknown;
      out.held += p.deviation != Deviation::kUnknown &&
                  (p.deviation == Deviation::kLonger) == (truth > p.output_tokens);
    }
    sum += truth;
    predictor.learn(all[i].features(), p, all[i].tokens);
  }
  return out;
}

TEST(HiddenPredictor, LearnsWhatTheRowSays) {
  for (const size_t width : {48u, 700u}) {  // with and without projection
    HiddenPredictor predictor;
    const RowScore score = learn_rows(predictor, row_samples(1500, width, 2));
    std::printf("row of %zu: error %.1f tokens, running mean %.1f\n", width, score.error, score.mean_error);
    EXPECT_LT(score.error, 0.6 * score.mean_error);
  }
}

TEST(HiddenPredictor, FindsOutWhereTheRowSaysNothing) {
  auto all = row_samples(1500, 200, 3);
  permute_rows(all, 4);
  HiddenPredictor predictor;
  const RowScore score = learn_rows(predictor, all);
  std::printf("permuted rows: error %.1f tokens, running mean %.1f\n", score.error, score.mean_error);
  EXPECT_LT(score.error, 1.1 * score.mean_error);
}

TEST(HiddenPredictor, BeforeThePrefillItIsTheOneOfCheapFeatures) {
  const auto all = row_samples(400, 48, 5);
  HiddenPredictor predictor;
  OnlinePredictor online;
  for (const RowSample& s : all) {
    predictor.learn(s.features(), {}, s.tokens);
    online.learn(s.waiting(), online.predict(s.waiting()), s.tokens);
  }
  int differ = 0;
  for (const RowSample& s : row_samples(50, 48, 6)) {
    EXPECT_EQ(predictor.predict(s.waiting()), online.predict(s.waiting()));
    differ += !(predictor.predict(s.features()) == online.predict(s.features()));
  }
  EXPECT_GT(differ, 40);
}

// What is predicted from the row has residuals of its own: they are smaller.
TEST(HiddenPredictor, ResidualsAreThoseOfWhatWasPredictedFrom) {
  HiddenPredictor predictor;
  learn_rows(predictor, row_samples(1500, 48, 7));
  double row = 0, cheap = 0;
  for (const RowSample& s : row_samples(100, 48, 8)) {
    const auto spread = [&](const LengthPrediction& p) {
      const LengthClass& c = predictor.classes()[p.length_class];
      return (c.residual(0.9) - c.residual(0.1)) / p.output_tokens;
    };
    row += spread(predictor.predict(s.features()));
    cheap += spread(predictor.predict(s.waiting()));
  }
  EXPECT_GT(row, 0);
  EXPECT_LT(row, 0.7 * cheap);
}

TEST(HiddenPredictor, TheFirstStepTeachesNeitherDirectionsNorResiduals) {
  const auto all = row_samples(900, 48, 9);
  HiddenPredictor predictor;
  for (size_t i = 0; i < 600; ++i) predictor.learn_length(all[i].features(), all[i].tokens);
  for (const LengthClass& c : predictor.classes()) EXPECT_EQ(c.finished, 0u);
  const LengthPrediction p = predictor.predict(all[600].features());
  EXPECT_GT(p.output_tokens, 0u);
  EXPECT_EQ(p.deviation, Deviation::kUnknown);
  for (size_t i = 600; i < 900; ++i) predictor.learn(all[i].features(), {}, all[i].tokens);
  const auto finished = [](uint64_t sum, const LengthClass& c) { return sum + c.finished; };
  EXPECT_GT(std::accumulate(predictor.classes().begin(), predictor.classes().end(), uint64_t{0}, finished),
            300u);
}

// Lengths are exp(v . row) or ten times that, by the sign of one element: no line can say so, and the side is
// told from it.
TEST(HiddenPredictor, DirectionsThatAreToldHold) {
  Random random(10);
  std::vector<RowSample> all(3000);
  for (RowSample& s : all) {
    s.prompt = {1, 2, 3};
    for (int i = 0; i < 8; ++i) s.hidden.push_back(static_cast<float>(row_normal(random)));
    // Mostly a little below the mean, and at times far above it: the odds depend on the first element.
    const bool far = random.unit() < squash(2.5 * double{s.hidden[0]} - 1.5);
    s.tokens = static_cast<uint32_t>(far ? 300 : 60);
  }
  HiddenPredictor predictor;
  const RowScore score = learn_rows(predictor, all);
  EXPECT_GT(score.told, 300);
  EXPECT_GT(score.held / score.told, 0.6);
}

TEST(HiddenPredictor, ALengthThatWasCutRaisesThePoint) {
  const auto all = row_samples(600, 48, 11);
  HiddenPredictor predictor;
  learn_rows(predictor, all);
  const RowSample& s = all.front();
  const uint32_t before = predictor.predict(s.features()).output_tokens;
  for (int i = 0; i < 5; ++i) predictor.learn_at_least(s.features(), {}, before * 4);
  EXPECT_GT(predictor.predict(s.features()).output_tokens, before);
  const uint32_t now = predictor.predict(s.features()).output_tokens;
  predictor.learn_at_least(s.features(), {}, 1);  // says nothing
  EXPECT_EQ(predictor.predict(s.features()).output_tokens, now);
}

TEST(HiddenPredictor, RowsOfAnotherWidthAreNotRead) {
  HiddenPredictor predictor;
  learn_rows(predictor, row_samples(300, 48, 12));
  RowSample other = row_samples(1, 64, 13).front();
  const std::string before = predictor.save();
  EXPECT_EQ(predictor.predict(other.features()), predictor.predict(other.waiting()));
  other.hidden.assign(48, std::nanf(""));
  EXPECT_GT(predictor.predict(other.features()).output_tokens, 0u) << "not a number is as good as nothing";
  EXPECT_EQ(predictor.save(), before);
}

TEST(HiddenPredictor, GoesOnAsIfItHadNeverBeenSaved) {
  for (const size_t width : {48u, 200u}) {
    for (const size_t count : {0u, 10u, 500u}) {
      HiddenPredictor predictor, loaded;
      learn_rows(predictor, row_samples(count, width, 14));
      const std::string text = predictor.save();
      ASSERT_TRUE(loaded.load(text).ok()) << width << " " << count;
      EXPECT_EQ(loaded.save(), text);
      for (const RowSample& s : row_samples(100, width, 15)) {
        const LengthPrediction p = predictor.predict(s.features());
        ASSERT_EQ(loaded.predict(s.features()), p);
        predictor.learn(s.features(), p, s.tokens);
        loaded.learn(s.features(), p, s.tokens);
        ASSERT_EQ(loaded.classes(), predictor.classes());
      }
    }
  }
}

TEST(HiddenPredictor, TakesNothingThatItHasNotSaved) {
  HiddenPredictor predictor;
  learn_rows(predictor, row_samples(200, 16, 16));
  const std::string text = predictor.save();
  Random random(17);
  HiddenPredictor other;
  learn_rows(other, row_samples(100, 16, 18));
  const std::string before = other.save();
  for (int i = 0; i < 300; ++i) {
    const std::string cut = text.substr(0, random.below(text.size() - 1));
    ASSERT_FALSE(other.load(cut).ok()) << cut.size();
    std::string changed = text;
    changed[random.below(text.size())] = 'x';
    ASSERT_FALSE(other.load(changed).ok());
  }
  EXPECT_FALSE(other.load(OnlinePredictor().save()).ok());
  std::string wide = text;
  wide.replace(wide.find("\nrow 16 "), 8, "\nrow 999999 ");
  EXPECT_FALSE(other.load(wide).ok());
  EXPECT_EQ(other.save(), before) << "what could not be read has changed it";
}

}  // namespace
}  // namespace kvasir
