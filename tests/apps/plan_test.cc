// `kvasir plan` on devices whose answer is worked out by hand.
#include "apps/plan/plan.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <ostream>

#include "apps/plan/trials.h"
#include "apps/plan/words.h"
#include "apps/simulate_command.h"

namespace kvasir::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

PlanOptions plan_options(const Args& args) {
  PlanOptions options;
  CLI::App app;
  add_plan_flags(app, options);
  parse(app, args);
  return options;
}

Ran planned(const Args& args) {
  return ran_by([&](std::ostream& out, std::ostream& err) { return run_plan(plan_options(args), out, err); });
}

class PlanTest : public CommandTest {
 protected:
  // Every step takes 10 ms, whatever is in it. A request has 10 tokens of prompt and 50 of output, so it runs
  // for 0.5 s, and so many at once can be served at twice their number a second.
  Args clock(uint64_t kv_tokens, int slots) const {
    return host(tables(0.01), kv_tokens) + Args{"--workload",
                                                "random",
                                                "--random-input-len",
                                                "10",
                                                "--random-output-len",
                                                "50",
                                                "--max-num-seqs",
                                                fmt::format("{}", slots),
                                                "--max-num-batched-tokens",
                                                "64",
                                                "--no-progress",
                                                "--effort",
                                                "0.3",
                                                "--no-enable-prefix-caching"};
  }
};

const Args kBound = {"--slo", "ttft:1000"};

TEST_F(PlanTest, SlotsBindWhereOnlySlotsAreScarce) {
  const Args args = clock(100'000, 4) + kBound + Args{"--scheduling-policy", "vllm,sarathi",   "--json",
                                                      in_folder("a.json"),   "--request-rate", "30"};
  const Ran ran = planned(args);
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.err, "");
  const auto json = nlohmann::json::parse(read("a.json"));
  EXPECT_NEAR(json["capacity"].get<double>(), 8, 0.2);
  // A queue of Poisson arrivals at four servers of half a second each, of which 90 % wait less than a second,
  // is near its capacity and below it.
  const double rate = json["policies"][0]["rate"].get<double>();
  EXPECT_GT(rate, 0.8 * 8);
  EXPECT_LT(rate, 1.03 * 8);
  EXPECT_THAT(json["binds"].get<std::string>(), HasSubstr("--max-num-seqs"));
  EXPECT_EQ(json["what_if"][0]["what"], "--max-num-seqs 8 in place of 4");
  // Twice the slots serve twice the load, and a little more, since the larger group waits less.
  EXPECT_GT(json["what_if"][0]["gain"].get<double>(), 0.9);
  EXPECT_LT(json["what_if"][0]["gain"].get<double>(), 1.6);
  EXPECT_NEAR(json["devices"][0]["cards"].get<double>(), std::ceil(30 / rate), 1e-9);
  EXPECT_THAT(ran.out, HasSubstr("What binds: the requests that may run at once"));
  EXPECT_THAT(ran.out, HasSubstr("For 30.0 requests/s: "));
  EXPECT_THAT(ran.out, HasSubstr("time to the first token (TTFT) at most 1 s"));
}

