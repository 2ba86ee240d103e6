// Lengths, traces and ShareGPT files: what is drawn, what is read, and which mistakes are named how.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "bench/arrivals.h"
#include "bench/dataset.h"
#include "bench/lengths.h"
#include "bench/sharegpt_file.h"

namespace kvasir {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kInf = std::numeric_limits<double>::infinity();

Result<std::vector<TraceRow>> trace(const std::string& text) {
  std::istringstream in(text);
  return parse_trace(in, "t.csv");
}

Result<std::vector<Prompt>> sharegpt(const std::string& text) {
  std::istringstream in(text);
  return parse_sharegpt(in, "s.json");
}

TEST(Lengths, MeansAreThoseOfTheTable) {
  // The standard errors of 40,000 draws are about 1 (prompt, deviation 210) and 1.2 (output, 240).
  double prompts = 0;
  double outputs = 0;
  constexpr int64_t kDraws = 40'000;
  for (int64_t i = 0; i < kDraws; ++i) {
    const Lengths l = sharegpt_lengths(7, i);
    ASSERT_GE(l.prompt, 16);
    ASSERT_GE(l.output, 19);
    ASSERT_LE(l.output, 991);
    ASSERT_LE(l.prompt + l.output, 2048);
    prompts += static_cast<double>(l.prompt);
    outputs += static_cast<double>(l.output);
  }
  EXPECT_NEAR(prompts / kDraws, 161.31, 4);
  EXPECT_NEAR(outputs / kDraws, 337.99, 4.5);
}

TEST(Lengths, DependOnSeedAndNumberAlone) {
  const Lengths a = sharegpt_lengths(1, 5);
  sharegpt_lengths(1, 4);
  const Lengths b = sharegpt_lengths(1, 5);
  EXPECT_EQ(a.prompt, b.prompt);
  EXPECT_EQ(a.output, b.output);
  EXPECT_NE(a.prompt, sharegpt_lengths(2, 5).prompt);
}

TEST(Lengths, ScalesRoundAndAreAtLeastOne) {
  EXPECT_EQ(scale_length(100, 0.25), 25);
  EXPECT_EQ(scale_length(10, 0.26), 3);
  EXPECT_EQ(scale_length(3, 0.01), 1);
}

TEST(Trace, BothFormsOfTheHeaderAreTaken) {
  const auto a = trace("arrival,prompt,output\n0.5,10,20\n\n0.75,30,40\r\n");
  ASSERT_TRUE(a.ok()) << a.status().message();
  ASSERT_EQ(a->size(), 2u);
  EXPECT_EQ((*a)[1].arrival_s, 0.75);
  EXPECT_EQ((*a)[1].lengths.prompt, 30);
  EXPECT_EQ((*a)[1].lengths.output, 40);
  const auto b = trace("\xef\xbb\xbfoutput_tokens,x,\"prompt_tokens\",arrival_s\n1,9,2,3e1\n");
  ASSERT_TRUE(b.ok()) << b.status().message();
  EXPECT_EQ((*b)[0].arrival_s, 30);
  EXPECT_EQ((*b)[0].lengths.prompt, 2);
  EXPECT_EQ((*b)[0].lengths.output, 1);
}

TEST(Trace, AMistakeIsNamedByItsLine) {
  const std::string head = "arrival,prompt,output\n";
  for (const auto& [text, words] : std::vector<std::pair<std::string, std::string>>{
           {"", "t.csv: the file is empty"},
           {head, "t.csv: no requests"},
           {"arrival,prompt\n", "t.csv:1: no column 'output'"},
           {head + "1,2,3\nx,2,3\n", "t.csv:3: the arrival"},
           {head + "nan,2,3\n", "t.csv:2: the arrival"},
           {head + "1,2\n", "t.csv:2: the output"},
           {head + "1,0,2\n", "t.csv:2: the prompt"},
           {head + "1,1.5,2\n", "t.csv:2: the prompt"},
           {head + "\n5,1,1\n4,1,1\n", "t.csv:4: the arrival is before"}}) {
    const auto result = trace(text);
    ASSERT_FALSE(result.ok()) << text;
    EXPECT_THAT(result.status().message(), HasSubstr(words));
    EXPECT_EQ(result.status().message().find('\n'), std::string::npos);
  }
}

TEST(Trace, ArrivalsAreRelativeAndStretchToARate) {
  EXPECT_THAT(stretch_arrivals({10, 11, 14}, kInf), ElementsAre(0, kNanosPerSecond, 4 * kNanosPerSecond));
  // Three requests at 1.5 per second: the last is at 2 s, so that times are halved.
  EXPECT_THAT(stretch_arrivals({10, 11, 14}, 1.5), ElementsAre(0, kNanosPerSecond / 2, 2 * kNanosPerSecond));
  EXPECT_THAT(stretch_arrivals({3, 3}, 1), ElementsAre(0, 0));
  EXPECT_TRUE(stretch_arrivals({}, 1).empty());
}

TEST(ShareGpt, FirstTurnsAreTaken) {
  const auto prompts = sharegpt(R"([
    {"conversations": [{"from": "human", "value": "what is this"}, {"from": "gpt", "value": "a  test\nof it"},
                       {"from": "human", "value": "more"}]},
    {"conversations": [{"from": "gpt", "value": "x"}, {"from": "human", "value": "y"}]},
    {"conversations": [{"from": "human", "value": "alone"}]},
    {"conversations": [{"from": "human", "value": "   "}, {"from": "gpt", "value": "y"}]},
    {"conversations": [{"from": "user", "value": "q"}, {"from": "assistant", "value": "r"}]}])");
  ASSERT_TRUE(prompts.ok()) << prompts.status().message();
  ASSERT_EQ(prompts->size(), 2u);
  EXPECT_EQ((*prompts)[0].text, "what is this");
  EXPECT_EQ((*prompts)[0].words, 3);
  EXPECT_EQ((*prompts)[0].max_tokens, 4);
  EXPECT_EQ((*prompts)[1].text, "q");
}

