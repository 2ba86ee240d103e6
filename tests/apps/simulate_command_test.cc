// What the command prints and writes: the same bytes for the same flags, result files, bounds relative to a
// first pass, a machine's own truth, and the runs of figures.
#include "apps/simulate_command.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/bench/attainment.h"
#include "apps/bench/result_reader.h"
#include "apps/simulate/experiment.h"
#include "base/file.h"

namespace kvasir::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::json;

const Args kSystem = {"--model", "opt-13b", "--device", "a100-40g"};
const Args kLoad = {"--workload", "alpaca", "--num-prompts", "40", "--max-num-seqs", "16"};

class BytesTest : public CommandTest {
 protected:
  // All that a command gives.
  std::map<std::string, std::string> given(const Args& args) {
    const std::string folder = in_folder("results");
    std::filesystem::remove_all(folder);
    const Ran ran = command(args + Args{"--no-progress", "--save-result", "--save-detailed", "--result-dir",
                                        folder, "--html", folder + "/report.html"});
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_EQ(ran.err, "");
    std::map<std::string, std::string> out = {{"stdout", ran.out}};
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      out[entry.path().filename()] = read("results/" + entry.path().filename().string());
    }
    return out;
  }
};

TEST_F(BytesTest, DependOnTheFlagsAlone) {
  const Args args =
      kSystem + kLoad + Args{"--request-rate", "0.8x,1.2x", "--seeds",  "2",       "--scheduling-policy",
                             "vllm,sarathi",   "--goodput", "ttft:500", "--noise", "0.1"};
  const auto one = given(args + Args{"-j", "1"});
  ASSERT_EQ(one.size(), 4u) << "two policies' results and the report";
  EXPECT_EQ(given(args + Args{"-j", "2"}), one);
  EXPECT_EQ(given(args + Args{"-j", "2"}), one);
  const auto other = given(args + Args{"--seed", "7"});
  for (const auto& [name, text] : one) {
    EXPECT_NE(other.at(name), text) << name;
    if (name == "stdout") continue;
    EXPECT_THAT(text, Not(HasSubstr(folder_.string()))) << name;
    EXPECT_THAT(text, Not(HasSubstr(std::filesystem::current_path().string()))) << name;
  }
  EXPECT_FALSE(Json::parse(one.at("simulation-vllm.json")).contains("date"));
}

TEST_F(BytesTest, NameNeitherTheDayNorAFolder) {
  const std::time_t now = std::time(nullptr);
  for (const auto& [name, text] :
       given(host(tables(0.010), 256) + lengths(20, 6, 20) + Args{"--request-rate", "5"})) {
    if (name == "stdout") continue;
    EXPECT_THAT(text, HasSubstr("truth.json"));
    EXPECT_THAT(text, Not(HasSubstr(folder_.string()))) << name;
    for (const char* format : {"%Y%m%d", "%Y-%m-%d"}) {
      std::array<char, 16> day{};
      std::strftime(day.data(), day.size(), format, std::localtime(&now));
      EXPECT_THAT(text, Not(HasSubstr(day.data()))) << name;
    }
  }
}

TEST_F(BytesTest, OfASearchAndOfALifeToo) {
  const Args search = kSystem + kLoad + Args{"--goodput", "ttft:2000", "--find-effective-throughput", "90"} +
                      Args{"--scheduling-policy", "vllm,sarathi"};
  const std::string found = command(search + Args{"-j", "1"}).out;
  EXPECT_EQ(command(search + Args{"-j", "2"}).out, found);
  const Args life = kSystem + kLoad + Args{"--request-rate", "1x", "--explain", "7"};
  const Ran told = command(life);
  EXPECT_EQ(command(life).out, told.out);
  EXPECT_THAT(told.out, HasSubstr("\nRequest 7 under auto:\n"));
  EXPECT_THAT(told.out, HasSubstr("  has ended with "));
}

