// Capacity and effective throughput of systems whose figures can be worked out by hand; memory over several
// cards; belief.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <atomic>
#include <map>
#include <new>

#include "apps/bench/attainment.h"
#include "apps/bench/report.h"
#include "apps/simulate/catalog/catalog.h"
#include "apps/simulate_command.h"
#include "base/parallel.h"

namespace kvasir::test {
namespace {

using testing::HasSubstr;

Capacity capacity_of(const Args& args) {
  const Result<Study> study = Study::make(options_of(args));
  EXPECT_TRUE(study.ok()) << study.status().message();
  if (!study.ok()) return {};
  Result<Capacity> out = study->measure_capacity();
  EXPECT_TRUE(out.ok()) << out.status().message();
  return out.ok() ? *std::move(out) : Capacity();
}

using CapacityTest = CommandTest;

// Four at once; each turn takes a step for the prompts and nine for the other tokens.
TEST_F(CapacityTest, OfRequestsThatEndTogether) {
  const Args args = host(tables(0.010), 4096) + lengths(20, 10, 30) + Args{"--max-num-seqs", "4"};
  const Capacity c = capacity_of(args);
  EXPECT_NEAR(c.rate, 4 / (10 * 0.010), 0.01);
  EXPECT_EQ(c.requests, 40u) << "ten turns";
  EXPECT_EQ(c.failed, 0u);
}

// The memory holds as many as it has times 32 tokens: two blocks, as they are reached.
TEST_F(CapacityTest, GrowsWithMemoryUntilComputeBinds) {
  std::vector<double> rates;
  for (uint64_t requests : {1, 2, 4, 16, 64, 128, 256}) {
    const Args args = host(tables(0.010, 0.001), 32 * requests) + lengths(20, 11, 30);
    rates.push_back(capacity_of(args).rate);
    const auto n = static_cast<double>(requests);
    // A turn: one step of prompts, and ten of decodes. The ends of turns mix where memory does not hold all
    // that could be admitted.
    const double by_hand = n / (0.010 + 10 * (0.010 + 0.001 * n));
    if (requests < 256) {
      EXPECT_NEAR(rates.back() / by_hand, 1, 0.05) << requests;
    }
  }
  for (size_t i = 1; i < rates.size(); ++i) EXPECT_GT(rates[i], rates[i - 1]);
  EXPECT_LT(rates.back(), 1 / (10 * 0.001)) << "what the decodes take alone";
  EXPECT_LT(rates[6] / rates[5], 1.1);
  EXPECT_GT(rates[1] / rates[0], 1.7);
}

// Twenty thousand is the largest crowd: here nearly all of it runs at once, and ends in one instant. (A
// hundredth of the memory is kept free, so that a few come behind.)
TEST_F(CapacityTest, OfACrowdThatIsOneTurn) {
  const Args args = host(tables(0.010), 16 * 20'000) + lengths(1, 2, 10) +
                    Args{"--max-num-seqs", "20000", "--max-num-batched-tokens", "20000"};
  const Capacity c = capacity_of(args);
  EXPECT_EQ(c.requests, 20'000u);
  EXPECT_NEAR(c.rate, 0.99 * 20'000 / 0.020, 1);
}

// What a step of a catalogued device takes is what --price says of it.
TEST_F(CapacityTest, OfACataloguedDeviceAsItsPricesSay) {
  const Args system = {"--model", "opt-13b", "--device", "a100-40g", "--engine-overhead", "none"};
  std::string steps = "prefill_rows,chunks,decode_rows,decode_context\n64,8,0,0\n";
  for (int i = 1; i < 32; ++i) steps += fmt::format("0,0,8,{}\n", 8 * (64 + i));
  const Ran priced = command(system + Args{"--price", write("steps.csv", steps)});
  ASSERT_EQ(priced.code, 0) << priced.err;
  double turn_ms = 0;
  std::istringstream lines(priced.out);
  std::string line;
  std::getline(lines, line);
  EXPECT_THAT(line, testing::EndsWith(",total_ms"));
  int count = 0;
  for (; std::getline(lines, line); ++count) turn_ms += std::stod(line.substr(line.rfind(',') + 1));
  ASSERT_EQ(count, 32);
  const Capacity c = capacity_of(system + lengths(64, 32, 20) + Args{"--max-num-seqs", "8"});
  EXPECT_NEAR(c.rate / (8 / (turn_ms / 1e3)), 1, 0.02);
}

TEST_F(CapacityTest, DoesNotDependOnWhenATracesRequestsCome) {
  std::string dense = "prompt,output,arrival\n", sparse = dense, bare = "prompt,output\n";
  for (int i = 0; i < 40; ++i) {
    const std::string row = fmt::format("{},{}", 10 + 7 * i % 50, 5 + i % 3);
    dense += row + ",0\n";
    sparse += fmt::format("{},{}\n", row, 100 * i * i);
    bare += row + "\n";
  }
  const Args system = host(tables(0.010, 0.001), 1000);
  const auto of = [&](const std::string& name, const std::string& text) {
    return capacity_of(system + Args{"--workload", "trace", "--dataset-path", write(name, text),
                                     "--request-rate", "1"})
        .rate;
  };
  EXPECT_EQ(of("dense.csv", dense), of("sparse.csv", sparse));
  EXPECT_GT(of("bare.csv", bare), 0);
}

TEST_F(CapacityTest, SaysWhatIsTooLong) {
  const Args system = host(tables(0.010), 256) + Args{"--max-num-seqs", "4"};
  EXPECT_THAT(refusal(system + lengths(300, 10, 20)),
              testing::AllOf(HasSubstr("no request can be served: "), HasSubstr("256")));
  std::string trace = "prompt,output,arrival\n";
  for (int i = 0; i < 40; ++i) trace += fmt::format("{},10,{}\n", i % 4 == 0 ? 300 : 20, i);
  const Args mixed = system + Args{"--workload", "trace", "--dataset-path", write("mixed.csv", trace)};
  const Capacity c = capacity_of(mixed);
  EXPECT_EQ(c.requests, 40u);
  EXPECT_EQ(c.failed, 10u);
  EXPECT_THAT(c.why, HasSubstr("256"));
  EXPECT_NEAR(c.rate, 4 / (10 * 0.010), 0.01);
  const Ran ran = command(mixed);
  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(ran.out, HasSubstr("of those 10 failed, and count in nothing, such as: " + c.why));
  EXPECT_THAT(ran.out, HasSubstr("10 requests failed: "));

  trace = "prompt,output,arrival\n20,10,0\n";
  for (int i = 1; i <= 5; ++i) trace += fmt::format("{},10,{}\n", 300 + i, i);
  EXPECT_THAT(command(system + Args{"--workload", "trace", "--dataset-path", write("five.csv", trace)}).out,
              HasSubstr("... and 2 other kinds of failures\n"));
}

// Each of 20 requests comes after the one before has ended. With one prefix of 64 tokens the first computes
// it, and the others find its four blocks.
TEST_F(CapacityTest, SharedPrefixesAreFoundInTheCache) {
  const Args args = host(tables(0.010), 4096) + lengths(20, 10, 20) +
                    Args{"--shared-prefix-len", "64", "--request-rate", "0.1"};
  const auto rows = [&](const Args& more) {
    const Result<Study> study = Study::make(options_of(args + more));
    EXPECT_TRUE(study.ok()) << study.status().message();
    const Result<SimulationOutcome> run = study->run("sarathi", {0.1, 0, 0}, std::nullopt, nullptr);
    EXPECT_TRUE(run.ok()) << run.status().message();
    return run.ok() ? run->sums.rows : 0;
  };
  const auto all = rows({"--num-shared-prefixes", "1", "--no-enable-prefix-caching"});
  EXPECT_EQ(all, 20u * (84 + 9));
  EXPECT_EQ(rows({"--num-shared-prefixes", "1"}), all - 19 * 64);
  const auto several = rows({"--num-shared-prefixes", "4"});
  EXPECT_GT(several, all - 19 * 64);
  EXPECT_LT(several, all);
}

// ---------------------------------------------------------------- effective throughput

class EffectiveTest : public CommandTest {
 protected:
  Args load(const std::string& goal) const {
    return host(tables(0.010, 0.001), 32 * 8) + lengths(20, 11, 60) + Args{"--goodput", goal};
  }
  static double attained(const Args& args, const std::string& policy, double rate) {
    const Result<Study> study = Study::make(options_of(args));
    const Result<SimulationOutcome> run = study->run(policy, {rate, 0, 0}, std::nullopt, nullptr);
    const Summary s = summarise(run->load, study->config());
    return 100.0 * static_cast<double>(s.good) / static_cast<double>(s.submitted);
  }
};

TEST_F(EffectiveTest, IsTheHighestRateThatAttainsWhatIsAsked) {
  const Args args = load("ttft:200");
  const Answer found =
      answer_of(args + Args{"--find-effective-throughput", "90", "--scheduling-policy", "vllm,sarathi"});
  ASSERT_EQ(found.effective.size(), 2u);
  EXPECT_TRUE(found.policies.empty());
  for (const EffectiveThroughput& f : found.effective) {
    EXPECT_FALSE(f.more);
    EXPECT_GT(f.rate, 0.1 * found.capacity) << f.policy;
    EXPECT_LT(f.rate, 2 * found.capacity) << f.policy;
    EXPECT_EQ(attained(args, f.policy, f.rate), f.attained);
    EXPECT_GE(f.attained, 90);
    EXPECT_LT(attained(args, f.policy, 1.03 * f.rate), 90) << f.policy;
  }
  EXPECT_EQ(found.effective[0].policy, "vllm");
  EXPECT_EQ(found.effective[1].policy, "sarathi");
}

TEST_F(EffectiveTest, SaysWhereThereIsNone) {
  const Args search = {"--find-effective-throughput", "90", "--scheduling-policy", "sarathi"};
  const Ran never = command(load("ttft:1e9") + search);
  EXPECT_EQ(never.code, 0) << never.err;
  EXPECT_THAT(never.out, HasSubstr("sarathi      never saturates: 100.0 % meet them at "));
  EXPECT_THAT(never.out, HasSubstr(" requests/s, 8 x the capacity; "));
  const Ran none = command(load("ttft:1") + search);
  EXPECT_EQ(none.code, 0) << none.err;
  EXPECT_THAT(none.out, HasSubstr("sarathi      none: not even at a fiftieth of the capacity"));
}

TEST_F(EffectiveTest, NeedsBoundsAndNothingElse) {
  const Args search = {"--find-effective-throughput", "90"};
  const Args bare = host(tables(0.010), 256) + lengths(20, 11, 20) + search;
  EXPECT_THAT(refusal(bare), HasSubstr("--find-effective-throughput: --goodput must say"));
  EXPECT_THAT(refusal(bare + Args{"--relative-slo", "0.5:2"}),
              testing::AllOf(HasSubstr("--relative-slo"), HasSubstr("--slo-reference")));
  EXPECT_EQ(command(bare + Args{"--relative-slo", "0.5:2", "--slo-reference", "ttft:100,tbt:20"}).code, 0);
  EXPECT_EQ(command(bare + Args{"--slo", "ttft:100"}).code, 0);
  EXPECT_EQ(command(bare + Args{"--slo-class", "all:1,ttft:100"}).code, 0);
  for (const Args& other : {Args{"--save-result"}, Args{"--html", in_folder("x.html")},
                            Args{"--explain", "1"}, Args{"--log-plans", in_folder("x.log")}}) {
    EXPECT_THAT(refusal(load("ttft:100") + search + other), HasSubstr(other.front()));
  }
}

// ---------------------------------------------------------------- a run's figures

// Ten steps of ten milliseconds each, the second request 0.3 s after the first: 0.2 of 0.4 s.
TEST_F(CommandTest, TimeInStepsIsNotTimeInWhichNothingRuns) {
  const std::string trace = write("trace.csv", "prompt,output,arrival\n20,10,0\n20,10,0.3\n");
  const Answer got =
      answer_of(host(tables(0.010), 64) + Args{"--workload", "trace", "--dataset-path", trace});
  const auto& figures = got.policies.at(0).runs.at(0).summary.engine;
  const auto found = std::find_if(figures.begin(), figures.end(),
                                  [](const EngineFigure& f) { return f.key == "time_in_steps"; });
  ASSERT_NE(found, figures.end());
  EXPECT_NEAR(found->value, 50, 1e-6);
}

// One request: ten steps of ten milliseconds, the first of which has its prompt.
TEST_F(CommandTest, RequestsMayStateTheLengthsOfTheirOwnOutputs) {
  const Args args = host(tables(0.010), 4096) + Args{"--workload", "alpaca", "--num-prompts", "20"};
  const auto requests = [&](const Args& limit) {
    const Result<Study> study = Study::make(options_of(args + limit));
    EXPECT_TRUE(study.ok()) << study.status().message();
    return study->requests({1, 0, 0});
  };
  for (const SimulatedRequest& r : requests({"--own-max-tokens"})) EXPECT_EQ(r.max_tokens, r.output_tokens);
  for (const SimulatedRequest& r : requests({"--max-tokens", "300"})) EXPECT_EQ(r.max_tokens, 300u);
  for (const SimulatedRequest& r : requests({})) EXPECT_EQ(r.max_tokens, 0u);
}

TEST_F(CommandTest, FiguresAndCurvesOfARun) {
  const Answer got = answer_of(host(tables(0.010), 64) + lengths(20, 10, 1));
  const RunResult& run = got.policies.at(0).runs.at(0);
  EXPECT_NEAR(run.summary.duration, 0.1, 1e-9);
  std::map<std::string, double> figures;
  for (const EngineFigure& f : run.summary.engine) figures[f.key] = f.value;
  EXPECT_NEAR(figures.at("mean_queue_ms"), 0, 1e-9);
  EXPECT_NEAR(figures.at("mean_prefill_ms"), 10, 1e-9);
  EXPECT_EQ(figures.at("mean_preempted_ms"), 0);
  EXPECT_NEAR(figures.at("mean_normalised_latency_ms"), 100.0 / 10, 1e-9);
  EXPECT_EQ(figures.at("steps"), 10);
  EXPECT_DOUBLE_EQ(figures.at("mean_step_tokens"), 2.9);
  EXPECT_DOUBLE_EQ(figures.at("mean_decode_batch"), 0.9);
  EXPECT_DOUBLE_EQ(figures.at("mean_running_requests"), 1);
  EXPECT_EQ(figures.at("time_at_batch_limit"), 0);
  EXPECT_EQ(figures.at("computed_again_tokens"), 0);
  EXPECT_EQ(figures.count("link_busy"), 0u) << "there is no link";
  // Each slice's average times its length, summed up. What holds between two plans is what the first one saw.
  std::map<std::string, double> sums;
  for (const EngineLine& line : run.curves.engine) {
    for (double v : line.values) sums[line.chart + ": " + line.name] += v * run.curves.bin_s;
  }
  EXPECT_NEAR(sums.at("Requests in the engine: running"), 0.09, 1e-9);
  EXPECT_NEAR(sums.at("Requests in the engine: waiting"), 0.01, 1e-9);
  EXPECT_NEAR(sums.at("Tokens of a step: all"), 0.29, 1e-9);
  EXPECT_NEAR(sums.at("Tokens of a step: decodes"), 0.09, 1e-9);
  // Two blocks of 512 bytes, from the second plan on.
  EXPECT_NEAR(sums.at("Memory held by requests, GiB: kv on the device"), 0.09 * 1024 / double(1 << 30),
              1e-12);
}

TEST(RunParallel, DoesEachOnceAndPassesOnWhatIsThrown) {
  for (int threads : {0, 1, 2, 7}) {
    std::vector<std::atomic<int>> done(50);
    run_parallel(done.size(), threads, [&](size_t i) { ++done[i]; });
    for (const std::atomic<int>& n : done) EXPECT_EQ(n, 1);
    EXPECT_THROW(run_parallel(50, threads, [](size_t i) { i == 20 ? throw std::bad_alloc() : void(); }),
                 std::bad_alloc);
    run_parallel(0, threads, [](size_t) { FAIL(); });
  }
}

// ---------------------------------------------------------------- several cards

class CardsTest : public testing::TestWithParam<std::tuple<const char*, uint32_t, uint32_t>> {};

TEST_P(CardsTest, ShareTheMemoryOfTheKvCache) {
  const auto [name, tensor, pipeline] = GetParam();
  const Args args = {"--model",
                     name,
                     "--device",
                     "a100-80g",
                     "--tensor-parallel-size",
                     fmt::format("{}", tensor),
                     "--pipeline-parallel-size",
                     fmt::format("{}", pipeline)};
  const Result<SimulatedSystem> system = make_system(options_of(args));
  ASSERT_TRUE(system.ok()) << system.status().message();
  const ModelShape model = find_model(name).value();
  const Parallelism cards{tensor, pipeline};
  const DeviceMemory memory = memory_of(model, find_device("a100-80g").value(), cards, 0.9).value();
  const uint64_t heads = std::max<uint64_t>(1, model.kv_heads / tensor);
  EXPECT_EQ(system->kv_plane_bytes_per_token_layer, heads * model.head_dim * 2);
  const uint64_t token = 2 * system->layers * system->kv_plane_bytes_per_token_layer;
  EXPECT_EQ(system->kv_cache_bytes % token, 0u);
  EXPECT_EQ(system->kv_cache_bytes / token, memory.kv_tokens(model, cards));
  // Each stage moves its own layers over a link of its own.
  const double link = find_device("a100-80g").value().pcie.usable() * pipeline;
  EXPECT_DOUBLE_EQ(system->link[index_of(Tier::kHost)][index_of(Tier::kDevice)].seconds_per_byte, 1 / link);

  const auto with = [&](uint64_t bytes) {
    return make_system(options_of(args + Args{"--kv-cache-memory-bytes", fmt::format("{}", bytes)}));
  };
  EXPECT_EQ(with(system->kv_cache_bytes)->kv_cache_bytes, system->kv_cache_bytes);
  EXPECT_EQ(with(1000 * token)->kv_cache_bytes, 1000 * token);
  const Status beyond = with(system->kv_cache_bytes + 1).status();
  EXPECT_EQ(beyond.code(), ErrorCode::kExhausted);
  EXPECT_THAT(beyond.message(), HasSubstr("--kv-cache-memory-bytes"));
}

INSTANTIATE_TEST_SUITE_P(Models, CardsTest,
                         testing::Values(std::tuple{"llama-2-7b", 1, 1}, std::tuple{"llama-2-7b", 4, 1},
                                         std::tuple{"llama-2-7b", 1, 3}, std::tuple{"llama-2-7b", 2, 2},
                                         std::tuple{"llama-3.1-70b", 8, 1}, std::tuple{"llama-3.1-70b", 4, 2},
                                         std::tuple{"yi-6b", 8, 1}, std::tuple{"smollm2-135m", 1, 2}));

// ---------------------------------------------------------------- belief

TEST(BelievedCosts, FitWhatTheyCanExpressExactly) {
  // As the truth of a device whose times are a sum of the terms that belief has.
  const LinearTimes times(300, 40, 15, 0.02, 0.3);
  for (uint32_t context : {512u, 2048u, 200'000u}) {
    const CostModel costs = believed_costs(times, context);
    for (double rows : {1., 33., 700.}) {
      StepLoad load;
      load.chunks = {{rows, 2 * rows}};
      load.decode_rows = 5;
      load.decode_context = 5 * 50;
      load.projected = 70;
      load.sampled = 6;
      StepWork work;
      work.add_prefill(2 * rows, rows);
      work.decode_rows = 5;
      work.decode_context = 250;
      work.projected_tokens = 70;
      EXPECT_NEAR(costs.step_seconds(work) / times.seconds(load), 1, 1e-6) << context << " " << rows;
    }
  }
}

TEST_F(CommandTest, WhatPoliciesBelieveChangesNothingForThoseThatReadNoCosts) {
  const Args args =
      host(tables(0.010, 0.001), 32 * 8) + lengths(20, 11, 60) +
      Args{"--request-rate", "0.9x,1.2x", "--scheduling-policy", "vllm,sarathi,fastgen,orca,vllm-swap"};
  const Ran plain = command(args);
  ASSERT_EQ(plain.code, 0) << plain.err;
  for (const char* scale : {"0.01", "100"}) {
    EXPECT_EQ(command(args + Args{"--no-belief-learns", "--belief-scale", scale}).out, plain.out);
  }
}

TEST_F(CommandTest, OnlyABeliefThatLearnsHasAnError) {
  const Args args = host(tables(0.010, 0.001), 32 * 8) + lengths(20, 11, 60) + Args{"--request-rate", "0.9x"};
  const auto error_of = [&](const Args& more) {
    const Answer got = answer_of(args + more);
    for (const EngineFigure& f : got.policies.at(0).runs.at(0).summary.engine) {
      if (f.key == "cost_error_ratio") return std::optional(f.value);
    }
    return std::optional<double>();
  };
  EXPECT_LT(error_of({}).value(), 0.05);
  EXPECT_LT(error_of({"--belief-scale", "1.5"}).value(), 0.2);
  EXPECT_FALSE(error_of({"--no-belief-learns"})) << "it is not compared with the steps";
}

}  // namespace
}  // namespace kvasir::test
