// `kvasir bench` from options to exit code against a scripted server: what it sends, prints and saves.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/bench/bench.h"
#include "apps/bench/prompts.h"
#include "apps/fake_server.h"

namespace kvasir {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::json;

struct Printed {
  int code = 0;
  std::string out;
  std::string err;
};

Printed bench(const BenchOptions& options) {
  std::ostringstream out;
  std::ostringstream err;
  const int code = run_bench(options, out, err);
  return {code, out.str(), err.str()};
}

BenchOptions options_for(const FakeServer& server) {
  BenchOptions options;
  options.base_url = server.base_url();
  options.num_prompts = 6;
  options.random_input_len = 4;
  options.random_output_len = 3;
  options.timeout_s = 20;
  return options;
}

TEST(Bench, SendsWhatWasAsked) {
  std::mutex mutex;
  std::vector<FakeRequest> seen;
  FakeServer server([&](const FakeRequest& request, FakeConnection& c) {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      seen.push_back(request);
    }
    stream_plainly(c, 2);
  });
  BenchOptions options = options_for(server);
  options.base_url += "/behind/";
  options.endpoint = "/v1/chat/completions";
  options.api_key = "secret";
  options.ignore_eos = true;
  options.num_warmups = 2;
  const Printed printed = bench(options);
  ASSERT_EQ(printed.code, 0) << printed.err;
  ASSERT_EQ(seen.size(), 8u);
  for (const FakeRequest& request : seen) {
    EXPECT_EQ(request.path, "/behind/v1/chat/completions");
    EXPECT_EQ(request.authorization, "Bearer secret");
    const Json body = Json::parse(request.body);
    EXPECT_EQ(body["model"], "fake/tiny");
    EXPECT_EQ(body["max_tokens"], 3);
    EXPECT_EQ(body["ignore_eos"], true);
  }
  EXPECT_THAT(printed.out, StartsWith("============ Serving Benchmark Result ============\n"
                                      "Successful requests:                     6         \n"
                                      "Failed requests:                         0         \n"));
  EXPECT_THAT(printed.out, HasSubstr("Total input tokens:                      42        \n"));
  EXPECT_THAT(printed.out, HasSubstr("Total generated tokens:                  12        \n"));
  EXPECT_EQ(printed.err, "");
}

TEST(Bench, WarmUpsHavePromptsOfTheirOwn) {
  std::mutex mutex;
  std::vector<std::string> prompts;
  FakeServer server([&](const FakeRequest& request, FakeConnection& c) {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      prompts.push_back(Json::parse(request.body)["prompt"]);
    }
    stream_plainly(c, 1);
  });
  BenchOptions options = options_for(server);
  options.random_input_len = 20;
  options.num_warmups = 6;
  ASSERT_EQ(bench(options).code, 0);
  std::sort(prompts.begin(), prompts.end());
  EXPECT_EQ(prompts.size(), 12u);
  EXPECT_EQ(std::unique(prompts.begin(), prompts.end()), prompts.end());
}

TEST(Bench, SavesTheResult) {
  FakeServer server([](const FakeRequest&, FakeConnection& c) { stream_plainly(c, 3); });
  const std::filesystem::path root =
      std::filesystem::temp_directory_path() / ("kvasir_bench_load_" + std::to_string(::getpid()));
  BenchOptions options = options_for(server);
  options.save_result = options.save_detailed = true;
  options.result_dir = root;
  options.result_filename = "r.json";
  const Printed printed = bench(options);
  ASSERT_EQ(printed.code, 0) << printed.err;
  const Json j = Json::parse(std::ifstream(root / "r.json"));
  EXPECT_EQ(j["completed"], 6);
  EXPECT_EQ(j["num_prompts"], 6);
  EXPECT_EQ(j["ttfts"].size(), 6u);
  EXPECT_EQ(j["generated_texts"][5], " word word word");
  EXPECT_GT(j["mean_ttft_ms"], 0.0);
  std::filesystem::remove_all(root);
}

TEST(Bench, ACustomFileIsSentInOrderAndAgain) {
  std::mutex mutex;
  std::vector<std::pair<std::string, int64_t>> seen;
  FakeServer server([&](const FakeRequest& request, FakeConnection& c) {
    const Json body = Json::parse(request.body);
    {
      const std::lock_guard<std::mutex> lock(mutex);
      seen.emplace_back(body["prompt"], body["max_tokens"]);
    }
    stream_plainly(c, 1);
  });
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / ("kvasir_bench_custom_" + std::to_string(::getpid()));
  std::ofstream(file) << "{\"prompt\": \"p one\", \"max_tokens\": 5}\n{\"prompt\": \"p two\"}\n";
  BenchOptions options = options_for(server);
  options.dataset_name = "custom";
  options.dataset_path = file;
  options.num_prompts = 0;
  options.max_concurrency = 1;
  EXPECT_EQ(bench(options).code, 0);
  options.num_prompts = 3;
  EXPECT_EQ(bench(options).code, 0);
  std::filesystem::remove(file);
  using Seen = std::vector<std::pair<std::string, int64_t>>;
  EXPECT_EQ(seen, (Seen{{"p one", 5}, {"p two", 256}, {"p one", 5}, {"p two", 256}, {"p one", 5}}));
}

