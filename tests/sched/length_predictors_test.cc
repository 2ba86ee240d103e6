// Predictors of lengths: what each says, that the online one learns what there is to learn and no more, and
// that nothing can be loaded that was not saved.
#include "sched/beliefs/length_predictors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "base/random.h"
#include "sched/beliefs/length_classes.h"

namespace kvasir {
namespace {

std::unique_ptr<LengthPredictor> make(std::string_view spec) {
  return make_length_predictor(spec).value();
}

struct Sample {
  std::vector<Token> prompt;
  uint32_t tokens = 0;
};

// A chat: a fixed head, a question of one of four kinds, a fixed tail. Its kind decides how long the answer
// becomes, within a third.
std::vector<Sample> chats(size_t count, uint64_t seed) {
  Random random(seed);
  std::vector<Sample> out(count);
  constexpr double kMeans[] = {12, 60, 200, 700};
  for (Sample& s : out) {
    const uint64_t kind = random.below(4);
    for (Token t = 1; t <= 20; ++t) s.prompt.push_back(t);
    s.prompt.push_back(static_cast<Token>(1000 + 10 * kind + random.below(3)));
    const auto words = random.between(5, 60);
    for (int64_t i = 0; i < words; ++i) s.prompt.push_back(static_cast<Token>(2000 + random.below(5000)));
    for (Token t = 1; t <= 5; ++t) s.prompt.push_back(t);
    s.tokens = static_cast<uint32_t>(kMeans[kind] * std::exp(0.6 * (random.unit() - 0.5)));
  }
  return out;
}

void permute(std::vector<Sample>& samples, uint64_t seed) {
  Random random(seed);
  for (size_t i = samples.size(); i > 1; --i) {
    std::swap(samples[i - 1].tokens, samples[random.below(i)].tokens);
  }
}

struct Score {
  double error = 0;       // mean |point - truth|
  double mean_error = 0;  // of the running mean
  double bias = 0;        // mean point - truth
  double truth = 0;       // mean
  int told = 0;
  int held = 0;
};

// Learns all, and scores the second half.
Score learn(LengthPredictor& predictor, const std::vector<Sample>& samples) {
  Score score;
  double sum = 0;
  const size_t half = samples.size() / 2;
  for (size_t i = 0; i < samples.size(); ++i) {
    PromptFeatures f;
    f.prompt = samples[i].prompt;
    const LengthPrediction p = predictor.predict(f);
    const double truth = samples[i].tokens;
    if (i >= half) {
      const double n = static_cast<double>(samples.size() - half);
      score.error += std::abs(p.output_tokens - truth) / n;
      score.mean_error += std::abs(sum / static_cast<double>(i) - truth) / n;
      score.bias += (p.output_tokens - truth) / n;
      score.truth += truth / n;
      score.told += p.deviation != Deviation::kUnknown;
      score.held += p.deviation == (truth > p.output_tokens ? Deviation::kLonger : Deviation::kShorter);
    }
    sum += truth;
    predictor.learn(f, p, samples[i].tokens);
  }
  return score;
}

TEST(LengthPredictors, AreMadeByName) {
  EXPECT_EQ(make("constant:77")->predict({}).output_tokens, 77u);
  PromptFeatures hinted;
  hinted.output_tokens_hint = 5;
  EXPECT_EQ(make("constant:77")->predict(hinted).output_tokens, 77u);
  EXPECT_EQ(make("oracle")->predict(hinted).output_tokens, 5u);
  EXPECT_EQ(make("oracle")->predict({}).output_tokens, 128u);
  EXPECT_EQ(make("online")->predict(hinted).output_tokens, 0u);
  const auto unknown = make_length_predictor("psychic");
  EXPECT_EQ(unknown.status().code(), ErrorCode::kNotFound);
  for (const char* name :
       {"psychic", "online", "constant:N", "oracle", "laplace:N", "bucket:N", "inverted:N"}) {
    EXPECT_NE(unknown.status().message().find(name), std::string::npos) << name;
  }
  for (const char* bad :
       {"constant:", "constant:0", "constant:x", "constant:-1", "constant:1000001", "laplace:0",
        "laplace:", "laplace:5.5", "laplace:58:", "laplace:58:0.4", "laplace:58:1.1", "laplace:58:x",
        "laplace:58:0.8:1", "bucket:0", "bucket:x", "inverted:0"}) {
    EXPECT_EQ(make_length_predictor(bad).status().code(), ErrorCode::kInvalidArgument) << bad;
  }
}

TEST(LengthPredictors, OfAStatedQualityHaveIt) {
  // CacheOpt's predictor: mean error 62, within 50 tokens 59 %, within 100 81 %. A Laplace of 58 has 58, 58 %
  // and 82 %.
  const auto predictor = make("laplace:58");
  Random random(11);
  double absolute = 0, bias = 0, within50 = 0, within100 = 0;
  constexpr int kRequests = 40'000;
  for (int i = 0; i < kRequests; ++i) {
    std::vector<Token> prompt(20, 7);
    prompt[static_cast<size_t>(random.between(0, 19))] = static_cast<Token>(random.below(50'000));
    prompt.push_back(static_cast<Token>(i));
    PromptFeatures f;
    f.prompt = prompt;
    f.output_tokens_hint = 2000;
    const double e = static_cast<double>(predictor->predict(f).output_tokens) - 2000;
    absolute += std::abs(e) / kRequests;
    bias += e / kRequests;
    within50 += (std::abs(e) <= 50) / static_cast<double>(kRequests);
    within100 += (std::abs(e) <= 100) / static_cast<double>(kRequests);
  }
  EXPECT_NEAR(absolute, 58, 1.2);  // the standard error is 0.29
  EXPECT_NEAR(bias, 0, 1.7);       // 0.41
  EXPECT_NEAR(within50, 1 - std::exp(-50.5 / 58), 0.01);
  EXPECT_NEAR(within100, 1 - std::exp(-100.5 / 58), 0.01);
}

TEST(LengthPredictors, TheDirectionOfAnErrorIsRightForTheStatedShare) {
  const auto silent = make("laplace:58"), mostly = make("laplace:58:0.8"), always = make("laplace:58:1");
  constexpr int kRequests = 10'000;
  int told = 0, right = 0;
  for (int i = 0; i < kRequests; ++i) {
    const std::vector<Token> prompt(20, static_cast<Token>(i));
    PromptFeatures f;
    f.prompt = prompt;
    f.output_tokens_hint = 2000;
    const LengthPrediction p = mostly->predict(f);
    EXPECT_EQ(silent->predict(f).deviation, Deviation::kUnknown);
    ASSERT_EQ(silent->predict(f).output_tokens, p.output_tokens) << "the error is the same";
    EXPECT_EQ(mostly->predict(f), p);
    if (p.output_tokens == 2000) continue;
    const Deviation truth = p.output_tokens < 2000 ? Deviation::kLonger : Deviation::kShorter;
    EXPECT_EQ(always->predict(f).deviation, truth);
    ++told;
    right += p.deviation == truth;
  }
  EXPECT_GT(told, kRequests * 98 / 100);
  EXPECT_NEAR(static_cast<double>(right) / told, 0.8, 0.02);  // the standard error is 0.004
}

TEST(LengthPredictors, ErrorsDependOnTheRequestAlone) {
  const auto a = make("laplace:58"), b = make("laplace:58");
  std::vector<Token> prompt(2000, 3);
  PromptFeatures f;
  f.prompt = prompt;
  f.output_tokens_hint = 300;
  const uint32_t first = a->predict(f).output_tokens;
  b->predict({});
  b->learn(f, b->predict(f), 10);
  EXPECT_EQ(b->predict(f).output_tokens, first);
  EXPECT_EQ(a->predict(f).output_tokens, first);
  // Each of these makes it another request.
  int differ = 0;
  f.output_tokens_hint = 301;
  differ += a->predict(f).output_tokens != first + 1;
  f.output_tokens_hint = 300;
  for (const size_t at : {size_t{0}, size_t{255}, size_t{1744}, size_t{1999}}) {
    prompt[at] = 4;
    differ += a->predict(f).output_tokens != first;
    prompt[at] = 3;
  }
  f.prompt = std::span<const Token>(prompt).first(1999);
  differ += a->predict(f).output_tokens != first;
  EXPECT_GE(differ, 5);
  // Never below one token, and 128 where nothing is said.
  f.output_tokens_hint = 1;
  for (Token t = 0; t < 200; ++t) {
    prompt[0] = t;
    const LengthPrediction p = a->predict(f);
    ASSERT_GE(p.output_tokens, 1u);
    ASSERT_LT(p.output_tokens, 2000u);
    const LengthClass& c = a->classes()[p.length_class];
    EXPECT_TRUE(c.low <= p.output_tokens && p.output_tokens < c.high);
  }
}

TEST(LengthPredictors, BucketsRoundUp) {
  const auto predictor = make("bucket:50");
  PromptFeatures f;
  for (const auto& [hint, label] :
       std::vector<std::pair<uint32_t, uint32_t>>{{1, 50}, {50, 50}, {51, 100}, {0, 150}, {999, 1000}}) {
    f.output_tokens_hint = hint;
    EXPECT_EQ(predictor->predict(f).output_tokens, label) << hint;
  }
  f.output_tokens_hint = UINT32_MAX;
  EXPECT_EQ(predictor->predict(f).output_tokens, 1'000'000'000u);
  predictor->learn({}, predictor->predict({}), 120);
  EXPECT_EQ(predictor->classes()[predictor->predict({}).length_class].median_tokens, 120u);
}

TEST(LengthPredictors, InvertedTakeTheLongestForTheShortest) {
  const auto predictor = make("inverted:1000");
  PromptFeatures f;
  for (const auto& [hint, label] :
       std::vector<std::pair<uint32_t, uint32_t>>{{1, 999}, {990, 10}, {1000, 1}, {5000, 1}, {0, 872}}) {
    f.output_tokens_hint = hint;
    EXPECT_EQ(predictor->predict(f).output_tokens, label) << hint;
  }
}

TEST(LengthClasses, CoverEveryLengthOnce) {
  const LengthClasses classes;
  uint32_t expected = 1;
  for (size_t i = 0; i < classes.classes().size(); ++i) {
    const LengthClass& c = classes.classes()[i];
    EXPECT_EQ(c.low, expected);
    EXPECT_LT(c.low, c.high);
    EXPECT_EQ(classes.class_of(c.low), i);
    EXPECT_EQ(classes.class_of(c.high - 1), i);
    expected = c.high;
  }
  EXPECT_EQ(expected, UINT32_MAX);
  EXPECT_LE(classes.classes().size(), 40u);
}

TEST(LengthClasses, QuantilesAreThoseOfTheLastResiduals) {
  LengthClasses classes;
  const uint32_t point = 1000;
  for (int i = 0; i < 500; ++i) classes.learn(point, 5000);  // forgotten
  for (uint32_t i = 0; i <= 255; ++i) classes.learn(point, point - 100 + (i * 37) % 256);
  const LengthClass& c = classes.classes()[classes.class_of(point)];
  EXPECT_EQ(c.finished, 756u);
  // Residuals are -100 ... 155, once each.
  EXPECT_FLOAT_EQ(c.residuals[6], 27.5f);  // the median
  EXPECT_FLOAT_EQ(c.residuals.front(), -100 + 0.01f * 255);
  EXPECT_FLOAT_EQ(c.residuals.back(), -100 + 0.99f * 255);
  EXPECT_NEAR(c.residual(0.25), -100 + 0.25 * 255, 1e-3);
  EXPECT_EQ(c.median_tokens, 1028u);
  EXPECT_TRUE(std::is_sorted(c.residuals.begin(), c.residuals.end()));
}

TEST(OnlinePredictor, LearnsWhatThePromptTells) {
  const auto predictor = make("online");
  const Score score = learn(*predictor, chats(4000, 1));
  std::printf("mean absolute error %.1f, of the running mean %.1f; bias %.1f of %.1f; told %d, held %d\n",
              score.error, score.mean_error, score.bias, score.truth, score.told, score.held);
  EXPECT_LT(score.error, 0.4 * score.mean_error);
  EXPECT_LT(std::abs(score.bias), 0.08 * score.truth);
}

TEST(OnlinePredictor, IsNoBetterThanTheMeanWhereThereIsNothingToLearn) {
  std::vector<Sample> samples = chats(3000, 1);
  permute(samples, 7);
  const auto predictor = make("online");
  const Score score = learn(*predictor, samples);
  std::printf("mean absolute error %.1f, of the running mean %.1f; bias %.1f of %.1f; told %d, held %d\n",
              score.error, score.mean_error, score.bias, score.truth, score.told, score.held);
  // It cannot be better but by chance, and it must not be much worse.
  EXPECT_GT(score.error, 0.97 * score.mean_error);
  EXPECT_LT(score.error, 1.05 * score.mean_error);
  EXPECT_LT(std::abs(score.bias), 0.08 * score.truth);
}

TEST(OnlinePredictor, TellsADirectionOnlyWithEvidence) {
  // One kind of prompt is always half as long as the other, and the mean lies between them: at first the
  // direction is known before the length is.
  Random random(3);
  const auto predictor = make("online");
  for (int i = 0; i < 50; ++i) {
    const std::vector<Token> prompt(10, static_cast<Token>(i % 2));
    PromptFeatures f;
    f.prompt = prompt;
    const LengthPrediction p = predictor->predict(f);
    EXPECT_EQ(p.deviation, Deviation::kUnknown) << i;
    predictor->learn(f, p, i % 2 == 0 ? 100 : 200);
  }
  // Lengths that are mostly shorter than their mean: told, and true.
  const auto skewed = make("online");
  std::vector<Sample> samples(2000);
  for (Sample& s : samples) {
    s.prompt.assign(10, 1);
    s.tokens = random.unit() < 0.85 ? 20 : 2000;
  }
  const Score score = learn(*skewed, samples);
  EXPECT_GT(score.told, 900);
  EXPECT_GT(score.held, 0.75 * score.told);
}

TEST(OnlinePredictor, OutputsThatWereCutAreLowerBounds) {
  const std::vector<Token> prompt(20, 5);
  PromptFeatures f;
  f.prompt = prompt;
  const auto predictor = make("online");
  for (int i = 0; i < 200; ++i) predictor->learn(f, predictor->predict(f), 50);
  const uint32_t before = predictor->predict(f).output_tokens;
  const auto classes = predictor->classes();
  // Cut before the point: nothing is known.
  const std::string state = predictor->save();
  predictor->learn_at_least(f, predictor->predict(f), before - 1);
  EXPECT_EQ(predictor->save(), state);
  // Cut beyond it: the point was too low.
  for (int i = 0; i < 50; ++i) predictor->learn_at_least(f, predictor->predict(f), 400);
  EXPECT_GE(predictor->predict(f).output_tokens, before);
  EXPECT_EQ(predictor->classes(), classes) << "residuals are of truths only";
}

TEST(OnlinePredictor, SavesAllThatItKnows) {
  const auto a = make("online");
  learn(*a, chats(700, 5));
  const std::string text = a->save();
  const auto b = make("online");
  const Status loaded = b->load(text);
  ASSERT_TRUE(loaded.ok()) << loaded.message();
  EXPECT_EQ(b->save(), text);
  EXPECT_EQ(b->classes(), a->classes());
  const auto more = chats(100, 6);
  for (const Sample& s : more) {
    PromptFeatures f;
    f.prompt = s.prompt;
    const LengthPrediction p = a->predict(f);
    EXPECT_EQ(b->predict(f), p);
    a->learn(f, p, s.tokens);
    b->learn(f, p, s.tokens);
  }
  EXPECT_EQ(b->save(), a->save());
}

TEST(OnlinePredictor, LoadsNothingElse) {
  const auto a = make("online");
  learn(*a, chats(60, 5));
  const std::string text = a->save();
  const auto fresh = make("online");
  const std::string untouched = fresh->save();
  for (const std::string& bad :
       {std::string(), std::string("{}"), std::string(100, '\0'), text.substr(0, text.size() / 2), text + "1",
        "kvasir-length-predictor online 2\n" + text.substr(text.find('\n') + 1)}) {
    const Status status = fresh->load(bad);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.code(), ErrorCode::kCorrupt);
    EXPECT_EQ(fresh->save(), untouched);
  }
  // Bytes changed at random: refused, or something that can be used.
  Random random(9);
  const std::vector<Token> prompt(5, 1);
  PromptFeatures f;
  f.prompt = prompt;
  int refused = 0;
  for (int i = 0; i < 1500; ++i) {
    std::string damaged = text;
    for (uint64_t n = 1 + random.below(4); n > 0; --n) {
      const size_t at = random.below(random.unit() < 0.5 ? 300 : damaged.size());
      switch (random.below(3)) {
        case 0:
          damaged[at] = "0123456789.-e \nx"[random.below(16)];
          break;
        case 1:
          damaged.erase(at, 1 + random.below(20));
          break;
        default:
          damaged.insert(at, std::string(1 + random.below(3), "9.-e "[random.below(5)]));
      }
    }
    const auto p = make("online");
    if (const Status status = p->load(damaged); !status.ok()) {
      EXPECT_EQ(status.code(), ErrorCode::kCorrupt);
      ++refused;
      continue;
    }
    const LengthPrediction predicted = p->predict(f);
    ASSERT_LT(predicted.length_class, p->classes().size());
    p->learn(f, predicted, 100);
    EXPECT_TRUE(make("online")->load(p->save()).ok());
  }
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace kvasir