TEST_F(PlanTest, MemoryBindsWhereOnlyMemoryIsScarce) {
  // Blocks of 16: a request takes four, and there are 16 of them.
  const Ran ran = planned(clock(256, 64) + kBound + Args{"--scheduling-policy", "vllm"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("What binds: the KV memory; more of it gains most"));
  EXPECT_THAT(ran.out, HasSubstr("What would help most: "));
}

TEST_F(PlanTest, TheSameFlagsGiveTheSameAnswerOnAnyNumberOfCores) {
  const Args args =
      clock(2000, 4) + kBound + Args{"--no-what-if", "--scheduling-policy", "vllm,sarathi,auto"};
  const Ran one = planned(args + Args{"-j", "1"});
  ASSERT_EQ(one.code, 0) << one.err;
  EXPECT_EQ(planned(args + Args{"-j", "2"}).out, one.out);
  EXPECT_THAT(one.out, Not(HasSubstr("What if")));
}

TEST_F(PlanTest, AllLeavesOutWhatNeedsMoreThanThereIsAndSaysSo) {
  const PlanOptions options = plan_options({"--model", "opt-13b", "--device", "a100-40g"});
  const PolicyChoice choice = choose_policies(options.simulate);
  const auto has = [&](const std::string& name) {
    return std::count(choice.policies.begin(), choice.policies.end(), name);
  };
  EXPECT_EQ(has("auto"), 1);
  EXPECT_EQ(has("sarathi"), 1);
  EXPECT_EQ(has("vllm-swap") + has("layerkv") + has("distkv") + has("priority") + has("fcfs") + has("all"),
            0);
  std::string why;
  for (const LeftOutPolicy& p : choice.left_out) why += p.policy + " " + p.why + "\n";
  EXPECT_THAT(why, HasSubstr("layerkv needs a host tier: give --kv-offloading-size\n"));
  EXPECT_THAT(why, HasSubstr("distkv needs peers: give --instances 2 or more\n"));
  EXPECT_THAT(why, HasSubstr("priority needs priorities: give --slo-class with priority:P\n"));
  SimulateOptions more = options.simulate;
  more.policies = {"vllm", "all"};
  more.instances = 2;
  more.runtime.kv_offloading_bytes = 1;
  more.bench.slo_classes = {"a:1,ttft:5,priority:3"};
  ASSERT_EQ(choose_policies(more).left_out.size(), 1u);
  EXPECT_EQ(choose_policies(more).left_out.front().policy, "distkv");
  EXPECT_THAT(choose_policies(more).left_out.front().why, HasSubstr("leave --kv-offloading-size and "));
  more.runtime.kv_offloading_bytes = 0;
  for (const LeftOutPolicy& p : choose_policies(more).left_out) EXPECT_NE(p.policy, "distkv");
  EXPECT_EQ(choose_policies(more).policies.front(), "vllm");
}

TEST_F(PlanTest, SimulateTakesAllAndSaysWhichIsBest) {
  const Args args = host(tables(0.01), 2000) + lengths(10, 50, 40) +
                    Args{"--request-rate", "4", "--goodput", "ttft:1000", "--scheduling-policy", "all"};
  Ran ran = command(args);
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("left out: layerkv needs a host tier"));
  EXPECT_THAT(ran.out, HasSubstr("at 4 requests/s, most requests meet all bounds under "));
  EXPECT_THAT(ran.out, HasSubstr("level with it: "));
  EXPECT_THAT(ran.out, HasSubstr("One seed has no interval"));
  EXPECT_THAT(ran.out, HasSubstr("; under it requests wait for memory or a slot 0 % of the time, "));
  EXPECT_THAT(ran.err, HasSubstr("sarathi at 4 requests/s: 100.0 % meet all bounds\n")) << "as they are done";
  ran = command(args + Args{"--seeds", "2", "--scheduling-policy", "vllm", "--scheduling-policy", "layerkv"});
  EXPECT_THAT(ran.out,
              HasSubstr("layerkv needs a host tier: give --kv-offloading-size; without that it plans "));
  EXPECT_THAT(ran.out, Not(HasSubstr("One seed has no interval")));
}

TEST_F(PlanTest, SimulateSaysTheHighestRateThatEachPolicyMeets) {
  const Args rates = host(tables(0.01), 2000) + lengths(10, 50, 40) +
                     Args{"--request-rate", "4,5", "--scheduling-policy", "vllm,sarathi"};
  constexpr const char* kHighest =
      "the highest of these rates at which 90 % of the requests meet all bounds: ";
  EXPECT_THAT(command(rates + Args{"--goodput", "ttft:1000"}).out,
              HasSubstr(std::string(kHighest) + "vllm 5, sarathi 5\n"));
  EXPECT_THAT(command(rates + Args{"--goodput", "ttft:0.001"}).out,
              HasSubstr(std::string(kHighest) + "vllm none, sarathi none\n"));
}