TEST(Bench, FailuresAreCountedAndSaidOnce) {
  FakeServer server([](const FakeRequest& request, FakeConnection& c) {
    if (request.number < 4) return c.answer(503, "application/json", R"({"error":{"message":"queue full"}})");
    stream_plainly(c, 1);
  });
  const Printed printed = bench(options_for(server));
  EXPECT_EQ(printed.code, 0);
  EXPECT_THAT(printed.out, HasSubstr("Failed requests:                         0         \n"
                                     "Refused requests (503):                  4         \n"
                                     "Unserved requests:                       4         \n"));
  EXPECT_THAT(printed.out, HasSubstr("Failures:\n  4 x HTTP 503: queue full\n"));
}

TEST(Bench, NothingCompletedIsExitCodeOne) {
  FakeServer server([](const FakeRequest&, FakeConnection& c) { c.answer(500, "text/plain", "broken"); });
  BenchOptions options = options_for(server);
  const Printed measured = bench(options);
  EXPECT_EQ(measured.code, 1);
  EXPECT_THAT(measured.out, HasSubstr("  6 x HTTP 500: broken\n"));
  options.num_warmups = 1;
  const Printed warming = bench(options);
  EXPECT_EQ(warming.code, 1);
  EXPECT_EQ(warming.out, "");
  EXPECT_EQ(warming.err,
            "kvasir bench: every warm-up request failed, the first one with: HTTP 500: broken\n");
}

TEST(Bench, NoServerIsOneLineAndExitCodeOne) {
  BenchOptions options;
  {
    FakeServer gone([](const FakeRequest&, FakeConnection&) {});
    options = options_for(gone);
  }
  const Printed printed = bench(options);
  EXPECT_EQ(printed.code, 1);
  EXPECT_EQ(printed.out, "");
  EXPECT_THAT(printed.err, StartsWith("kvasir bench: connect to 127.0.0.1:"));
  EXPECT_THAT(printed.err, HasSubstr("Connection refused"));
  EXPECT_EQ(std::count(printed.err.begin(), printed.err.end(), '\n'), 1);
}

TEST(Bench, TheModelsListMayBeMissingWhenTheModelIsNamed) {
  FakeServer server(
      [](const FakeRequest& request, FakeConnection& c) {
        if (request.method == "GET") return c.answer(404, "text/plain", "no such page");
        stream_plainly(c, 1);
      },
      true);
  BenchOptions options = options_for(server);
  const Printed unnamed = bench(options);
  EXPECT_EQ(unnamed.code, 1);
  EXPECT_EQ(unnamed.err, "kvasir bench: GET /v1/models: HTTP 404: no such page; name the model by --model\n");
  options.model = "m";
  EXPECT_EQ(bench(options).code, 0);
}

TEST(Bench, AServerThatWantsAKeyIsSaid) {
  FakeServer server([](const FakeRequest&, FakeConnection& c) { c.answer(401, "text/plain", "no key"); },
                    true);
  BenchOptions options = options_for(server);
  EXPECT_EQ(bench(options).err,
            "kvasir bench: GET /v1/models: HTTP 401: no key; the server wants a key: give --api-key KEY, or "
            "set KVASIR_API_KEY\n");
  options.api_key = "wrong";
  EXPECT_THAT(bench(options).err, HasSubstr("the server refuses the key of --api-key or KVASIR_API_KEY"));
}

TEST(Bench, AModelsListWithoutModelsIsSaid) {
  FakeServer server([](const FakeRequest&,
                       FakeConnection& c) { c.answer(200, "application/json", R"({"data":[{"id":3}]})"); },
                    true);
  EXPECT_THAT(bench(options_for(server)).err, HasSubstr("names no model"));
}

TEST(Bench, AnInterruptPrintsWhatWasMeasured) {
  FakeServer server([](const FakeRequest& request, FakeConnection& c) {
    if (request.number < 3) return stream_plainly(c, 2);
    if (request.number == 3) ::kill(::getpid(), SIGINT);
    c.hold();
  });
  BenchOptions options = options_for(server);
  options.num_prompts = 20;
  options.max_concurrency = 1;
  const Printed printed = bench(options);
  EXPECT_EQ(printed.code, 130);
  EXPECT_THAT(printed.out, HasSubstr("Successful requests:                     3         \n"
                                     "Failed requests:                         0         \n"));
  EXPECT_THAT(printed.out, HasSubstr("Interrupted: 17 requests had not ended.\n"));
}

