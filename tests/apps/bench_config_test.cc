// The command line of `kvasir bench`, and what is refused with which words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "apps/bench/config.h"
#include "apps/bench/flags.h"

namespace kvasir {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

BenchOptions parse_flags(std::vector<std::string> arguments) {
  CLI::App app;
  BenchOptions options;
  add_bench_flags(app, options);
  std::reverse(arguments.begin(), arguments.end());
  app.parse(arguments);
  return options;
}

TEST(BenchFlags, DefaultsAreThoseOfTheConventions) {
  const BenchOptions o = parse_flags({});
  EXPECT_EQ(o.base_url, "http://127.0.0.1:8000");
  EXPECT_EQ(o.endpoint, "/v1/completions");
  EXPECT_TRUE(o.request_rate.empty());
  const auto config = check_options(o);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_THAT(config->metrics, ElementsAre(Metric::kTtft, Metric::kTpot, Metric::kItl, Metric::kE2el));
  EXPECT_THAT(config->percentile_names, ElementsAre("50", "90", "99"));
  EXPECT_EQ(config->models_path, "/v1/models");
  EXPECT_FALSE(config->chat);
}

TEST(BenchFlags, EveryFlagIsTaken) {
  const BenchOptions o = parse_flags({"--base-url",
                                      "http://h:1/x/",
                                      "--endpoint",
                                      "/v1/chat/completions",
                                      "--model",
                                      "m",
                                      "--api-key",
                                      "k",
                                      "--timeout",
                                      "2.5",
                                      "--dataset-name",
                                      "custom",
                                      "--dataset-path",
                                      "p",
                                      "--num-prompts",
                                      "5",
                                      "--random-input-len",
                                      "6",
                                      "--random-output-len",
                                      "7",
                                      "--random-range-ratio",
                                      "0.5",
                                      "--custom-output-len",
                                      "8",
                                      "--seed",
                                      "18446744073709551615",
                                      "--request-rate",
                                      "inf",
                                      "--burstiness",
                                      "0.5",
                                      "--max-concurrency",
                                      "9",
                                      "--num-warmups",
                                      "10",
                                      "--ignore-eos",
                                      "--temperature",
                                      "0.7",
                                      "--percentile-metrics",
                                      "itl,ttft",
                                      "--metric-percentiles",
                                      "99.9",
                                      "--goodput",
                                      "ttft:500",
                                      "p99_tbt:50.5",
                                      "--save-result",
                                      "--save-detailed",
                                      "--result-dir",
                                      "d",
                                      "--result-filename",
                                      "f"});
  const auto config = check_options(o);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->target.host, "h");
  EXPECT_EQ(config->target.port, "1");
  EXPECT_EQ(config->target.prefix, "/x");
  EXPECT_TRUE(config->chat);
  EXPECT_EQ(o.model, "m");
  EXPECT_EQ(o.api_key, "k");
  EXPECT_EQ(o.timeout_s, 2.5);
  EXPECT_EQ(o.num_prompts, 5);
  EXPECT_EQ(o.random_input_len, 6);
  EXPECT_EQ(o.random_output_len, 7);
  EXPECT_EQ(o.random_range_ratio, 0.5);
  EXPECT_EQ(o.custom_output_len, 8);
  EXPECT_EQ(o.seed, 18446744073709551615u);
  EXPECT_THAT(config->rates, ElementsAre(std::numeric_limits<double>::infinity()));
  EXPECT_EQ(o.burstiness, 0.5);
  EXPECT_EQ(o.max_concurrency, 9);
  EXPECT_EQ(o.num_warmups, 10);
  EXPECT_TRUE(o.ignore_eos);
  EXPECT_EQ(o.temperature, 0.7);
  EXPECT_THAT(config->metrics, ElementsAre(Metric::kItl, Metric::kTtft));
  EXPECT_THAT(config->percentile_names, ElementsAre("99.9"));
  ASSERT_EQ(config->goals.size(), 2u);
  EXPECT_EQ(config->goals[0].key, Goal::Key::kTtft);
  EXPECT_EQ(config->goals[0].millis, 500);
  EXPECT_EQ(config->goals[1].key, Goal::Key::kP99Tbt);
  EXPECT_EQ(config->goals[1].millis, 50.5);
  EXPECT_TRUE(o.save_result);
  EXPECT_TRUE(o.save_detailed);
  EXPECT_EQ(o.result_dir, "d");
  EXPECT_EQ(o.result_filename, "f");
}

TEST(BenchFlags, AWorkloadIsADatasetByAnotherName) {
  EXPECT_EQ(parse_flags({"--workload", "alpaca"}).dataset_name, "alpaca");
  EXPECT_EQ(parse_flags({"--dataset-name", "alpaca"}).dataset_name, "alpaca");
}