TEST_F(CommandTest, SavesAResultForEachPolicy) {
  const std::string folder = in_folder("out");
  const Ran ran =
      command(kSystem + kLoad +
              Args{"--request-rate", "0.5x,1x", "--scheduling-policy", "vllm,vllm-swap",
                   "--kv-offloading-size", "4", "--gpu-memory-utilization", "0.68", "--save-result",
                   "--result-dir", folder, "--result-filename", "mine.json", "--label", "try"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  for (const std::string policy : {"vllm", "vllm-swap"}) {
    const std::string path = fmt::format("{}/mine-{}.json", folder, policy);
    EXPECT_THAT(ran.out, HasSubstr("Result written to " + path));
    const Result<ReportSeries> series = load_result(path);
    ASSERT_TRUE(series.ok()) << series.status().message();
    EXPECT_EQ(series->label, "try, " + policy);
    ASSERT_EQ(series->runs.size(), 2u);
    for (const ReportRun& run : series->runs) {
      for (const char* key :
           {"mean_queue_ms", "mean_prefill_ms", "steps", "mean_step_tokens", "mean_decode_batch",
            "mean_running_requests", "time_at_batch_limit", "preemptions", "preemptions_swapped",
            "computed_again_tokens", "projected_tokens", "deferred_rows", "cost_error_ratio", "offloaded_gib",
            "loaded_gib", "link_busy", "stalled_s"}) {
        EXPECT_EQ(run.figures.count(key), 1u) << key;
      }
      for (const char* key : {"mean_preempted_ms", "p99_preempted_ms", "mean_normalised_latency_ms",
                              "mean_kv_allocated", "mean_kv_promised"}) {
        EXPECT_EQ(run.figures.count(key), 1u) << key;
      }
      EXPECT_EQ(run.figures.at("completed"), 40);
      std::set<std::string> charts;
      for (const EngineLine& line : run.curves.engine) {
        charts.insert(line.chart);
        EXPECT_EQ(line.values.size(), kCurveSlices);
      }
      EXPECT_THAT(charts, ElementsAre("Memory held by requests, GiB", "Queued on the link, MiB",
                                      "Requests in the engine", "Tokens of a step"));
    }
    const Json json = Json::parse(read(fmt::format("out/mine-{}.json", policy)));
    EXPECT_EQ(json["backend"], "simulation");
    EXPECT_EQ(json["model_id"], "opt-13b");
    EXPECT_EQ(json["system"]["policy"], policy);
    EXPECT_EQ(json["system"]["device"], "a100-40g");
    const std::string capacity = json["system"]["capacity"];
    EXPECT_THAT(ran.out, HasSubstr("capacity for this workload: " + capacity));
  }
}

// Of long requests in little memory, which they fill: never above what there is, and close to it.
TEST_F(CommandTest, TheCurveOfMemoryStaysBelowTheKvCache) {
  for (const char* policy : {"vllm", "orca", "vllm-swap"}) {
    HostDevice device = clockwork(tables(0.010));
    device.geometry.kv_plane_bytes_per_token_layer = 256 * 1024;
    const Args memory = {"--device", host(device, 0)[1], "--kv-cache-memory-bytes",
                         fmt::format("{}", uint64_t{1} << 30)};
    const Answer got = answer_of(memory + lengths(100, 50, 60) +
                                 Args{"--request-rate", "2x", "--scheduling-policy", policy});
    ASSERT_EQ(got.policies.size(), 1u);
    double most = 0;
    for (const EngineLine& line : got.policies[0].runs.at(0).curves.engine) {
      if (line.chart != "Memory held by requests, GiB") continue;
      EXPECT_EQ(line.name, "kv on the device");
      most = *std::max_element(line.values.begin(), line.values.end());
    }
    EXPECT_LE(most, 1.0 + 1e-9) << policy;
    // Orca reserves the longest output that there can be, and holds little of it.
    EXPECT_GT(most, policy == std::string("orca") ? 0.1 : 0.7) << policy;
  }
}

// ---------------------------------------------------------------- what no schedule can beat

class BoundTest : public CommandTest {};

TEST_F(BoundTest, IsOfTheJudgedRequests) {
  // One every 100 s; a step takes 10 ms, so the first and the last, of 1,000 tokens, cannot end within 1 s.
  std::string trace = "prompt,output,arrival\n";
  for (int i = 0; i < 10; ++i) trace += fmt::format("20,{},{}\n", i % 9 == 0 ? 1000 : 10, 100 * i);
  const Args args = host(tables(0.010), 4096) +
                    Args{"--request-rate",          "0.01",      "--workload", "trace",  "--dataset-path",
                         write("trace.csv", trace), "--goodput", "e2el:1000",  "--bound"};
  EXPECT_THAT(command(args).out, HasSubstr("80.0 %"));
  EXPECT_THAT(command(args + Args{"--trim", "0.1"}).out, HasSubstr("100.0 %"));
}

// ---------------------------------------------------------------- bounds relative to a first pass

class RelativeTest : public CommandTest {
 protected:
  void SetUp() override {
    CommandTest::SetUp();
    args_ = host(tables(0.010, 0.001), 32 * 8) + lengths(20, 11, 50) +
            Args{"--random-range-ratio",
                 "0.5",
                 "--request-rate",
                 "0.8x,1.2x",
                 "--seeds",
                 "2",
                 "--scheduling-policy",
                 "vllm,sarathi",
                 "--save-result",
                 "--save-detailed",
                 "--result-dir",
                 in_folder("out")};
  }
  Args args_;
};

TEST_F(RelativeTest, BoundsAreOfTheMeansOfAPlainRun) {
  ASSERT_EQ(command(args_).code, 0);
  double ttft = 0, tbt = 0;
  size_t requests = 0, gaps = 0;
  for (const char* name : {"out/simulation-vllm.json", "out/simulation-sarathi.json"}) {
    const Json json = Json::parse(read(name));
    ASSERT_EQ(json["runs"].size(), 4u);
    for (const Json& run : json["runs"]) {
      for (const double t : run["ttfts"]) ttft += 1e3 * t;
      requests += run["ttfts"].size();
      for (const Json& list : run["itls"]) {
        for (const double t : list) tbt += 1e3 * t;
        gaps += list.size();
      }
    }
  }
  ASSERT_EQ(requests, 2u * 4 * 50);
  const SloReference reference{ttft / static_cast<double>(requests), tbt / static_cast<double>(gaps)};

  const Answer got = answer_of(args_ + Args{"--relative-slo", "0.5:1.5"});
  ASSERT_EQ(got.policies.size(), 2u);
  ASSERT_EQ(command(args_ + Args{"--relative-slo", "0.5:1.5"}).code, 0);
  const Json json = Json::parse(read("out/simulation-sarathi.json"));
  EXPECT_NEAR(json["slo_reference"]["ttft_ms"].get<double>() / reference.ttft_ms, 1, 1e-6);
  EXPECT_NEAR(json["slo_reference"]["tbt_ms"].get<double>() / reference.tbt_ms, 1, 1e-6);
  EXPECT_EQ(json["goodput_bounds_ms"]["ttft"], "own");

  // Each request's bounds, and whether it meets them, from its own times.
  const Json& run = json["runs"][3];
  const RunResult& ours = got.policies.at(1).runs.at(3);
  EXPECT_EQ(ours.key.seed, 1u);
  int good = 0;
  for (size_t i = 0; i < 50; ++i) {
    const RequestRecord& r = ours.outcome.records.at(i);
    const std::vector<Goal> goals =
        relative_goals({0.5, 1.5}, reference, r.prompt_tokens, ours.key.seed, static_cast<int64_t>(i));
    ASSERT_EQ(r.own.size(), 2u);
    for (size_t g = 0; g < 2; ++g) {
      EXPECT_EQ(r.own[g].key, goals[g].key);
      EXPECT_NEAR(r.own[g].millis / goals[g].millis, 1, 1e-6);
    }
    double longest = 0;
    for (const double t : run["itls"][i]) longest = std::max(longest, 1e3 * t);
    good += 1e3 * run["ttfts"][i].get<double>() <= r.own[0].millis && longest <= r.own[1].millis;
  }
  EXPECT_GT(good, 0);
  EXPECT_LT(good, 50);
  EXPECT_DOUBLE_EQ(run["attainment_joint"].get<double>(), 100.0 * good / 50);
}

TEST_F(RelativeTest, AGivenReferenceIsTaken) {
  ASSERT_EQ(command(args_ + Args{"--relative-slo", "1:1", "--slo-reference", "ttft:70,tbt:30"}).code, 0);
  const Json json = Json::parse(read("out/simulation-vllm.json"));
  EXPECT_EQ(json["slo_reference"]["ttft_ms"], 70);
  EXPECT_EQ(json["slo_reference"]["tbt_ms"], 30);
}

TEST_F(RelativeTest, OutputsOfOneTokenHaveNoMean) {
  EXPECT_THAT(refusal(host(tables(0.010), 256) + lengths(20, 1, 20) + Args{"--relative-slo", "1:2"}),
              HasSubstr("--relative-slo: "));
}

// ---------------------------------------------------------------- this machine

TEST_F(CommandTest, AMachinesOwnTruthFromItsFileToTheResult) {
  MeasuredTables t;
  t.step_s = 0.002;
  t.chunk_s = 0.001;
  t.decode_s = 0.0005;
  t.rows = {{0, 8}, {0.0001, 0.0002}};
  t.sampled = {{0}, {0.0003}};
  t.engine_step_s = 0.0004;
  t.engine_sequence_s = 0.0001;
  HostDevice device = clockwork(t);
  device.request_s = 0.005;
  // 20 rows and one sampled; then a row.
  const double common = 0.002 + 0.0003 + 0.0004 + 0.0001;
  const double prefill = common + 0.001 + 8 * 0.0001 + 12 * 0.0002;
  const double decode = common + 0.0005 + 0.0001;
  const Answer got = answer_of(
      host(device, 512) + lengths(20, 6, 5) +
      Args{"--request-rate", "0.001", "--save-result", "--save-detailed", "--result-dir", in_folder("out")});
  ASSERT_EQ(got.policies.size(), 1u);
  for (const RequestRecord& r : got.policies[0].runs.at(0).outcome.records) {
    ASSERT_EQ(r.state, RequestRecord::State::kCompleted);
    EXPECT_EQ(r.output_tokens, 6);
    EXPECT_NEAR(to_seconds(r.first - r.start), 0.005 + prefill, 1e-8);
    ASSERT_EQ(r.gaps.size(), 5u);
    for (Nanos gap : r.gaps) EXPECT_NEAR(to_seconds(gap), decode, 1e-8);
  }
}

TEST_F(CommandTest, AMachinesNoiseIsItsOwnUnlessAnotherIsAskedFor) {
  HostDevice device = clockwork(tables(0.010));
  device.noise = 0.2;
  const Args args = host(device, 512) + lengths(20, 6, 20) + Args{"--request-rate", "1"};
  const Ran noisy = command(args), still = command(args + Args{"--noise", "0"});
  EXPECT_NE(noisy.out, still.out);
  EXPECT_THAT(still.out, HasSubstr("Mean TPOT (ms):"));
  EXPECT_EQ(command(args + Args{"--noise", "0.2"}).out, noisy.out);
}

TEST_F(CommandTest, TellsTheLifeOfOneThatFails) {
  std::string trace = "prompt,output,arrival\n";
  for (int i = 0; i < 20; ++i) trace += fmt::format("{},10,{}\n", i == 3 ? 300 : 20, i);
  const Args args =
      host(tables(0.010), 256) +
      Args{"--workload", "trace", "--dataset-path", write("trace.csv", trace), "--explain", "3"};
  const Ran ran = command(args);
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("\nRequest 3 under auto:\n     3.000 s  has failed: "));
  EXPECT_THAT(command(args + Args{"--explain", "4"}).out,
              HasSubstr("\nRequest 4 under auto:\n     4.000 s  arrives with a prompt of 20 tokens"));
  EXPECT_THAT(command(args + Args{"--explain", "19", "--drain-timeout", "0.05"}).out,
              HasSubstr("            had not ended when the run did\n"));
}

// Each request is admitted once, and has the device to itself: nothing else is decided.
TEST_F(CommandTest, CountsTheReasonsOfARun) {
  const Args args = host(tables(0.010), 256) + lengths(20, 6, 20) + Args{"--request-rate", "1"};
  const Ran told = command(args + Args{"--explain", "0"});
  EXPECT_THAT(told.out, HasSubstr("\n\nReasons for what the plans of this run decided:\n"
                                  "       20 admit_without_bounds  admitted: without bounds, and there was "
                                  "room\n"));
  EXPECT_THAT(command(args + Args{"--explain", "0", "--scheduling-policy", "sarathi"}).out,
              Not(HasSubstr("Reasons for")));
  const std::string folder = in_folder("out");
  const Ran saved = command(
      args + Args{"--seeds", "2", "--save-result", "--result-dir", folder, "--result-filename", "mine.json"});
  EXPECT_THAT(saved.out, Not(HasSubstr("Reasons for")));
  const Json json = Json::parse(read("out/mine.json"));
  ASSERT_EQ(json.at("runs").size(), 2u);
  for (const Json& run : json.at("runs")) {
    EXPECT_EQ(run.at("decisions").at("admit_without_bounds"), 20);
    EXPECT_FALSE(run.at("decisions").contains("preempt_costliest")) << "what was not decided is not there";
  }
}

// ---------------------------------------------------------------- figures of papers

const std::string kExperiments = KVASIR_SOURCE_DIR "/experiments";

std::vector<std::string> experiment_files() {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(kExperiments)) {
    if (entry.path().extension() == ".json") out.push_back(entry.path().string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

const ExperimentRun& run_named(const Experiment& experiment, const std::string& name) {
  return *std::find_if(experiment.runs.begin(), experiment.runs.end(),
                       [&](const ExperimentRun& run) { return run.name == name; });
}

TEST(Experiments, AreWhatTheCommandTakes) {
  ASSERT_GE(experiment_files().size(), 5u);
  for (const std::string& file : experiment_files()) {
    const Result<Experiment> experiment = parse_experiment(*read_file(file), file);
    ASSERT_TRUE(experiment.ok()) << experiment.status().message();
    EXPECT_NE(experiment->title, "");
    EXPECT_NE(experiment->source, "");
    const bool of_a_paper = !experiment->source.starts_with("bench/");
    std::set<std::string> names;
    for (const ExperimentRun& run : experiment->runs) {
      EXPECT_TRUE(names.insert(run.name).second) << run.name << " is there twice";
      // The program of bench/ that the file is for writes the trace.
      if (!of_a_paper && std::count(run.args.begin(), run.args.end(), "trace") > 0) continue;
      const SimulateOptions options = options_of(run.args + Args{"--num-prompts", "20"});
      const Result<Study> study = Study::make(options);
      EXPECT_TRUE(study.ok()) << file << ", " << run.name << ": " << study.status().message();
      EXPECT_TRUE(!of_a_paper || !options.runtime.enable_prefix_caching)
          << "no prompt shares a prefix in the papers";
      for (const PaperFigure& figure : run.paper) {
        EXPECT_EQ(std::count(options.policies.begin(), options.policies.end(), figure.policy), 1)
            << run.name << ": " << figure.policy;
        if (!figure.less.empty()) {
          EXPECT_EQ(std::count(options.policies.begin(), options.policies.end(), figure.less), 1) << run.name;
        }
        if (figure.over.empty()) continue;
        const std::vector<std::string> own = {run.name};
        for (const std::string& other : figure.over_runs.empty() ? own : figure.over_runs) {
          const std::vector<std::string> policies = options_of(run_named(*experiment, other).args).policies;
          EXPECT_EQ(std::count(policies.begin(), policies.end(), figure.over), 1)
              << run.name << ": " << figure.over << " in " << other;
        }
        EXPECT_TRUE(figure.over != figure.policy || !figure.over_runs.empty()) << run.name;
      }
    }
  }
}

TEST_F(CommandTest, RunsAFigureOfAPaper) {
  const Ran ran =
      command({"--experiment", kExperiments + "/apt-serve-fig1-2.json", "--num-prompts", "20",
               "--save-result", "--result-dir", in_folder("out"), "--html", in_folder("report.html")});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("\n== vllm\n"));
  EXPECT_THAT(ran.out, HasSubstr("20 requests of sharegpt"));
  EXPECT_THAT(ran.out, HasSubstr("\n== effective\n"));
  EXPECT_THAT(ran.out, HasSubstr("| effective | vllm | - | effective_throughput | "));
  EXPECT_THAT(ran.out, Not(HasSubstr(" | - |\n"))) << "every figure of the paper has ours beside it";
  // A search has no results to keep.
  EXPECT_TRUE(std::filesystem::exists(in_folder("out/vllm.json")));
  EXPECT_TRUE(std::filesystem::exists(in_folder("report-vllm.html")));
  EXPECT_FALSE(std::filesystem::exists(in_folder("out/effective.json")));
}

TEST_F(CommandTest, PutsThePapersFiguresBesideOurs) {
  Json run = {{"name", "one"}, {"paper", Json::array()}};
  run["args"] = host(tables(0.010), 512) + lengths(20, 6, 20) + Args{"--request-rate", "1,2"} +
                Args{"--scheduling-policy", "vllm,sarathi"} + Args{"--goodput", "ttft:1000"};
  const auto ratio = [](const char* over, double value) {
    Json entry = {{"policy", "vllm"}, {"rate", 2}, {"key", "attainment_joint"}};
    entry["over"] = over;
    entry["value"] = value;
    return entry;
  };
  run["paper"].push_back({{"policy", "vllm"}, {"rate", 2}, {"key", "attainment_joint"}, {"value", 90}});
  run["paper"].push_back(ratio("sarathi", 2));
  run["paper"].push_back(ratio("orca", 3));
  run["paper"].push_back(
      {{"policy", "vllm"}, {"rate", 2}, {"less", "sarathi"}, {"key", "attainment_joint"}, {"value", 5}});
  run["paper"].push_back({{"policy", "vllm"}, {"rate", 3}, {"key", "attainment_joint"}, {"value", 80}});
  run["paper"].push_back({{"policy", "vllm"}, {"key", "effective_throughput"}, {"value", 7}});
  Json search = run;
  search["name"] = "two";
  search["args"].push_back("--find-effective-throughput");
  search["args"].push_back("90");
  search["paper"] = {{{"policy", "vllm"}, {"key", "effective_throughput"}, {"value", 7}}};
  const Json file = {{"title", "A figure"}, {"note", "of no paper"}, {"runs", {run, search}}};
  const Ran ran = command({"--experiment", write("figure.json", file.dump())});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, testing::StartsWith("A figure\nof no paper\n\n== one\n"));
  EXPECT_THAT(ran.out,
              HasSubstr("\n| run | policy | rate | figure | paper | ours |\n|---|---|---|---|---|---|\n"
                        "| one | vllm | 2 | attainment_joint | 90 | 100 |\n"
                        "| one | vllm / sarathi | 2 | attainment_joint | 2 | 1 |\n"
                        "| one | vllm / orca | 2 | attainment_joint | 3 | - |\n"
                        "| one | vllm - sarathi | 2 | attainment_joint | 5 | 0 |\n"
                        "| one | vllm | 3 | attainment_joint | 80 | - |\n"
                        "| one | vllm | - | effective_throughput | 7 | - |\n"
                        "| two | vllm | - | effective_throughput | 7 | "));
}

// Steps of 10 ms: a request of six tokens takes half of what two of six take one after the other.
TEST_F(CommandTest, ComparesWithTheSumOfOtherRuns) {
  const auto run = [&](const char* name, const char* policy) {
    Json json = {{"name", name}, {"paper", Json::array()}};
    json["args"] = host(tables(0.010), 512) + lengths(20, 6, 1) + Args{"--request-rate", "1"} +
                   Args{"--scheduling-policy", policy};
    return json;
  };
  Json third = run("third", "sarathi");
  Json entry = {
      {"policy", "sarathi"}, {"over", "vllm"}, {"key", "mean_e2el_ms"}, {"value", 0.4}, {"to", 0.6}};
  entry["over_runs"] = {"first", "second"};
  third["paper"].push_back(entry);
  Json file = {{"title", "A figure"}, {"runs", {run("first", "vllm"), run("second", "vllm"), third}}};
  const Args experiment = {"--experiment", write("figure.json", file.dump()), "--save-result", "--result-dir",
                           in_folder("sums")};
  const Ran all = command(experiment);
  ASSERT_EQ(all.code, 0) << all.err;
  EXPECT_THAT(
      all.out,
      HasSubstr("| third | sarathi / vllm (first + second) | - | mean_e2el_ms | 0.4 to 0.6 | 0.5 |\n"));
  const Json kept = Json::parse(*read_file(in_folder("sums/third.figures.json")));
  EXPECT_NEAR(kept["paper"][0]["ours"].get<double>(), 0.5, 1e-9);
  EXPECT_EQ(kept["paper"][0]["over_runs"], entry["over_runs"]);
  EXPECT_EQ(kept["paper"][0]["to"], 0.6);
  // What is not run has no figure.
  const Ran one = command(experiment + Args{"--experiment-runs", "third"});
  ASSERT_EQ(one.code, 0) << one.err;
  EXPECT_THAT(one.out, HasSubstr("| mean_e2el_ms | 0.4 to 0.6 | - |\n"));
  EXPECT_TRUE(Json::parse(*read_file(in_folder("sums/third.figures.json")))["paper"][0]["ours"].is_null());

  file["runs"] = {third, run("first", "vllm"), run("second", "vllm")};
  EXPECT_THAT(command({"--experiment", write("late.json", file.dump())}).err,
              HasSubstr("run 'third': no run 'first' comes before it"));
  file["runs"][0]["paper"][0].erase("over");
  EXPECT_THAT(command({"--experiment", write("late.json", file.dump())}).err,
              HasSubstr("'over_runs' must be a list of runs, beside 'over'"));
}

TEST_F(CommandTest, KeepsTheFiguresOfChosenRunsOfAnExperiment) {
  Json run = {{"name", "one"}, {"paper", Json::array()}};
  run["args"] = host(tables(0.010), 512) + lengths(20, 6, 20) + Args{"--request-rate", "2,1"} +
                Args{"--scheduling-policy", "vllm,sarathi"} + Args{"--goodput", "ttft:1000"};
  for (const Json& of : {Json{{"rate", 1}}, Json{{"rate", 2}}, Json{{"most", true}}}) {
    Json entry = {{"policy", "vllm"}, {"key", "request_throughput"}, {"value", 7}};
    entry.update(of);
    run["paper"].push_back(entry);
  }
  run["paper"].push_back({{"policy", "orca"}, {"key", "request_throughput"}, {"value", 7}, {"most", true}});
  Json search = run;
  search["name"] = "two";
  search["args"].push_back("--find-effective-throughput");
  search["args"].push_back("90");
  search["paper"] = {{{"policy", "vllm"}, {"key", "effective_throughput"}, {"value", 7}}};
  const Json file = {{"title", "A figure"}, {"runs", {run, search}}};
  const Args experiment = {"--experiment", write("figure.json", file.dump()), "--save-result", "--result-dir",
                           in_folder("kept")};
  const Ran one = command(experiment + Args{"--experiment-runs", "one"});
  ASSERT_EQ(one.code, 0) << one.err;
  EXPECT_THAT(one.out, HasSubstr("| one | vllm | most | request_throughput | 7 | "));
  EXPECT_THAT(one.out, Not(HasSubstr("== two")));
  EXPECT_FALSE(std::filesystem::exists(in_folder("kept/two.figures.json")));
  EXPECT_TRUE(std::filesystem::exists(in_folder("kept/one-vllm.json")));
  const Json kept = Json::parse(*read_file(in_folder("kept/one.figures.json")));
  EXPECT_EQ(kept["title"], "A figure");
  EXPECT_EQ(kept["run"], "one");
  EXPECT_EQ(kept["args"], run["args"]);
  EXPECT_GT(kept["capacity"], 0);
  EXPECT_TRUE(kept["effective"].empty());
  ASSERT_EQ(kept["paper"].size(), 4u);
  EXPECT_LT(kept["paper"][0]["ours"], kept["paper"][1]["ours"]);
  EXPECT_EQ(kept["paper"][2]["ours"], kept["paper"][1]["ours"]) << "the greatest, not the last";
  EXPECT_TRUE(kept["paper"][3]["ours"].is_null());
  for (Json& entry : run["paper"]) entry["ours"] = kept["paper"][&entry - &run["paper"][0]]["ours"];
  EXPECT_EQ(kept["paper"], run["paper"]) << "with what the file says of each";

  const Ran two = command(experiment + Args{"--experiment-runs", "two"});
  ASSERT_EQ(two.code, 0) << two.err;
  const Json searched = Json::parse(*read_file(in_folder("kept/two.figures.json")));
  ASSERT_EQ(searched["effective"].size(), 2u);
  EXPECT_EQ(searched["effective"][0]["policy"], "vllm");
  EXPECT_GT(searched["effective"][0]["rate"], 0);
  EXPECT_EQ(searched["paper"][0]["ours"], searched["effective"][0]["rate"]);

  EXPECT_THAT(refusal(experiment + Args{"--experiment-runs", "one,three"}),
              testing::AllOf(HasSubstr("has no run 'three'"), HasSubstr("it has one, two")));
}

TEST_F(CommandTest, AFileThatDescribesNoFigureIsNamed) {
  const auto refused = [&](const std::string& text) {
    return refusal({"--experiment", write("x.json", text)});
  };
  const std::string missing = in_folder("none.json");
  EXPECT_THAT(refusal({"--experiment", missing}), HasSubstr(missing));
  for (const char* text : {"", "{", "[]", "{}", R"({"runs": []})", R"({"runs": 3, "title": "x"})"}) {
    EXPECT_THAT(refused(text), HasSubstr("x.json: no JSON object with a list of 'runs'")) << text;
  }
  const auto with_run = [&](const std::string& run) {
    return refused(R"({"title": "x", "runs": [)" + run + "]}");
  };
  const std::string good = R"("name": "a", "args": [])";
  EXPECT_THAT(refused(R"({"title": 3, "runs": [{}]})"), HasSubstr("x.json: 'title' must be a text"));
  EXPECT_THAT(refused(R"({"title": "x", "note": [], "runs": [{}]})"), HasSubstr("'note' must be a text"));
  EXPECT_THAT(with_run("7"), HasSubstr("x.json: runs[0]: no object"));
  EXPECT_THAT(with_run("{" + good + "}, {" + good + "}"), HasSubstr("x.json: two runs are called 'a'"));
  EXPECT_THAT(with_run("{" + good + R"(, "paper": [{"policy": "vllm", "key": "x", "value": 2, "to": 1}]})"),
              HasSubstr("'to' is below 'value'"));
  EXPECT_THAT(with_run(R"({"args": []})"), HasSubstr("runs[0]: 'name' must be a text"));
  EXPECT_THAT(with_run(R"({"name": "a"})"), HasSubstr("runs[0]: 'args' must be a list of flags"));
  EXPECT_THAT(with_run(R"({"name": "a", "args": "--model"})"), HasSubstr("runs[0]: 'args' must be a list"));
  EXPECT_THAT(with_run(R"({"name": "a", "args": [7]})"), HasSubstr("runs[0]: a flag that is no text"));
  EXPECT_THAT(with_run("{" + good + R"(, "paper": 1})"), HasSubstr("runs[0]: 'paper' must be a list"));
  EXPECT_THAT(with_run("{" + good + R"(, "paper": [{"policy": "vllm", "key": "x"}]})"),
              HasSubstr("runs[0], paper[0]: 'value' must be a number"));
  EXPECT_THAT(
      with_run("{" + good + R"(, "paper": [{"policy": "vllm", "key": "x", "value": 1, "rate": "2"}]})"),
      HasSubstr("paper[0]: 'rate' must be a number"));
  EXPECT_THAT(with_run("{" + good + R"(, "paper": [{"policy": "vllm", "key": "x", "value": 1, "most": 1}]})"),
              HasSubstr("paper[0]: 'most' must be true or false"));
  EXPECT_THAT(with_run(R"({"name": "a", "args": ["--no-such-flag"]})"),
              testing::AllOf(HasSubstr("x.json: run 'a': "), HasSubstr("--no-such-flag")));
  EXPECT_THAT(with_run(R"({"name": "a", "args": ["--seeds", "many"]})"),
              testing::AllOf(HasSubstr("x.json: run 'a': "), HasSubstr("--seeds")));
  EXPECT_THAT(with_run(R"({"name": "a", "args": ["--help"]})"), HasSubstr("x.json: run 'a': "));
}

}  // namespace
}  // namespace kvasir::test