TEST(Bench, ForcedAndToldLengthsAndSlosAreSent) {
  std::mutex mutex;
  std::vector<Json> seen;
  FakeServer server([&](const FakeRequest& request, FakeConnection& c) {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      seen.push_back(Json::parse(request.body));
    }
    stream_plainly(c, 3);
  });
  BenchOptions options = options_for(server);
  options.num_prompts = 1;
  ASSERT_EQ(bench(options).code, 0);
  options.force_output_lengths = options.tell_output_lengths = true;
  options.slo = {"ttft:500", "tbt:200"};
  const Printed right = bench(options);
  ASSERT_EQ(right.code, 0) << right.err;
  EXPECT_THAT(right.out, ::testing::Not(HasSubstr("Forced lengths")));
  options.max_tokens = 99;
  options.tell_output_lengths = false;
  options.random_output_len = 8;
  EXPECT_THAT(bench(options).out, HasSubstr("Forced lengths: 1 of 1 outputs have another length"));
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen[0]["max_tokens"], 3);
  for (const char* key : {"forced_output_tokens", "output_tokens_hint", "slo", "ignore_eos"}) {
    EXPECT_FALSE(seen[0].contains(key)) << key;
  }
  EXPECT_FALSE(seen[1].contains("max_tokens"));
  EXPECT_EQ(seen[1]["forced_output_tokens"], 3);
  EXPECT_EQ(seen[1]["output_tokens_hint"], 3);
  EXPECT_EQ(seen[1]["slo"], Json::parse(R"({"ttft_ms": 500, "tbt_ms": 200})"));
  EXPECT_EQ(seen[2]["forced_output_tokens"], 8);
  EXPECT_EQ(seen[2]["max_tokens"], 99);
  EXPECT_FALSE(seen[2].contains("output_tokens_hint"));
}

TEST(Bench, AWorkloadsClassesAreSentAndCountedApart) {
  std::mutex mutex;
  int easy = 0;
  std::vector<int64_t> words;
  FakeServer server([&](const FakeRequest& request, FakeConnection& c) {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      const Json body = Json::parse(request.body);
      easy += body["slo"] == Json::parse(R"({"e2el_ms": 3600000})");
      words.push_back(count_words(body["prompt"].get<std::string>()));
    }
    stream_plainly(c, 2);
  });
  const std::filesystem::path root =
      std::filesystem::temp_directory_path() / ("kvasir_bench_classes_" + std::to_string(::getpid()));
  BenchOptions options = options_for(server);
  options.dataset_name = "alpaca";
  options.num_prompts = 30;
  options.request_rate = "1000:2000:1000";
  options.arrival_cv = 2;
  options.slo_classes = {"easy:0.5,e2el:3600000", "never:0.5,ttft:0"};
  options.save_result = true;
  options.result_dir = root;
  options.result_filename = "a.json";
  options.html = root / "a.html";
  const Printed printed = bench(options);
  ASSERT_EQ(printed.code, 0) << printed.err;
  ASSERT_EQ(words.size(), 60u);
  EXPECT_GE(*std::min_element(words.begin(), words.end()), 9);
  EXPECT_TRUE(easy > 0 && easy < 60) << easy;
  EXPECT_THAT(printed.out, HasSubstr("E2EL <= its own bound (%):               100.00"));
  const Json j = Json::parse(std::ifstream(root / "a.json"));
  ASSERT_EQ(j["runs"].size(), 2u);
  // Both rates have the same requests; no request meets a bound of 0 ms.
  for (const Json& run : j["runs"]) {
    EXPECT_NEAR(run["attainment_joint"].get<double>(), 100.0 * easy / 60, 1e-9);
    EXPECT_NEAR(run["attainment_ttft"].get<double>(), 100.0 * easy / 60, 1e-9);
  }
  EXPECT_EQ(j["burstiness"], 0.25);
  EXPECT_EQ(j["goodput_bounds_ms"]["ttft"], "own");
  std::ostringstream page;
  page << std::ifstream(root / "a.html").rdbuf();
  EXPECT_THAT(page.str(), HasSubstr("slo classes"));
  std::filesystem::remove_all(root);
}

