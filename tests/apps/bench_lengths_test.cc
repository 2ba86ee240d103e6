// Lengths, traces and ShareGPT files: what is drawn, what is read, and which mistakes are named how.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <sstream>

#include "apps/bench/arrivals.h"
#include "apps/bench/dataset.h"
#include "apps/bench/lengths.h"
#include "apps/bench/sharegpt_file.h"
#include "apps/bench/trace_file.h"
#include "apps/bench/workloads.h"
#include "bench_numbers.h"

namespace kvasir {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Result<Trace> trace(const std::string& text) {
  std::istringstream in(text);
  return parse_trace(in, "t.csv");
}

Result<std::vector<Prompt>> sharegpt(const std::string& text) {
  std::istringstream in(text);
  return parse_sharegpt(in, "s.json");
}

Lengths sharegpt_draw(uint64_t seed, int64_t number) {
  return find_workload("sharegpt")->draw(seed, number);
}

TEST(Lengths, DependOnSeedAndNumberAlone) {
  const Lengths a = sharegpt_draw(1, 5);
  sharegpt_draw(1, 4);
  const Lengths b = sharegpt_draw(1, 5);
  EXPECT_EQ(a.prompt, b.prompt);
  EXPECT_EQ(a.output, b.output);
  EXPECT_NE(a.prompt, sharegpt_draw(2, 5).prompt);
}

TEST(Lengths, ScalesRoundAndAreAtLeastOne) {
  EXPECT_EQ(scale_length(100, 0.25), 25);
  EXPECT_EQ(scale_length(10, 0.26), 3);
  EXPECT_EQ(scale_length(3, 0.01), 1);
}

TEST(Trace, BothFormsOfTheHeaderAreTaken) {
  const auto a = trace("arrival,prompt,output\n0.5,10,20\n\n0.75,30,40\r\n");
  ASSERT_TRUE(a.ok()) << a.status().message();
  ASSERT_EQ(a->rows.size(), 2u);
  EXPECT_TRUE(a->has_arrivals);
  EXPECT_TRUE(a->classes.empty());
  EXPECT_EQ(a->rows[1].arrival_s, 0.75);
  EXPECT_EQ(a->rows[1].lengths.prompt, 30);
  EXPECT_EQ(a->rows[1].lengths.output, 40);
  const auto b = trace("\xef\xbb\xbfoutput_tokens,x,\"prompt_tokens\",arrival_s\n1,9,2,3e1\n");
  ASSERT_TRUE(b.ok()) << b.status().message();
  EXPECT_EQ(b->rows[0].arrival_s, 30);
  EXPECT_EQ(b->rows[0].lengths.prompt, 2);
  EXPECT_EQ(b->rows[0].lengths.output, 1);
}

TEST(Trace, AMistakeIsNamedByItsLine) {
  const std::string head = "arrival,prompt,output\n";
  for (const auto& [text, words] : std::vector<std::pair<std::string, std::string>>{
           {"", "t.csv: the file is empty"},
           {head, "t.csv: no requests"},
           {"arrival,prompt\n", "t.csv:1: no column 'output'"},
           {head + "1,2,3\nx,2,3\n", "t.csv:3: the arrival"},
           {head + "nan,2,3\n", "t.csv:2: the arrival"},
           {head + "1,2\n", "t.csv:2: the output is missing"},
           {head + "0,2,3\n1,,3\n", "t.csv:3: the prompt is missing"},
           {head + ",2,3\n", "t.csv:2: the arrival is missing"},
           {head + "-1,2,3\n", "t.csv:2: the arrival must be a number of seconds from 0 to 1e+09, not '-1'"},
           {head + "1,-2,3\n",
            "t.csv:2: the prompt must be a whole number of 1 to 10000000 tokens, not '-2'"},
           {"arrival,prompt,output,class\n1,2,3,\n", "t.csv:2: the class is missing"},
           {"class,prompt,output\na,2,3\nb,x,3\n", "t.csv:3: the prompt"},
           {head + "1,0,2\n", "t.csv:2: the prompt"},
           {head + "1,1.5,2\n", "t.csv:2: the prompt"},
           {head + "\n5,1,1\n4,1,1\n", "t.csv:4: the arrival is before"}}) {
    const auto result = trace(text);
    ASSERT_FALSE(result.ok()) << text;
    EXPECT_THAT(result.status().message(), HasSubstr(words));
    EXPECT_EQ(result.status().message().find('\n'), std::string::npos);
  }
}

TEST(Trace, ArrivalsAndClassesNeedNotBeThere) {
  const auto t = trace("prompt,class,output\n10,chat,20\n30,batch,40\n5,chat,6\n");
  ASSERT_TRUE(t.ok()) << t.status().message();
  EXPECT_FALSE(t->has_arrivals);
  ASSERT_EQ(t->classes.size(), 2u);
  EXPECT_EQ(t->classes[1].name, "batch");
  EXPECT_EQ(t->classes[1].line, 3);
  EXPECT_EQ(t->rows[1].slo_class, 1u);
  EXPECT_EQ(t->rows[2].slo_class, 0u);
  EXPECT_EQ(t->rows[2].lengths, (Lengths{5, 6}));
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

TEST(SharedPrefixes, AreTheFirstWordsOfSeveralPrompts) {
  BenchOptions o;
  o.random_input_len = 8;
  o.num_prompts = 40;
  o.shared_prefix_len = 12;
  o.num_shared_prefixes = 3;
  const auto dataset = Dataset::open(o);
  ASSERT_TRUE(dataset.ok()) << dataset.status().message();
  const std::vector<Prompt> prompts = dataset->prompts({1, 5, 0});
  std::map<std::string, int> prefixes;
  std::set<std::string> whole;
  for (const Prompt& p : prompts) {
    EXPECT_EQ(p.words, 20);
    EXPECT_EQ(count_words(p.text), 20);
    size_t end = 0;
    for (int word = 0; word < 12; ++word) end = p.text.find(' ', end) + 1;
    ++prefixes[p.text.substr(0, end)];
    whole.insert(p.text);
  }
  EXPECT_EQ(prefixes.size(), 3u);
  EXPECT_EQ(whole.size(), 40u);
}

TEST_F(DatasetFile, LengthsWithoutArrivalsNeedARate) {
  write("prompt,output\n10,1\n20,2\n30,3\n40,4\n");
  BenchOptions o;
  o.dataset_name = "trace";
  o.dataset_path = path_;
  const auto refused = Dataset::open(o);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr(":1: no column 'arrival' (or 'arrival_s'); without it"));
  o.request_rate = "2";
  o.num_prompts = 6;  // more than the file has: it begins again
  const auto dataset = Dataset::open(o);
  ASSERT_TRUE(dataset.ok()) << dataset.status().message();
  const auto lengths = [&](uint64_t seed) {
    std::vector<int64_t> out;
    for (const RequestSpec& r : dataset->requests({2, seed, 0})) {
      EXPECT_EQ(r.lengths.prompt, 10 * r.lengths.output);
      out.push_back(r.lengths.prompt);
    }
    return out;
  };
  const std::vector<int64_t> first = lengths(1);
  EXPECT_EQ(first, lengths(1));
  EXPECT_THAT(std::vector<int64_t>(first.begin(), first.begin() + 4),
              ::testing::UnorderedElementsAre(10, 20, 30, 40));
  EXPECT_EQ(first[4], first[0]);
  bool shuffled = false;
  for (uint64_t seed = 2; seed < 6; ++seed) shuffled |= lengths(seed) != first;
  EXPECT_TRUE(shuffled);
  EXPECT_EQ(dataset->arrivals({2, 1, 0}).back(), 3 * kNanosPerSecond);
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
  for (const char* name : {"random", "sharegpt", "humaneval"}) {
    BenchOptions o;
    o.dataset_name = name;
    o.num_prompts = 5;
    o.random_range_ratio = 0.5;
    const auto dataset = Dataset::open(o);
    ASSERT_TRUE(dataset.ok());
    const auto a = dataset->prompts({1, 3, 0});
    const auto b = dataset->prompts({2, 3, 1});
    const auto again = dataset->prompts({1, 3, 0});
    const auto specs = dataset->requests({2, 3, 1});
    EXPECT_EQ(specs.back().arrival, from_seconds(2.5));
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(a[i].words, b[i].words);
      EXPECT_EQ(specs[i].lengths, (Lengths{a[i].words, a[i].max_tokens}));
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
  // Nothing is drawn of those that have no texts.
  const auto lengths = Dataset::open(o, Dataset::Use::kLengths);
  ASSERT_TRUE(lengths.ok()) << lengths.status().message();
  EXPECT_EQ(lengths->requests({kInf, 0, 0}).back().lengths.prompt, 1'000'000);
}

}  // namespace
}  // namespace kvasir