TEST_F(PlanTest, RefusesInOneLine) {
  const auto refused = [&](const Args& args) {
    const Ran ran = planned(args);
    EXPECT_EQ(ran.code, 1);
    EXPECT_EQ(ran.err.find('\n'), ran.err.size() - 1) << ran.err;
    return ran.err;
  };
  const Args base = clock(2000, 4);
  EXPECT_THAT(refused(base), HasSubstr("kvasir plan: --slo: say which bounds"));
  EXPECT_THAT(refused(base + kBound + Args{"--request-rate", "1,2"}),
              HasSubstr("--request-rate 1,2: give the one load"));
  EXPECT_THAT(refused(base + kBound + Args{"--prices", "/no/such"}), HasSubstr("--prices: "));
  EXPECT_THAT(refused(base + kBound + Args{"--scheduling-policy", "nosuch"}), HasSubstr("nosuch"));
  EXPECT_THAT(refused(base + Args{"--goodput", "tbt:100"}), HasSubstr("say max_tbt:100 if every gap"));
  EXPECT_THAT(refused(base + Args{"--relative-slo", "1:2"}), HasSubstr("--slo-reference"));
}

TEST_F(PlanTest, ADeviceThatDoesNotHoldTheModelIsARowNotAnError) {
  const std::string prices = write("p.yaml", "l20: 1\n");
  const Ran ran = planned(Args{"--model",
                               "opt-30b",
                               "--device",
                               "h100",
                               "--workload",
                               "random",
                               "--random-input-len",
                               "100",
                               "--random-output-len",
                               "20",
                               "--slo",
                               "ttft:1000",
                               "--scheduling-policy",
                               "sarathi",
                               "--no-what-if",
                               "--no-progress",
                               "--effort",
                               "0.1",
                               "--prices",
                               prices});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("l20"));
  EXPECT_THAT(ran.out, HasSubstr("does not fit 1 x l20"));
}

// opt-30b's weights do not fit an l20. Those of opt-13b do, which takes 30 ms to read its 26 GB, and an
// h100 8.
TEST_F(PlanTest, WhereTheDeviceDoesNotServeTheOthersAreAsked) {
  const std::string prices = write("p.yaml", "l20: 1\nh100: 2\n");
  const auto asked = [&](const std::string& model, const std::string& bound) {
    return planned(Args{"--model",
                        model,
                        "--device",
                        "l20",
                        "--workload",
                        "random",
                        "--random-input-len",
                        "100",
                        "--random-output-len",
                        "20",
                        "--slo",
                        bound,
                        "--request-rate",
                        "4",
                        "--scheduling-policy",
                        "sarathi,layerkv",
                        "--no-what-if",
                        "--no-progress",
                        "--effort",
                        "0.05",
                        "--prices",
                        prices,
                        "--json",
                        in_folder("a.json"),
                        "--html",
                        in_folder("a.html")});
  };
  Ran ran = asked("opt-30b", "ttft:5000");
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("l20 cannot serve opt-30b: "));
  EXPECT_THAT(ran.out, HasSubstr("For 4.00 requests/s: 1 device of h100 under "));
  EXPECT_THAT(ran.out, HasSubstr(", 2.00 an hour, the cheapest in the table."));
  EXPECT_EQ(nlohmann::json::parse(read("a.json"))["lacking"][0]["policy"], "layerkv");
  EXPECT_THAT(read("a.html"), HasSubstr("layerkv needs a host tier: give --kv-offloading-size; without"));
  ran = asked("opt-13b", "tpot:25");
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("No rate is met: "));
  EXPECT_THAT(ran.out, HasSubstr("For 4.00 requests/s: 1 device of h100 under sarathi"));
  ran = asked("opt-30b", "ttft:1");
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("h100    no rate is met"));
  EXPECT_THAT(ran.out, Not(HasSubstr("For 4.00")));
}