TEST(Bench, RatesAndSeedsRunInTurnAndAreReported) {
  std::mutex mutex;
  std::vector<std::string> prompts;
  FakeServer server([&](const FakeRequest& request, FakeConnection& c) {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      prompts.push_back(Json::parse(request.body)["prompt"]);
    }
    stream_plainly(c, 2);
  });
  const std::filesystem::path root =
      std::filesystem::temp_directory_path() / ("kvasir_bench_rates_" + std::to_string(::getpid()));
  BenchOptions options = options_for(server);
  options.num_prompts = 3;
  options.random_input_len = 20;
  options.request_rate = "200,400";
  options.seeds = 2;
  options.save_result = true;
  options.result_dir = root;
  options.result_filename = "a.json";
  options.label = "one";
  options.html = root / "a.html";
  const Printed printed = bench(options);
  ASSERT_EQ(printed.code, 0) << printed.err;
  EXPECT_THAT(printed.out, HasSubstr("Runs (mean +- 95 % interval):            2         \n"));
  EXPECT_THAT(printed.out, HasSubstr("    rate"));
  EXPECT_THAT(printed.out, HasSubstr("\n     400"));
  ASSERT_EQ(prompts.size(), 12u);
  std::sort(prompts.begin(), prompts.end());
  EXPECT_EQ(std::unique(prompts.begin(), prompts.end()), prompts.end());
  const Json j = Json::parse(std::ifstream(root / "a.json"));
  ASSERT_EQ(j["runs"].size(), 4u);
  EXPECT_EQ(j["runs"][1]["seed"], 1);
  EXPECT_EQ(j["runs"][2]["request_rate"], 400.0);

  std::ofstream(root / "b.json") << std::ifstream(root / "a.json").rdbuf();
  BenchOptions comparison;
  comparison.compare = {root / "a.json", root / "b.json"};
  comparison.html = root / "both.html";
  EXPECT_EQ(bench(comparison).code, 0);
  std::ostringstream page;
  page << std::ifstream(root / "both.html").rdbuf();
  EXPECT_THAT(page.str(), HasSubstr("<td class=\"s\">one</td><td>200</td><td>2</td>"));
  comparison.compare = {root / "both.html"};
  EXPECT_THAT(bench(comparison).err, HasSubstr("both.html: no result of kvasir bench"));
  std::filesystem::remove_all(root);
}

TEST(Bench, TheDrainTimeoutLeavesTheRestUnserved) {
  FakeServer server([](const FakeRequest& request, FakeConnection& c) {
    if (request.number < 2) return stream_plainly(c, 2);
    c.hold();
  });
  BenchOptions options = options_for(server);
  options.max_concurrency = 2;
  options.drain_timeout_s = 0.4;
  options.goodput = {"ttft:10000"};
  const Printed printed = bench(options);
  EXPECT_EQ(printed.code, 0);
  EXPECT_THAT(printed.out, HasSubstr("Successful requests:                     2         \n"
                                     "Failed requests:                         0         \n"
                                     "Unserved requests:                       4         \n"));
  EXPECT_THAT(printed.out, HasSubstr("The drain timeout came: 4 requests had not ended.\n"));
  EXPECT_THAT(printed.out, HasSubstr("TTFT <= 10000 ms (%):                    33.33     \n"));
}

TEST(Bench, PreemptionsAreTheDifferenceOverTheRun) {
  std::atomic<int> preempted{5};
  FakeServer server(
      [&](const FakeRequest& request, FakeConnection& c) {
        if (request.path == "/metrics") {
          return c.answer(200, "text/plain",
                          fmt::format("vllm:num_preemptions_total {}\n", preempted.load()));
        }
        if (request.method == "GET") return c.answer(200, "application/json", R"({"data":[{"id":"m"}]})");
        ++preempted;
        stream_plainly(c, 1);
      },
      true);
  EXPECT_THAT(bench(options_for(server)).out,
              HasSubstr("Preemptions (server's count):            6         \n"));
}

TEST(Bench, ATraceFileIsSentAtItsOwnTimes) {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / ("kvasir_bench_trace_" + std::to_string(::getpid()));
  std::ofstream(file) << "arrival_s,prompt_tokens,output_tokens\n7.0,3,2\n7.3,5,4\n";
  std::mutex mutex;
  std::vector<int64_t> lengths;
  FakeServer server([&](const FakeRequest& request, FakeConnection& c) {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      lengths.push_back(Json::parse(request.body)["max_tokens"]);
    }
    stream_plainly(c, 1);
  });
  BenchOptions options = options_for(server);
  options.dataset_name = "trace";
  options.dataset_path = file;
  options.num_prompts = 0;
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(bench(options).code, 0);
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(300));
  std::filesystem::remove(file);
  EXPECT_EQ(lengths, (std::vector<int64_t>{2, 4}));
}

TEST(Bench, AMistakeInAFlagIsOneLine) {
  BenchOptions options;
  options.dataset_name = "trace";
  const Printed printed = bench(options);
  EXPECT_EQ(printed.code, 1);
  EXPECT_THAT(printed.err, StartsWith("kvasir bench: --dataset-name trace: --dataset-path must name"));
}

}  // namespace
}  // namespace kvasir
