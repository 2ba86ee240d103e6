// The summary, the printed block and the JSON, for a load small enough to work by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/bench/attainment.h"
#include "apps/bench/report.h"
#include "apps/bench/result_file.h"
#include "bench_numbers.h"

namespace kvasir {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

constexpr Nanos kStart = 5000 * kMs;

// Two that complete, one that fails, over two seconds.
//   A: sent at 0 ms, chunks at 100, 200, 400: TTFT 100, gaps 100 and 200, E2EL 400; 4 tokens: TPOT 300 / 3 =
//   100. B: sent at 1000 ms, one chunk at 1050: TTFT 50, E2EL 50; 1 token: no TPOT.
LoadOutcome small_load() {
  LoadOutcome o;
  o.start = kStart;
  o.duration = 2000 * kMs;
  o.max_concurrent = 2;
  o.records.resize(3);
  RequestRecord& a = o.records[0];
  a.state = RequestRecord::State::kCompleted;
  a.start = kStart;
  a.first = kStart + 100 * kMs;
  a.last = kStart + 400 * kMs;
  a.gaps = {100 * kMs, 200 * kMs};
  a.content_chunks = 3;
  a.prompt_tokens = 10;
  a.output_tokens = 4;
  a.usage_known = true;
  a.text = "one two";
  RequestRecord& b = o.records[1];
  b.state = RequestRecord::State::kCompleted;
  b.start = kStart + 1000 * kMs;
  b.first = b.last = kStart + 1050 * kMs;
  b.content_chunks = 1;
  b.prompt_tokens = 20;
  b.output_tokens = 1;
  b.usage_known = true;
  RequestRecord& c = o.records[2];
  c.state = RequestRecord::State::kFailed;
  c.start = kStart + 1500 * kMs;
  c.error = "HTTP 503: queue full";
  return o;
}

BenchConfig config_of(BenchOptions options) {
  Result<BenchConfig> config = check_options(options);
  EXPECT_TRUE(config.ok()) << config.status().message();
  return std::move(config).value();
}

RunResult run_of(const LoadOutcome& load, const BenchConfig& config) {
  return {{config.rates.front(), config.options.seed, 0}, summarise(load, config), curves_of(load), load};
}

std::string block_of(const LoadOutcome& load, const BenchConfig& config) {
  return printed_block({config.rates.front(), {summarise(load, config)}}, config);
}

TEST(Report, SummaryByHand) {
  const Summary s = summarise(small_load(), config_of({}));
  EXPECT_EQ(s.completed, 2);
  EXPECT_EQ(s.failed, 1);
  EXPECT_EQ(s.unfinished, 0);
  EXPECT_EQ(s.total_input_tokens, 30);
  EXPECT_EQ(s.total_output_tokens, 5);
  EXPECT_EQ(s.without_usage, 0);
  ASSERT_EQ(s.metrics.size(), 4u);
  EXPECT_DOUBLE_EQ(s.metrics[0].mean, 75);  // TTFT of 100 and 50
  EXPECT_DOUBLE_EQ(s.metrics[0].stddev, 25);
  EXPECT_DOUBLE_EQ(s.metrics[0].percentiles[1], 95);   // p90: rank 0.9
  EXPECT_DOUBLE_EQ(s.metrics[1].mean, 100);            // TPOT of A alone
  EXPECT_DOUBLE_EQ(s.metrics[2].mean, 150);            // ITL of 100 and 200
  EXPECT_DOUBLE_EQ(s.metrics[2].percentiles[2], 199);  // p99: rank 0.99
  EXPECT_DOUBLE_EQ(s.metrics[3].mean, 225);            // E2EL of 400 and 50
}

TEST(Report, GoalsAreMetAtTheBoundAndNotAbove) {
  const LoadOutcome load = small_load();
  const RequestRecord& a = load.records[0];
  const RequestRecord& b = load.records[1];
  const std::vector<std::pair<Goal::Key, double>> values = {{Goal::Key::kTtft, 100},
                                                            {Goal::Key::kTpot, 100},
                                                            {Goal::Key::kMaxTbt, 200},
                                                            {Goal::Key::kP99Tbt, 199},
                                                            {Goal::Key::kE2el, 400}};
  for (const auto& [key, value] : values) {
    EXPECT_TRUE(attains_all(a, {{key, value + 1e-9}}));
    EXPECT_FALSE(attains_all(a, {{key, value - 0.001}}));
  }
  EXPECT_TRUE(attains_all(b, {{Goal::Key::kTpot, 0}, {Goal::Key::kMaxTbt, 0}, {Goal::Key::kP99Tbt, 0}}));
  EXPECT_FALSE(attains_all(a, {{Goal::Key::kTtft, 100}, {Goal::Key::kE2el, 399}}));
  BenchOptions options;
  options.goodput = {"ttft:60"};
  EXPECT_EQ(summarise(load, config_of(options)).good, 1);
}

TEST(Report, BlockHasTheKnownLayout) {
  BenchOptions options;
  options.goodput = {"ttft:60"};
  options.percentile_metrics = "ttft,tpot";
  options.metric_percentiles = "99,99.9";
  options.request_rate = "1.5";
  options.max_concurrency = 8;
  const BenchConfig config = config_of(options);
  EXPECT_EQ(block_of(small_load(), config),
            "============ Serving Benchmark Result ============\n"
            "Successful requests:                     2         \n"
            "Failed requests:                         1         \n"
            "Unserved requests:                       1         \n"
            "Maximum request concurrency:             8         \n"
            "Request rate configured (RPS):           1.50      \n"
            "Benchmark duration (s):                  2.00      \n"
            "Total input tokens:                      30        \n"
            "Total generated tokens:                  5         \n"
            "Request throughput (req/s):              1.00      \n"
            "Request goodput (req/s):                 0.50      \n"
            "Output token throughput (tok/s):         2.50      \n"
            "Peak concurrent requests:                2         \n"
            "Total Token throughput (tok/s):          17.50     \n"
            "----------SLO Attainment (of submitted)-----------\n"
            "TTFT <= 60 ms (%):                       33.33     \n"
            "All of the goodput's bounds (%):         33.33     \n"
            "---------------Time to First Token----------------\n"
            "Mean TTFT (ms):                          75.00     \n"
            "Median TTFT (ms):                        75.00     \n"
            "P99 TTFT (ms):                           99.50     \n"
            "P99.9 TTFT (ms):                         99.95     \n"
            "-----Time per Output Token (excl. 1st token)------\n"
            "Mean TPOT (ms):                          100.00    \n"
            "Median TPOT (ms):                        100.00    \n"
            "P99 TPOT (ms):                           100.00    \n"
            "P99.9 TPOT (ms):                         100.00    \n"
            "==================================================\n"
            "Token counts: the server's usage, for all 2 requests.\n"
            "Failures:\n"
            "  1 x HTTP 503: queue full\n");
}

TEST(Report, EachErrorIsPrintedOnceTheCommonOnesFirst) {
  LoadOutcome load;
  load.duration = kNanosPerSecond;
  const auto fail = [&](const std::string& message) {
    RequestRecord record;
    record.state = RequestRecord::State::kFailed;
    record.error = message;
    load.records.push_back(record);
  };
  for (int i = 0; i < 7; ++i) fail("rare " + std::to_string(i));
  for (int i = 0; i < 40; ++i) fail("common");
  const BenchConfig config = config_of({});
  const std::string block = block_of(load, config);
  EXPECT_THAT(block, HasSubstr("Failures:\n  40 x common\n  1 x rare 0\n"));
  EXPECT_THAT(block, EndsWith("  1 x rare 3\n  and 3 other kinds\n"));
}

TEST(Report, MissingUsageAndAnInterruptAreSaid) {
  LoadOutcome load = small_load();
  load.interrupted = true;
  load.records[1].usage_known = false;
  load.records[2].state = RequestRecord::State::kSent;
  const BenchConfig config = config_of({});
  const std::string block = block_of(load, config);
  EXPECT_THAT(block, HasSubstr("Interrupted: 1 request had not ended."));
  EXPECT_THAT(block, HasSubstr("the server's usage for 1 request; 1 came without usage"));
  EXPECT_THAT(block, Not(HasSubstr("Failures")));
}

TEST(ResultJson, HasTheKnownKeysAndUnits) {
  BenchOptions options;
  options.goodput = {"ttft:60"};
  const BenchConfig config = config_of(options);
  const LoadOutcome load = small_load();
  const Json j = Json::parse(result_json({run_of(load, config)}, config, "org/m", 0));
  EXPECT_EQ(j["duration"], 2.0);
  EXPECT_EQ(j["completed"], 2);
  EXPECT_EQ(j["failed"], 1);
  EXPECT_EQ(j["total_input_tokens"], 30);
  EXPECT_EQ(j["total_output_tokens"], 5);
  EXPECT_EQ(j["request_throughput"], 1.0);
  EXPECT_EQ(j["request_goodput"], 0.5);
  EXPECT_EQ(j["output_throughput"], 2.5);
  EXPECT_EQ(j["total_token_throughput"], 17.5);
  EXPECT_EQ(j["request_rate"], "inf");
  EXPECT_EQ(j["model_id"], "org/m");
  for (const char* metric : {"ttft", "tpot", "itl", "e2el"}) {
    for (const char* statistic : {"mean", "median", "std", "p50", "p90", "p99"}) {
      EXPECT_TRUE(j[std::string(statistic) + "_" + metric + "_ms"].is_number_float())
          << metric << " " << statistic;
    }
  }
  EXPECT_EQ(j["mean_e2el_ms"], 225.0);
  EXPECT_FALSE(j.contains("ttfts"));
}

TEST(ResultJson, DetailsAreOneEntryPerRequestInSeconds) {
  BenchOptions options;
  options.save_result = options.save_detailed = true;
  const BenchConfig config = config_of(options);
  LoadOutcome load = small_load();
  load.records.emplace_back();  // never sent
  load.records[2].error = "not UTF-8: \xff";
  const Json j = Json::parse(result_json({run_of(load, config)}, config, "m", 0));
  EXPECT_TRUE(j["request_goodput"].is_null());
  EXPECT_EQ(j["ttfts"], Json({0.1, 0.05, 0.0, 0.0}));
  EXPECT_EQ(j["latencies"], Json({0.4, 0.05, 0.0, 0.0}));
  EXPECT_EQ(j["itls"], Json::parse("[[0.1, 0.2], [], [], []]"));
  EXPECT_EQ(j["start_times"], Json({0.0, 1.0, 1.5, -1.0}));
  EXPECT_EQ(j["input_lens"], Json({10, 20, 0, 0}));
  EXPECT_EQ(j["output_lens"], Json({4, 1, 0, 0}));
  EXPECT_EQ(j["generated_texts"][0], "one two");
  EXPECT_EQ(j["errors"], Json({"", "", "not UTF-8: \xef\xbf\xbd", "interrupted"}));
}

TEST(ResultFile, IsNamedByTheLoadOrByTheUser) {
  BenchOptions options;
  options.save_result = true;
  options.request_rate = "2.5";
  options.max_concurrency = 4;
  options.result_dir = "some/dir";
  EXPECT_THAT(result_path(config_of(options), "org/tiny model", 0),
              HasSubstr("some/dir/openai-2.5qps-concurrency4-tiny_model-"));
  options.result_filename = "r.json";
  EXPECT_EQ(result_path(config_of(options), "m", 0), "some/dir/r.json");
}

TEST(ResultFile, MakesItsDirectoryAndSaysWhatItCannotWrite) {
  const std::filesystem::path root =
      std::filesystem::temp_directory_path() / ("kvasir_bench_report_" + std::to_string(::getpid()));
  const std::string path = root / "a" / "b" / "r.json";
  ASSERT_TRUE(write_text(path, "{}\n", "--result-dir").ok());
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_EQ(text.str(), "{}\n");
  const Status below_a_file = write_text(path + "/c/r.json", "{}", "--result-dir");
  ASSERT_FALSE(below_a_file.ok());
  EXPECT_EQ(below_a_file.code(), ErrorCode::kIo);
  const Status over_a_directory = write_text(root / "a", "{}", "--result-dir");
  ASSERT_FALSE(over_a_directory.ok());
  EXPECT_THAT(over_a_directory.message(), HasSubstr("cannot be written"));
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace kvasir