TEST(ShareGpt, AMistakeIsNamedByItsEntry) {
  for (const auto& [text, words] : std::vector<std::pair<std::string, std::string>>{
           {"{", "s.json: not a JSON list"},
           {"{}", "s.json: not a JSON list"},
           {"[]", "s.json: no conversation"},
           {"[3]", "s.json: entry 1: no \"conversations\""},
           {R"([{"conversations": []}, {"conversations": 1}])", "s.json: entry 2: no \"conversations\""},
           {R"([{"conversations": [{"from": "human", "value": "x"}, {"from": "gpt"}]}])",
            "entry 1: turn 2"}}) {
    const auto result = sharegpt(text);
    ASSERT_FALSE(result.ok()) << text;
    EXPECT_THAT(result.status().message(), HasSubstr(words));
  }
}

class DatasetFile : public ::testing::Test {
 protected:
  void write(const std::string& text) { std::ofstream(path_) << text; }
  ~DatasetFile() override { std::filesystem::remove(path_); }
  const std::filesystem::path path_ =
      std::filesystem::temp_directory_path() / ("kvasir_dataset_" + std::to_string(::getpid()));
};

TEST_F(DatasetFile, ATraceGivesLengthsAndArrivals) {
  write("arrival,prompt,output\n5,10,20\n6,30,40\n9,1,1\n");
  BenchOptions o;
  o.dataset_name = "trace";
  o.dataset_path = path_;
  o.length_scale = 0.5;
  const auto dataset = Dataset::open(o);
  ASSERT_TRUE(dataset.ok()) << dataset.status().message();
  EXPECT_EQ(dataset->num_prompts(), 3);
  const auto prompts = dataset->prompts({kInf, 0, 0});
  EXPECT_EQ(prompts[1].words, 15);
  EXPECT_EQ(prompts[1].max_tokens, 20);
  EXPECT_EQ(std::count(prompts[1].text.begin(), prompts[1].text.end(), ' '), 14);
  EXPECT_THAT(dataset->arrivals({kInf, 0, 0}), ElementsAre(0, kNanosPerSecond, 4 * kNanosPerSecond));
  o.num_prompts = 4;
  const auto too_many = Dataset::open(o);
  ASSERT_FALSE(too_many.ok());
  EXPECT_THAT(too_many.status().message(), HasSubstr("--num-prompts 4: the trace has 3 requests"));
}

TEST_F(DatasetFile, AShareGptFileIsShuffledByTheSeed) {
  std::string text = "[";
  for (int i = 0; i < 20; ++i) {
    text += (i > 0 ? "," : "") +
            fmt::format(
                R"({{"conversations":[{{"from":"human","value":"p{}"}},{{"from":"gpt","value":"a"}}]}})", i);
  }
  write(text + "]");
  BenchOptions o;
  o.dataset_name = "sharegpt";
  o.dataset_path = path_;
  o.num_prompts = 20;
  const auto dataset = Dataset::open(o);
  ASSERT_TRUE(dataset.ok()) << dataset.status().message();
  const auto texts = [&](uint64_t seed) {
    std::vector<std::string> out;
    for (const Prompt& p : dataset->prompts({kInf, seed, 0})) out.push_back(p.text);
    return out;
  };
  EXPECT_EQ(texts(1), texts(1));
  EXPECT_NE(texts(1), texts(2));
  EXPECT_THAT(texts(1), ::testing::UnorderedElementsAreArray(texts(2)));
}

TEST(Dataset, RatesShareLengthsButNotWords) {
  for (const char* name : {"random", "sharegpt"}) {
    BenchOptions o;
    o.dataset_name = name;
    o.num_prompts = 5;
    o.random_range_ratio = 0.5;
    const auto dataset = Dataset::open(o);
    ASSERT_TRUE(dataset.ok());
    const auto a = dataset->prompts({1, 3, 0});
    const auto b = dataset->prompts({2, 3, 1});
    const auto again = dataset->prompts({1, 3, 0});
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(a[i].words, b[i].words);
      EXPECT_EQ(a[i].max_tokens, b[i].max_tokens);
      EXPECT_NE(a[i].text, b[i].text);
      EXPECT_EQ(a[i].text, again[i].text);
    }
  }
}

TEST(Dataset, TooManyWordsAreRefused) {
  BenchOptions o;
  o.num_prompts = 10'000;
  o.random_input_len = 1'000'000;
  const auto dataset = Dataset::open(o);
  ASSERT_FALSE(dataset.ok());
  EXPECT_THAT(dataset.status().message(), HasSubstr("--num-prompts 10000: the prompts together are above"));
}

}  // namespace
}  // namespace kvasir
