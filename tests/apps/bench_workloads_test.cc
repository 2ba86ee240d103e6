// The named workloads have the statistics that they are matched to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "apps/bench/dataset.h"
#include "apps/bench/workloads.h"

namespace kvasir {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kLengthDraws = 40'000;

struct Sample {
  explicit Sample(std::vector<int64_t> lengths) : sorted(std::move(lengths)) {
    std::sort(sorted.begin(), sorted.end());
    for (int64_t l : sorted) mean += static_cast<double>(l) / static_cast<double>(sorted.size());
    for (int64_t l : sorted) {
      deviation += std::pow(static_cast<double>(l) - mean, 2) / static_cast<double>(sorted.size());
    }
    deviation = std::sqrt(deviation);
  }
  double median() const { return static_cast<double>(sorted[sorted.size() / 2]); }
  // The share above `limit`.
  double above(int64_t limit) const {
    const auto at = std::upper_bound(sorted.begin(), sorted.end(), limit);
    return static_cast<double>(sorted.end() - at) / static_cast<double>(sorted.size());
  }
  // Within four standard errors and a share of slack of what is stated.
  void expect_mean(double stated, double slack) const {
    const double error = deviation / std::sqrt(static_cast<double>(sorted.size()));
    EXPECT_NEAR(mean, stated, 4 * error + slack * stated);
  }
  std::vector<int64_t> sorted;
  double mean = 0;
  double deviation = 0;
};

struct Both {
  Sample prompt;
  Sample output;
  Sample total;
};

Both draw(const std::string& name, uint64_t seed = 7) {
  const Result<Workload> workload = find_workload(name);
  EXPECT_TRUE(workload.ok()) << name;
  std::vector<int64_t> prompts, outputs, totals;
  for (int64_t i = 0; i < kLengthDraws; ++i) {
    const Lengths l = workload->draw(seed, i);
    prompts.push_back(l.prompt);
    outputs.push_back(l.output);
    totals.push_back(l.prompt + l.output);
  }
  return {Sample(prompts), Sample(outputs), Sample(totals)};
}

struct Stated {
  const char* name;
  double prompt_mean, output_mean;
  int64_t prompt_min, prompt_max, output_min, output_max;
  double slack;  // of the means
};

TEST(Workloads, MeansAndRangesAreThoseStated) {
  // The public data's means are matched to 1.5 %: quantiles do not give them exactly.
  for (const Stated& s : {Stated{"sharegpt", 161.31, 337.99, 16, 2029, 19, 991, .001},
                          Stated{"alpaca", 19.31, 58.41, 9, 2470, 13, 292, .001},
                          Stated{"bookcorpus", 1952.11, 681.2, 18, 2048, 32, 1041, .001},
                          Stated{"humaneval", 171.35, 98.17, 55, 629, 9, 514, .015},
                          Stated{"wikitext", 914, 521, 1, 1840, 1, 992, .001},
                          Stated{"arxiv", 7812, 420, 1, 19600, 1, 9754, .003},
                          Stated{"bookcorpus-long", 16944, 185, 1, 23706, 1, 299, .001},
                          Stated{"leval", 10745, 404, 5187, 33989, 143, 968, .015}}) {
    SCOPED_TRACE(s.name);
    const Both b = draw(s.name);
    b.prompt.expect_mean(s.prompt_mean, s.slack);
    b.output.expect_mean(s.output_mean, s.slack);
    EXPECT_GE(b.prompt.sorted.front(), s.prompt_min);
    EXPECT_LE(b.prompt.sorted.back(), s.prompt_max);
    EXPECT_GE(b.output.sorted.front(), s.output_min);
    EXPECT_LE(b.output.sorted.back(), s.output_max);
  }
}

TEST(Workloads, MediansAreThoseOfAptServesTable) {
  const Both wiki = draw("wikitext"), arxiv = draw("arxiv"), book = draw("bookcorpus-long");
  EXPECT_NEAR(wiki.prompt.median(), 871, .02 * 871);
  EXPECT_NEAR(wiki.output.median(), 552, .02 * 552);
  EXPECT_NEAR(arxiv.prompt.median(), 6853, .02 * 6853);
  EXPECT_NEAR(arxiv.output.median(), 226, .025 * 226);
  EXPECT_NEAR(book.prompt.median(), 14781, .02 * 14781);
  EXPECT_NEAR(book.output.median(), 221, .02 * 221);
}

TEST(Workloads, DeviationsAreThoseOfThePublicData) {
  const Both humaneval = draw("humaneval"), leval = draw("leval");
  EXPECT_NEAR(humaneval.prompt.deviation, 88.03, .05 * 88.03);
  EXPECT_NEAR(humaneval.output.deviation, 81.58, .05 * 81.58);
  EXPECT_NEAR(humaneval.prompt.median(), 146, 4);
  EXPECT_NEAR(leval.prompt.deviation, 6111, .05 * 6111);
  EXPECT_NEAR(leval.output.deviation, 181.9, .03 * 181.9);
  EXPECT_NEAR(leval.output.median(), 421, 8);
}

TEST(Workloads, SumsHoldWhereThePapersCut) {
  EXPECT_LE(draw("sharegpt").total.sorted.back(), 2048);
  const Both longbench = draw("longbench");
  EXPECT_LE(longbench.total.sorted.back(), 2048);
  EXPECT_GE(longbench.prompt.sorted.front(), 300);
  // Two thirds and some of the others fill the context.
  EXPECT_GT(longbench.total.above(2047), 2.0 / 3);
  EXPECT_LT(longbench.total.above(2047), 0.8);
  longbench.output.expect_mean(295.03, .005);

  // Without those that are too long: an output o leaves prompts from 300 to 2,048 - o, so it is kept in
  // proportion to 1,748 - o, and the mean prompt beside it is (2,348 - o) / 2.
  const Both filtered = draw("longbench-filtered");
  EXPECT_LE(filtered.total.sorted.back(), 2048);
  EXPECT_GE(filtered.prompt.sorted.front(), 300);
  EXPECT_LT(filtered.total.above(2047), 0.01);
  double kept = 0, prompts = 0, outputs = 0;
  for (int64_t o : longbench.output.sorted) {
    const auto room = static_cast<double>(1748 - o);
    kept += room;
    prompts += room * (room + 600) / 2;
    outputs += room * static_cast<double>(o);
  }
  filtered.prompt.expect_mean(prompts / kept, .005);
  filtered.output.expect_mean(outputs / kept, .005);
}

TEST(Workloads, BooksComeInPieces) {
  EXPECT_NEAR(1 - draw("bookcorpus").prompt.above(2047), .0945, .006);
}

TEST(Workloads, MixesHaveTheirShareOfLongContexts) {
  struct Mix {
    int id;
    int64_t normal;  // tokens
    double share;    // of long ones
  };
  for (const Mix& mix : {Mix{1, 100'000, .01}, Mix{8, 140'000, .10}, Mix{9, 300'000, .10},
                         Mix{16, 240'000, .30}, Mix{5, 600'000, .01}, Mix{18, 950'000, .30}}) {
    SCOPED_TRACE(mix.id);
    const Both b = draw(fmt::format("infinite-llm-mix-{}", mix.id));
    EXPECT_NEAR(b.total.above(mix.normal), mix.share,
                4 * std::sqrt(mix.share * (1 - mix.share) / kLengthDraws));
    EXPECT_LE(b.total.sorted.back(), 2 * mix.normal);
    EXPECT_GT(b.total.sorted.back(), 1.9 * static_cast<double>(mix.normal));
    const double normal = static_cast<double>(mix.normal);
    b.total.expect_mean((1 - mix.share) * normal / 2 + mix.share * 1.5 * normal, .001);
    b.output.expect_mean(337.99, .06);  // near ShareGPT's: cut only where a context is short
  }
}

// Even in the logarithm from 1 to R: half of the normal ones are below the root of R, a quarter below the
// root of that, and their mean is (R - 1) / ln R. The long ones are even from R to 2 R.
TEST(Workloads, LogMixesHaveAsManyContextsOfEachMagnitude) {
  constexpr double kRanges[] = {100'000, 140'000, 300'000, 240'000, 600'000, 950'000};
  constexpr double kLong[] = {.01, .10, .30};
  for (int id = 1; id <= 18; ++id) {
    SCOPED_TRACE(id);
    const Both b = draw(fmt::format("infinite-llm-log-mix-{}", id));
    const double range = kRanges[(id - 1) % 6];
    const double is_long = kLong[(id - 1) / 6];
    const auto expect_above = [&](double context, double share) {
      EXPECT_NEAR(b.total.above(static_cast<int64_t>(context)), share,
                  4 * std::sqrt(share * (1 - share) / kLengthDraws));
    };
    expect_above(range, is_long);
    expect_above(1.5 * range, is_long / 2);
    expect_above(std::sqrt(range), is_long + (1 - is_long) / 2);
    expect_above(std::pow(range, .75), is_long + (1 - is_long) / 4);
    b.total.expect_mean((1 - is_long) * (range - 1) / std::log(range) + is_long * 1.5 * range, .03);
    EXPECT_LE(b.total.sorted.back(), 2 * range);
  }
}

// A context of c tokens has an output of 1 to c / 2, evenly: c / 4 in the mean, and above c / 4 for half of
// them.
TEST(Workloads, LongOutputsAreUpToHalfOfTheContext) {
  const Both mix = draw("infinite-llm-mix-7"), b = draw("infinite-llm-long-outputs-7");
  EXPECT_EQ(b.total.sorted, mix.total.sorted) << "the same contexts";
  b.output.expect_mean(b.total.mean / 4, .02);
  const Workload w = find_workload("infinite-llm-long-outputs-7").value();
  int above = 0;
  constexpr int kDraws = 4000;
  for (int i = 0; i < kDraws; ++i) {
    const Lengths l = w.draw(1, i);
    EXPECT_GE(l.prompt, l.output);
    above += 4 * l.output > l.prompt + l.output;
  }
  EXPECT_NEAR(above, kDraws / 2, 4 * std::sqrt(kDraws / 4.0));
}

TEST(Workloads, FixedLengthsAreFixed) {
  const Result<Workload> w = find_workload("layerkv-fixed:16384");
  ASSERT_TRUE(w.ok());
  EXPECT_EQ(w->draw(1, 2), (Lengths{16384, 512}));
  EXPECT_EQ(find_workload("layerkv-fixed:1")->draw(3, 4), (Lengths{1, 512}));
}

TEST(Workloads, DependOnSeedAndNumberAlone) {
  for (const char* name :
       {"sharegpt", "alpaca", "bookcorpus", "humaneval", "longbench", "wikitext", "arxiv", "bookcorpus-long",
        "leval", "infinite-llm-mix-7", "infinite-llm-log-mix-7", "infinite-llm-long-outputs-7"}) {
    SCOPED_TRACE(name);
    const Workload w = find_workload(name).value();
    const Lengths a = w.draw(1, 5);
    w.draw(1, 4);
    EXPECT_EQ(find_workload(name)->draw(1, 5), a);
    bool differs = false;
    for (uint64_t seed = 2; seed < 8; ++seed) differs |= w.draw(seed, 5) != a;
    EXPECT_TRUE(differs);
    EXPECT_FALSE(w.source.empty() || w.matched.empty() || w.assumed.empty());
    EXPECT_EQ(w.name, name);
  }
}

TEST(Workloads, UnknownNamesListWhatThereIs) {
  for (const char* name :
       {"", "sonnet", "infinite-llm-mix-0", "infinite-llm-mix-19", "infinite-llm-mix-1x", "infinite-llm-mix-",
        "layerkv-fixed:", "layerkv-fixed:0", "layerkv-fixed:-1", "layerkv-fixed:10000001"}) {
    const auto w = find_workload(name);
    ASSERT_FALSE(w.ok()) << name;
    EXPECT_EQ(w.status().code(), ErrorCode::kNotFound);
    for (const std::string& known : workload_names()) EXPECT_THAT(w.status().message(), HasSubstr(known));
    EXPECT_EQ(w.status().message().find('\n'), std::string::npos);
  }
}

TEST(Workloads, ScaleInADataset) {
  BenchOptions o;
  o.dataset_name = "leval";
  o.num_prompts = 20;
  const auto whole = Dataset::open(o);
  o.length_scale = 0.1;
  const auto tenth = Dataset::open(o);
  ASSERT_TRUE(whole.ok() && tenth.ok());
  const auto a = whole->requests({1, 3, 0}), b = tenth->requests({1, 3, 0});
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(b[i].lengths, scale_lengths(a[i].lengths, 0.1));
    EXPECT_EQ(b[i].arrival, a[i].arrival);
  }
  const auto words = tenth->prompts({1, 3, 0});
  EXPECT_EQ(words[4].words, b[4].lengths.prompt);
  EXPECT_EQ(words[4].max_tokens, b[4].lengths.output);
}

}  // namespace
}  // namespace kvasir