TEST(BenchFlags, TheLoadsPartsStandAlone) {
  CLI::App app;
  BenchOptions o;
  add_dataset_flags(app, o);
  add_load_flags(app, o);
  add_result_flags(app, o);
  std::vector<std::string> arguments = {"--workload",     "humaneval",
                                        "--request-rate", "0.5x:1.5x:0.5x",
                                        "--arrival-cv",   "2",
                                        "--slo-class",    "chat:0.7,ttft:500,max_tbt:100",
                                        "--slo-class",    "batch:0.3,e2el:9000",
                                        "--seeds",        "2"};
  std::reverse(arguments.begin(), arguments.end());
  app.parse(arguments);
  o.base_url = "none";  // no server is needed
  const auto config = check_load_options(o);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_THAT(config->rate_specs, ElementsAre(RateSpec{.5, true}, RateSpec{1, true}, RateSpec{1.5, true}));
  EXPECT_TRUE(config->rates.empty());
  ASSERT_EQ(config->classes.size(), 2u);
  EXPECT_EQ(config->classes[1].name, "batch");
  EXPECT_EQ(arrival_shape(o), 0.25);
  for (const char* flag : {"--base-url", "--temperature", "--num-warmups"}) {
    EXPECT_EQ(app.get_option_no_throw(flag), nullptr) << flag;
  }
}

TEST(BenchFlags, ABooleanCanBeTakenBack) {
  EXPECT_FALSE(parse_flags({"--ignore-eos", "--no-ignore-eos"}).ignore_eos);
}

struct Refusal {
  const char* words;
  std::function<void(BenchOptions&)> change;
};