TEST_F(PlanTest, APolicyThatIsNamedAndLacksSomethingRunsAndTheAnswerSaysSo) {
  const Ran ran =
      planned(clock(100'000, 4) + kBound + Args{"--scheduling-policy", "layerkv", "--no-what-if"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out,
              HasSubstr("layerkv needs a host tier: give --kv-offloading-size; without that it plans"));
}

TEST_F(PlanTest, InstancesCountOnEveryDevice) {
  const std::string prices = write("p.yaml", "h100: 2\na100-80g: 1\n");
  const Ran ran = planned(Args{"--model",
                               "opt-13b",
                               "--device",
                               "h100",
                               "--instances",
                               "2",
                               "--workload",
                               "random",
                               "--random-input-len",
                               "100",
                               "--random-output-len",
                               "20",
                               "--slo",
                               "ttft:1000",
                               "--scheduling-policy",
                               "sarathi",
                               "--no-what-if",
                               "--no-progress",
                               "--effort",
                               "0.05",
                               "--seeds",
                               "1",
                               "--prices",
                               prices,
                               "--json",
                               in_folder("a.json")});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const auto json = nlohmann::json::parse(read("a.json"));
  ASSERT_EQ(json["devices"].size(), 2u);
  for (const auto& device : json["devices"]) EXPECT_EQ(device["cards_of_a_system"], 2) << device;
}

TEST_F(PlanTest, OneSeedIsOneIfItIsAskedFor) {
  const Args args = clock(100'000, 4) + kBound +
                    Args{"--scheduling-policy", "vllm", "--no-what-if", "--json", in_folder("a.json")};
  Ran ran = planned(args + Args{"--seeds", "1"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("(one seed, so no interval: --seeds 3 gives one)"));
  EXPECT_EQ(nlohmann::json::parse(read("a.json"))["seeds"], 1);
  ran = planned(args);
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(nlohmann::json::parse(read("a.json"))["seeds"], 3);
}

TEST_F(PlanTest, ThereIsASeedAtLeast) {
  PlanOptions options;
  CLI::App app;
  add_plan_flags(app, options);
  EXPECT_THROW(app.parse(std::vector<std::string>{"0", "--seeds"}), CLI::ValidationError);
}

TEST_F(PlanTest, ABoundMayBeLongerThanAnyRun) {
  const Ran ran = planned(clock(100'000, 4) + Args{"--goodput", "ttft:1e30", "--scheduling-policy", "vllm",
                                                   "--no-what-if", "--json", in_folder("a.json")});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(nlohmann::json::parse(read("a.json"))["run_requests"], 1200) << "the most that there are";
  EXPECT_THAT(ran.out, HasSubstr("That is short: "));
}

// Six requests, one a second; judged from 1 s to 5 s, which are those of the seconds 1 to 4.
TEST(Judge, CountsWhatArrivesInTheMiddle) {
  SimulationOutcome o;
  std::vector<SimulatedRequest> requests;
  for (int i = 0; i < 6; ++i) {
    SimulatedRequest r;
    r.arrival = from_seconds(i);
    requests.push_back(r);
    RequestRecord record;
    record.state = RequestRecord::State::kCompleted;
    record.start = r.arrival;
    record.first = r.arrival + from_seconds(i == 2 ? 0.5 : 0.05);
    record.last = record.end = r.arrival + from_seconds(0.6);
    record.output_tokens = 2;
    record.gaps = {record.last - record.first};
    o.load.records.push_back(record);
  }
  o.load.records[4].state = RequestRecord::State::kSent;  // never ends: in the system from 4 s on
  o.load.records[4].end = 0;
  o.load.duration = from_seconds(6);
  o.busy_s = 3;
  o.sums.seconds = 6;
  o.sums.seconds_at_limit = 1.5;
  o.sums.plans = 10;
  o.sums.allocated = 4;
  EngineSample full;
  full.at = 0;
  full.running = 2;
  EngineSample idle;
  idle.at = from_seconds(4);
  o.samples = {full, idle};
  BenchConfig config;
  config.goals = {{Goal::Key::kTtft, 100}};
  const JudgedRun run = judge(o, requests, config, {2, 8, 0, 0}, 1, 5);
  EXPECT_DOUBLE_EQ(run.trial.attained, 50);  // 1 and 3; 2 is late, 4 has not ended
  EXPECT_DOUBLE_EQ(run.usage.goodput, 0.5);
  // First third: 1 to 7/3 s has 0.6 + 1/3 s; last: 11/3 to 5 s has 0 of request 3 (it ends at 3.6) and 1 s
  // of 4.
  EXPECT_NEAR(run.trial.growth, 100 * ((1 - (0.6 + 1.0 / 3)) / (4.0 / 3)) / (2.0 / 3 * 4), 1e-6);
  EXPECT_DOUBLE_EQ(run.usage.busy, 50);
  EXPECT_DOUBLE_EQ(run.usage.limited, 25);
  EXPECT_DOUBLE_EQ(run.usage.memory, 40);
  EXPECT_DOUBLE_EQ(run.usage.slots_full, 75);
  EXPECT_DOUBLE_EQ(run.usage.mean_running, 1.5);
}

}  // namespace
}  // namespace kvasir::test
