// Requests with bounds of their own: which request gets which, and how they are counted and sent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "apps/bench/attainment.h"
#include "apps/bench/config.h"
#include "apps/bench/dataset.h"
#include "apps/bench/report.h"
#include "apps/bench/result_file.h"
#include "bench_numbers.h"

namespace kvasir {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;
using Key = Goal::Key;

RequestRecord completed(Nanos ttft, std::vector<Nanos> gaps, std::vector<Goal> own) {
  RequestRecord r;
  r.state = RequestRecord::State::kCompleted;
  r.first = r.last = ttft;
  for (Nanos gap : gaps) r.last += gap;
  r.gaps = std::move(gaps);
  r.output_tokens = static_cast<int64_t>(r.gaps.size()) + 1;
  r.own = std::move(own);
  return r;
}

BenchOptions with_classes(std::vector<std::string> classes) {
  BenchOptions o;
  o.dataset_name = "sharegpt";
  o.slo_classes = std::move(classes);
  return o;
}

TEST(SloClasses, ShareTheRequests) {
  BenchOptions o = with_classes({"chat:0.7,ttft:500,max_tbt:100", "batch:0.2,e2el:60000", "free:0.1"});
  o.num_prompts = 20'000;
  const auto config = check_load_options(o);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_THAT(config->goals, ElementsAre(Goal{Key::kTtft, kOwnBound}, Goal{Key::kMaxTbt, kOwnBound},
                                         Goal{Key::kE2el, kOwnBound}));
  const auto dataset = Dataset::open(o, Dataset::Use::kLengths);
  ASSERT_TRUE(dataset.ok()) << dataset.status().message();
  std::vector<double> share(3);
  const auto requests = dataset->requests({1, 5, 0});
  for (const RequestSpec& r : requests) {
    share.at(r.slo_class) += 1.0 / 20'000;
    EXPECT_EQ(r.own, config->classes[r.slo_class].goals);
  }
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(share[i], *config->classes[i].share, .014) << i;
  // At every rate a request has the class that it has at another; with another seed it need not.
  const auto again = dataset->requests({2, 5, 1}), other = dataset->requests({1, 6, 0});
  size_t differ = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(again[i].slo_class, requests[i].slo_class);
    differ += other[i].slo_class != requests[i].slo_class;
  }
  EXPECT_GT(differ, 5'000u);
  EXPECT_EQ(dataset->requests({1, 5, 0})[17].own, requests[17].own);
}

TEST(SloClasses, AreSentAndCountedByTheRequest) {
  BenchOptions o = with_classes({"chat:0.5,ttft:500,max_tbt:100,p99_tbt:80.5", "batch:0.5,e2el:60000"});
  o.num_prompts = 40;
  const auto dataset = Dataset::open(o);
  ASSERT_TRUE(dataset.ok());
  int chats = 0;
  for (const Prompt& p : dataset->prompts({1, 5, 0})) {
    const Json body = Json::parse(completion_body({"m"}, p));
    if (p.own.size() == 3) {
      ++chats;
      EXPECT_EQ(body["slo"], Json::parse(R"({"ttft_ms": 500, "tbt_ms": 81})"));
    } else {
      EXPECT_EQ(body["slo"], Json::parse(R"({"e2el_ms": 60000})"));
    }
  }
  EXPECT_GT(chats, 5);
  EXPECT_LT(chats, 35);
}

TEST(SloClasses, APriorityIsSentWithTheRequestsOfItsClass) {
  BenchOptions o = with_classes({"urgent:0.5,priority:-2,ttft:500", "other:0.5"});
  o.num_prompts = 40;
  const auto dataset = Dataset::open(o);
  ASSERT_TRUE(dataset.ok()) << dataset.status().message();
  for (const Prompt& p : dataset->prompts({1, 5, 0})) {
    const Json body = Json::parse(completion_body({"m"}, p));
    EXPECT_EQ(p.priority, p.own.empty() ? 0 : -2);
    EXPECT_EQ(body.value("priority", 0), p.priority);
    EXPECT_EQ(body.contains("priority"), !p.own.empty());
  }
  for (const char* wrong : {"a:1,priority:", "a:1,priority:x", "a:1,priority:0.5", "a:1,priority:1e9"}) {
    EXPECT_THAT(parse_slo_classes({wrong}).status().message(), HasSubstr("a priority is a whole number"))
        << wrong;
  }
}

TEST(SloClasses, AttainmentGoesByTheRequestsOwnBounds) {
  BenchOptions o = with_classes({"chat:0.5,ttft:100,max_tbt:20", "batch:0.4,e2el:1000", "free:0.1"});
  const BenchConfig config = check_options(o).value();
  const std::vector<Goal> chat = config.classes[0].goals, batch = config.classes[1].goals;
  LoadOutcome load;
  load.duration = kNanosPerSecond;
  load.records = {completed(100 * kMs, {20 * kMs}, chat),   completed(101 * kMs, {5 * kMs}, chat),
                  completed(50 * kMs, {21 * kMs}, chat),    completed(900 * kMs, {100 * kMs}, batch),
                  completed(900 * kMs, {101 * kMs}, batch), completed(9000 * kMs, {900 * kMs}, {})};
  load.records.push_back(load.records[0]);
  load.records.back().state = RequestRecord::State::kFailed;
  const Summary s = summarise(load, config);
  ASSERT_EQ(config.bounds.size(), 3u);  // ttft, max_tbt, e2el
  EXPECT_THAT(s.attained, ElementsAre(5, 5, 5));
  EXPECT_EQ(s.good, 3);  // the first chat, the first batch, and the one that asks nothing
  const std::string block = printed_block({kInf, {s}}, config);
  EXPECT_THAT(block, HasSubstr("TTFT <= its own bound (%):               71.43"));
  EXPECT_THAT(block, HasSubstr("All of the goodput's bounds (%):         42.86"));
  const Json json = Json::parse(result_json({{{kInf, 0, 0}, s, curves_of(load), load}}, config, "m", 0));
  EXPECT_EQ(json["goodput_bounds_ms"], Json::parse(R"({"ttft": "own", "max_tbt": "own", "e2el": "own"})"));
  EXPECT_EQ(json["slo_classes"][1],
            Json::parse(R"({"name": "batch", "share": 0.4, "bounds_ms": {"e2el": 1000.0}})"));
  EXPECT_NEAR(json["attainment_ttft"].get<double>(), 500.0 / 7, 1e-9);
}

class ClassTrace : public ::testing::Test {
 protected:
  ClassTrace() {
    std::ofstream(path_) << "arrival,prompt,output,class\n0,1,1,chat\n1,2,2,batch\n2,3,3,chat\n";
    options_.dataset_name = "trace";
    options_.dataset_path = path_;
  }
  ~ClassTrace() override { std::filesystem::remove(path_); }
  const std::filesystem::path path_ =
      std::filesystem::temp_directory_path() / ("kvasir_class_trace_" + std::to_string(::getpid()));
  BenchOptions options_;
};

TEST_F(ClassTrace, ItsColumnSaysTheClass) {
  options_.slo_classes = {"batch,e2el:9", "chat,ttft:5"};  // in another order than the file's
  const auto dataset = Dataset::open(options_);
  ASSERT_TRUE(dataset.ok()) << dataset.status().message();
  const auto requests = dataset->requests({kInf, 0, 0});
  EXPECT_EQ(requests[0].slo_class, 1u);
  EXPECT_THAT(requests[0].own, ElementsAre(Goal{Key::kTtft, 5}));
  EXPECT_THAT(requests[1].own, ElementsAre(Goal{Key::kE2el, 9}));
  EXPECT_EQ(requests[2].slo_class, 1u);
}

TEST_F(ClassTrace, AClassWithoutBoundsIsNamedByItsLine) {
  options_.slo_classes = {"chat,ttft:5"};
  const auto dataset = Dataset::open(options_);
  ASSERT_FALSE(dataset.ok());
  EXPECT_THAT(dataset.status().message(), HasSubstr(":3: the class 'batch' is none of --slo-class"));
  options_.slo_classes.clear();
  const auto plain = Dataset::open(options_);
  ASSERT_TRUE(plain.ok());
  EXPECT_TRUE(plain->requests({kInf, 0, 0})[0].own.empty());
}

TEST(RelativeSlo, IsADrawTimesTheReferenceAndTheChunks) {
  BenchOptions o;
  o.dataset_name = "layerkv-fixed:2049";
  o.num_prompts = 20'000;
  o.relative_slo = "0.5:2.5";
  auto dataset = Dataset::open(o, Dataset::Use::kLengths);
  ASSERT_TRUE(dataset.ok()) << dataset.status().message();
  // Before the reference is known nothing is asked.
  EXPECT_TRUE(dataset->requests({1, 5, 0})[0].own.empty());
  dataset->use_reference({400, 30, 2048});
  double mean = 0, least = kInf, most = 0;
  for (const RequestSpec& r : dataset->requests({1, 5, 0})) {
    ASSERT_EQ(r.own.size(), 2u);
    EXPECT_EQ(r.own[0].key, Key::kTtft);
    EXPECT_EQ(r.own[1].key, Key::kMaxTbt);
    const double factor = r.own[1].millis / 30;
    EXPECT_NEAR(r.own[0].millis, factor * 2 * 400, 1e-6);  // two chunks
    mean += factor / 20'000;
    least = std::min(least, factor);
    most = std::max(most, factor);
  }
  EXPECT_NEAR(mean, 1.5, 4 * (2 / std::sqrt(12.0)) / std::sqrt(20'000.0));
  EXPECT_GE(least, 0.5);
  EXPECT_LT(least, 0.51);
  EXPECT_LE(most, 2.5);
  EXPECT_GT(most, 2.49);
  EXPECT_EQ(dataset->requests({1, 5, 0})[7].own, dataset->requests({3, 5, 2})[7].own);
  EXPECT_NEAR(relative_goals({1, 1}, {400, 30, 2048}, 2048, 0, 0)[0].millis, 400, 1e-9);
}

TEST(RelativeSlo, OfBenchNeedsItsReference) {
  BenchOptions o;
  o.relative_slo = "0.5:2.5";
  EXPECT_TRUE(check_load_options(o).ok());
  const auto without = check_options(o);
  ASSERT_FALSE(without.ok());
  EXPECT_THAT(without.status().message(), HasSubstr("--relative-slo 0.5:2.5: needs --slo-reference"));
  o.slo_reference = "tbt:40, ttft:500,chunk:512";
  const auto config = check_options(o);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->reference->ttft_ms, 500);
  EXPECT_EQ(config->reference->tbt_ms, 40);
  EXPECT_EQ(config->reference->chunk_tokens, 512);
  o.num_prompts = 3;
  EXPECT_EQ(Dataset::open(o)->prompts({1, 0, 0})[2].own.size(), 2u);
}

TEST(SloClasses, MistakesAreNamedInOneLine) {
  struct Case {
    std::vector<std::string> classes;
    const char* relative;
    const char* reference;
    const char* words;
  };
  for (const Case& c :
       std::vector<Case>{{{""}, "", "", "--slo-class '': expected NAME:SHARE"},
                         {{":0.5,ttft:1"}, "", "", "expected NAME:SHARE"},
                         {{"a:x,ttft:1"}, "", "", "expected NAME:SHARE"},
                         {{"a:1.5,ttft:1"}, "", "", "expected NAME:SHARE"},
                         {{"a:-1,ttft:1"}, "", "", "expected NAME:SHARE"},
                         {{"ttft:1"}, "", "", "--slo-class 'ttft:1': the first part names the class"},
                         {{"a:1,ttft"}, "", "", "--slo-class: 'ttft' is not KEY:MILLISECONDS"},
                         {{"a:1,tbt:5"}, "", "", "--slo-class: 'tbt:5': say max_tbt:5 if every gap"},
                         {{"a:1,ttft:5,ttft:6"}, "", "", "'ttft' is given twice"},
                         {{"a:0.5,ttft:5", "a:0.5,ttft:6"}, "", "", "the class 'a' is given twice"},
                         {{"a:0.5,ttft:5", "b:0.4,ttft:6"}, "", "", "the shares add up to 0.9, not to 1"},
                         {{"a:0.5,ttft:5", "b,ttft:6"}, "", "", "either every class has a share, or none"},
                         {{"a:1,ttft:5"}, "1:2", "", "exclude each other"},
                         {{}, "2:1", "", "--relative-slo 2:1: expected LOW:HIGH"},
                         {{}, "0:1", "", "--relative-slo 0:1: expected LOW:HIGH"},
                         {{}, "1", "", "--relative-slo 1: expected LOW:HIGH"},
                         {{}, "", "ttft:1,tbt:2", "--slo-reference: needs --relative-slo"},
                         {{}, "1:2", "ttft:1", "--slo-reference 'ttft:1': expected both means"},
                         {{}, "1:2", "ttft:-1,tbt:2", "--slo-reference: 'ttft:-1' is none of"},
                         {{}, "1:2", "ttft:1,tbt:2,chunk:1.5", "--slo-reference: 'chunk:1.5' is none of"}}) {
    BenchOptions o;
    o.slo_classes = c.classes;
    o.relative_slo = c.relative;
    o.slo_reference = c.reference;
    const auto config = check_load_options(o);
    ASSERT_FALSE(config.ok()) << c.words;
    EXPECT_THAT(config.status().message(), HasSubstr(c.words));
    EXPECT_EQ(config.status().message().find('\n'), std::string::npos);
  }
  BenchOptions both;
  both.goodput = {"ttft:5"};
  both.slo_classes = {"a:1,ttft:5"};
  EXPECT_THAT(check_load_options(both).status().message(), HasSubstr("exclude each other"));
  const auto no_share = Dataset::open(with_classes({"chat,ttft:5"}));
  ASSERT_FALSE(no_share.ok());
  EXPECT_THAT(no_share.status().message(), HasSubstr("--slo-class chat: needs a share, as chat:0.5"));
}

TEST(Goals, AsServersTakeThem) {
  EXPECT_EQ(slo_of({{Key::kTtft, 0.2}, {Key::kTpot, 12.5}, {Key::kMaxTbt, 90}, {Key::kP99Tbt, 80}}),
            (Slo{1, 13, 80, 0}));
  EXPECT_EQ(slo_of({{Key::kE2el, 1e12}}).e2el_ms, kMaxSloMillis);
  EXPECT_FALSE(slo_of({}).any());
}

}  // namespace
}  // namespace kvasir