TEST(BenchConfig, AMistakeIsRefusedByItsName) {
  const std::vector<Refusal> refusals = {
      {"https is not supported", [](BenchOptions& o) { o.base_url = "https://h"; }},
      {"--base-url", [](BenchOptions& o) { o.base_url = "127.0.0.1:8000"; }},
      {"--base-url", [](BenchOptions& o) { o.base_url = "http://h:99999"; }},
      {"--base-url", [](BenchOptions& o) { o.base_url = "http://h:1\r\nx: y"; }},
      {"--endpoint", [](BenchOptions& o) { o.endpoint = "/v1/embeddings"; }},
      {"--endpoint", [](BenchOptions& o) { o.endpoint = "v1/completions"; }},
      {"--endpoint", [](BenchOptions& o) { o.endpoint = "/v1 /completions"; }},
      {"--api-key", [](BenchOptions& o) { o.api_key = "key\n"; }},
      {"--dataset-name trace: --dataset-path", [](BenchOptions& o) { o.dataset_name = "trace"; }},
      {"--dataset-name sonnet: there are random, trace, custom, and the workloads sharegpt, alpaca",
       [](BenchOptions& o) { o.dataset_name = "sonnet"; }},
      {"--dataset-path x: needs --dataset-name sharegpt",
       [](BenchOptions& o) { o.dataset_name = "humaneval", o.dataset_path = "x"; }},
      {"--request-rate 0.5x: the capacity of a server is not known here",
       [](BenchOptions& o) { o.request_rate = "2,0.5x"; }},
      {"--request-rate 8:1:1: a range ascends", [](BenchOptions& o) { o.request_rate = "8:1:1"; }},
      {"--arrival-cv and --burstiness", [](BenchOptions& o) { o.arrival_cv = 2, o.burstiness = 0.5; }},
      {"--arrival-cv -1: expected", [](BenchOptions& o) { o.arrival_cv = -1; }},
      {"--arrival-cv nan: expected", [](BenchOptions& o) { o.arrival_cv = std::nan(""); }},
      {"--dataset-path", [](BenchOptions& o) { o.dataset_name = "custom"; }},
      {"--dataset-path", [](BenchOptions& o) { o.dataset_path = "x"; }},
      {"--num-prompts", [](BenchOptions& o) { o.num_prompts = -1; }},
      {"--random-input-len", [](BenchOptions& o) { o.random_input_len = 0; }},
      {"--length-scale 0", [](BenchOptions& o) { o.dataset_name = "sharegpt", o.length_scale = 0; }},
      {"--length-scale 2: needs", [](BenchOptions& o) { o.length_scale = 2; }},
      {"--shared-prefix-len -1: expected", [](BenchOptions& o) { o.shared_prefix_len = -1; }},
      {"--num-shared-prefixes 0: expected", [](BenchOptions& o) { o.num_shared_prefixes = 0; }},
      {"--shared-prefix-len 5: needs",
       [](BenchOptions& o) { o.dataset_name = "custom", o.dataset_path = "x", o.shared_prefix_len = 5; }},
      {"--length-scale 2: needs",
       [](BenchOptions& o) { o.dataset_name = "sharegpt", o.dataset_path = "x", o.length_scale = 2; }},
      {"--seeds 0", [](BenchOptions& o) { o.seeds = 0; }},
      {"--drain-timeout", [](BenchOptions& o) { o.drain_timeout_s = -1; }},
      {"--trim 0.5: expected", [](BenchOptions& o) { o.trim = 0.5; }},
      {"--trim nan: expected", [](BenchOptions& o) { o.trim = std::nan(""); }},
      {"--max-tokens 5: needs --force-output-lengths", [](BenchOptions& o) { o.max_tokens = 5; }},
      {"--slo: 'p99_tbt:5' is not KEY:MILLISECONDS", [](BenchOptions& o) { o.slo = {"p99_tbt:5"}; }},
      {"--slo: 'tbt:0.5': servers take whole milliseconds", [](BenchOptions& o) { o.slo = {"tbt:0.5"}; }},
      {"--slo: 'tbt:5.5': servers take whole milliseconds", [](BenchOptions& o) { o.slo = {"tbt:5.5"}; }},
      {"--request-rate 1e-300: expected", [](BenchOptions& o) { o.request_rate = "1e-300"; }},
      {"--slo: 'tbt' is given twice",
       [](BenchOptions& o) {
         o.slo = {"tbt:5", "tbt:6"};
       }},
      {"--compare: give --html FILE or --svg FOLDER", [](BenchOptions& o) { o.compare = {"a.json"}; }},
      {"--random-range-ratio", [](BenchOptions& o) { o.random_range_ratio = 1; }},
      {"--random-range-ratio", [](BenchOptions& o) { o.random_range_ratio = std::nan(""); }},
      {"--request-rate", [](BenchOptions& o) { o.request_rate = "1,0"; }},
      {"--burstiness", [](BenchOptions& o) { o.burstiness = 0; }},
      {"--max-concurrency", [](BenchOptions& o) { o.max_concurrency = -2; }},
      {"--timeout", [](BenchOptions& o) { o.timeout_s = 0; }},
      {"--temperature", [](BenchOptions& o) { o.temperature = -1; }},
      {"--percentile-metrics: 'tbt'", [](BenchOptions& o) { o.percentile_metrics = "ttft,tbt"; }},
      {"--metric-percentiles: '101'", [](BenchOptions& o) { o.metric_percentiles = "50,101"; }},
      {"--metric-percentiles: 'x'", [](BenchOptions& o) { o.metric_percentiles = "x"; }},
      {"--goodput: 'ttft'", [](BenchOptions& o) { o.goodput = {"ttft"}; }},
      {"--goodput: 'itl:5'", [](BenchOptions& o) { o.goodput = {"itl:5"}; }},
      {"--goodput: 'ttft:-1'", [](BenchOptions& o) { o.goodput = {"ttft:-1"}; }},
      {"given twice",
       [](BenchOptions& o) {
         o.goodput = {"ttft:1", "ttft:2"};
       }},
      {"--save-result", [](BenchOptions& o) { o.save_detailed = true; }},
  };
  for (const Refusal& refusal : refusals) {
    BenchOptions options;
    refusal.change(options);
    const auto config = check_options(options);
    ASSERT_FALSE(config.ok()) << refusal.words;
    EXPECT_THAT(config.status().message(), HasSubstr(refusal.words));
    EXPECT_EQ(config.status().message().find_first_of("\r\n"), std::string::npos);
  }
}

TEST(BenchConfig, UrlsAreTakenApart) {
  const auto check = [](const char* url, const char* host, const char* port, const char* prefix,
                        const char* authority) {
    const auto target = parse_base_url(url);
    ASSERT_TRUE(target.ok()) << url;
    EXPECT_EQ(target->host, host);
    EXPECT_EQ(target->port, port);
    EXPECT_EQ(target->prefix, prefix);
    EXPECT_EQ(target->authority(), authority);
  };
  check("http://host", "host", "80", "", "host:80");
  check("http://host:8000/", "host", "8000", "", "host:8000");
  check("http://host:8000/a/b//", "host", "8000", "/a/b", "host:8000");
  check("http://[::1]:8000", "::1", "8000", "", "[::1]:8000");
  check("http://[::1]", "::1", "80", "", "[::1]:80");
  for (const char* bad : {"", "http://", "http://:80", "ftp://h", "http://h:", "http://h:0", "http://h:x",
                          "http://[::1", "http://[::1]8", "http://u@h", "http://h?x", "http://::1"}) {
    EXPECT_FALSE(parse_base_url(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace kvasir
