// What is said of several runs and systems: attainments, intervals, timelines, the server's counters, the
// page.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "apps/bench/curves.h"
#include "apps/bench/html_report.h"
#include "apps/bench/progress.h"
#include "apps/bench/result_file.h"
#include "apps/bench/result_reader.h"
#include "apps/bench/server_metrics.h"
#include "apps/report/chart.h"
#include "apps/report/page.h"
#include "bench_numbers.h"

namespace kvasir {
namespace {

template <typename AnyChart>
std::string svg_of(const AnyChart& chart) {
  return drawn(chart).wide;
}

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;
using State = RequestRecord::State;

BenchConfig study_config(const BenchOptions& options) {
  Result<BenchConfig> config = check_options(options);
  EXPECT_TRUE(config.ok()) << config.status().message();
  return std::move(config).value();
}

RequestRecord completed(Nanos ttft, std::vector<Nanos> gaps) {
  RequestRecord r;
  r.state = State::kCompleted;
  r.start = 1000 * kMs;
  r.first = r.last = r.start + ttft;
  for (Nanos gap : gaps) r.last += gap;
  r.end = r.last;
  r.gaps = std::move(gaps);
  r.content_chunks = r.output_tokens = static_cast<int64_t>(r.gaps.size()) + 1;
  r.usage_known = true;
  return r;
}

RequestRecord ended_as(State state, bool refused = false, Nanos took = 0) {
  RequestRecord r;
  r.state = state;
  r.start = 1000 * kMs;
  r.end = state == State::kFailed ? r.start + took : 0;
  r.refused = refused;
  r.error = state == State::kFailed ? "x" : "";
  return r;
}

// Four complete, one is refused after 8 ms and one after 2, one fails, one has not ended, one was held back
// and one never arrived: nine are submitted. Bounds: TTFT 100, mean TPOT 20, TBT 50, E2EL 300.
//   A: TTFT 100, gaps 10 10: meets all.
//   B: TTFT 150, gaps 10 10: misses TTFT.
//   C: TTFT 50, ninety-nine gaps of 1 and two of 60: TPOT 219/101; one gap above 50 of a hundred would be
//   above
//      the 99th percentile alone, two of 101 are not: rank 99 of 0..100 is 60. Misses both kinds of TBT.
//   D: TTFT 50, a hundred and ninety-nine gaps of 1 and one of 60: rank 197.01 is 1. Misses "every TBT"
//   alone.
LoadOutcome mixed_load() {
  LoadOutcome o;
  o.start = 1000 * kMs;
  o.duration = 2000 * kMs;
  std::vector<Nanos> c(99, 1 * kMs), d(199, 1 * kMs);
  c.insert(c.end(), 2, 60 * kMs);
  d.push_back(60 * kMs);
  o.records = {completed(100 * kMs, {10 * kMs, 10 * kMs}),
               completed(150 * kMs, {10 * kMs, 10 * kMs}),
               completed(50 * kMs, c),
               completed(50 * kMs, d),
               ended_as(State::kFailed, true, 8 * kMs),
               ended_as(State::kFailed, true, 2 * kMs),
               ended_as(State::kFailed),
               ended_as(State::kSent),
               ended_as(State::kHeld),
               ended_as(State::kWaiting)};
  o.drained_out = true;
  return o;
}

TEST(Attainment, KindsAreCountedApart) {
  BenchOptions options;
  options.slo = {"ttft:100", "tpot:20", "tbt:50", "e2el:300"};
  const BenchConfig config = study_config(options);
  const Summary s = summarise(mixed_load(), config);
  EXPECT_EQ(s.submitted, 9);
  EXPECT_EQ(s.completed, 4);
  EXPECT_EQ(s.failed, 1);
  EXPECT_EQ(s.refused, 2);
  EXPECT_EQ(s.unfinished, 3);
  EXPECT_EQ(*s.median_refusal_ms, 5);
  EXPECT_EQ(*s.max_refusal_ms, 8);
  ASSERT_EQ(config.bounds.size(), 5u);
  // TTFT: A C D; TPOT: all four; P99 TBT: A B D; every TBT: A B; E2EL: A, B, C (269); D has 309.
  EXPECT_THAT(s.attained, ElementsAre(3, 4, 3, 2, 3));
  EXPECT_EQ(s.good, 1);  // TTFT, TPOT, P99 TBT and E2EL together: A
  const std::string block = printed_block({kInf, {s}}, config);
  EXPECT_THAT(block, HasSubstr("Unserved requests:                       5         \n"));
  EXPECT_THAT(block, HasSubstr("every TBT <= 50 ms (%):                  22.22     \n"));
  EXPECT_THAT(block, HasSubstr("All of the goodput's bounds (%):         11.11     \n"));
  EXPECT_THAT(block, HasSubstr("The drain timeout came: 3 requests had not ended.\n"));
}

// A fifth of ten at each end: C, D, both refusals, the failure and the one that has not ended are judged.
TEST(Attainment, WhatIsTrimmedIsServedButNotJudged) {
  BenchOptions options;
  options.slo = {"ttft:100", "tbt:50"};
  options.trim = 0.2;
  const BenchConfig config = study_config(options);
  const Summary s = summarise(mixed_load(), config);
  EXPECT_EQ(s.submitted, 9);
  EXPECT_EQ(s.completed, 4);
  EXPECT_EQ(s.judged, 6);
  EXPECT_THAT(s.attained, ElementsAre(2, 1, 0));  // TTFT: C and D; P99 TBT: D; every TBT: neither
  ASSERT_EQ(config.metrics.front(), Metric::kTtft);
  EXPECT_EQ(s.metrics.front().mean, 50);  // A's 100 and B's 150 are left out
  EXPECT_EQ(s.refused, 2);
}

// Ten requests of which one ends at 1, 2, 3, 5, 7, 11, 13, 17, 19 and 23 ms. Without a fifth at each end,
// those behind the third up to the eighth: five in 17 - 3 ms. Without four tenths the sixth alone, 4 ms
// behind the fifth.
TEST(SteadyThroughput, CountsWhatEndsInTheMiddle) {
  BenchOptions options;
  LoadOutcome o;
  o.start = 1000 * kMs;
  o.duration = 23 * kMs;
  for (const int64_t end : {11, 1, 2, 3, 19, 5, 7, 23, 17, 13}) {
    o.records.push_back(completed(kMs, {}));
    o.records.back().start = o.start;
    o.records.back().end = o.start + end * kMs;
  }
  o.records.emplace_back();
  o.records.back().state = RequestRecord::State::kFailed;
  o.records.back().end = o.start + 8 * kMs;
  EXPECT_FALSE(summarise(o, study_config(options)).steady_throughput.has_value());
  options.trim = 0.2;
  const BenchConfig config = study_config(options);
  const Summary s = summarise(o, config);
  EXPECT_NEAR(s.steady_throughput.value(), 5 / 0.014, 1e-9);
  EXPECT_THAT(printed_block({kInf, {s}}, config),
              HasSubstr("Throughput without the ends (req/s):     357.14    \n"));
  EXPECT_NEAR(s.per_second(s.completed), 10 / 0.023, 1e-9);
  options.trim = 0.4;
  EXPECT_NEAR(summarise(o, study_config(options)).steady_throughput.value(), 1 / 0.004, 1e-9);
}

// Five requests, one each 100 ms, so 10 a second; a run of 4 s, since the last answer takes that long. Four
// meet the bound on TTFT: 8 good ones a second, where the whole duration would give 1. Without a fifth at
// each end three are judged, of which two are good: 6.67.
TEST(Goodput, TheDrainDoesNotCount) {
  BenchOptions options;
  options.slo = {"ttft:100"};
  LoadOutcome o;
  o.start = 1000 * kMs;
  o.duration = 4000 * kMs;
  for (int i = 0; i < 5; ++i) {
    o.records.push_back(completed((i == 3 ? 150 : 50) * kMs, {}));
    o.records.back().arrival = i * 100 * kMs;
  }
  EXPECT_NEAR(summarise(o, study_config(options)).goodput(), 8, 1e-9);
  options.trim = 0.2;
  EXPECT_NEAR(summarise(o, study_config(options)).goodput(), 20.0 / 3, 1e-9);
  options.trim = 0;
  options.max_concurrency = 4;  // arrivals wait for answers: the whole run counts
  EXPECT_NEAR(summarise(o, study_config(options)).goodput(), 1, 1e-9);
  options.max_concurrency = 0;
  for (RequestRecord& r : o.records) r.arrival = 0;  // all at once: likewise
  EXPECT_NEAR(summarise(o, study_config(options)).goodput(), 1, 1e-9);
}

TEST(SteadyThroughput, IsThatFromTheStartWhereTheMiddleEndsAtOnce) {
  const Nanos ms = kMs;
  EXPECT_EQ(steady_rate({}, 0.2), 0);
  EXPECT_EQ(steady_rate({4 * ms}, 0.2), 250);
  EXPECT_EQ(steady_rate({1 * ms, 4 * ms, 4 * ms, 4 * ms, 9 * ms}, 0.2), 1000);  // four until 4 ms
  EXPECT_EQ(steady_rate({0, 0, 0}, 0.2), 0);
}

TEST(Attainment, GoodputsBoundsGoBeforeThoseOfTheSlo) {
  BenchOptions options;
  options.goodput = {"p99_tbt:7"};
  options.slo = {"tbt:50", "ttft:9"};
  const BenchConfig config = study_config(options);
  ASSERT_EQ(config.goals.size(), 1u);
  ASSERT_EQ(config.bounds.size(), 3u);
  EXPECT_EQ(config.bounds[0].key, Goal::Key::kTtft);
  EXPECT_EQ(config.bounds[1].millis, 7);
  EXPECT_EQ(config.bounds[2].key, Goal::Key::kMaxTbt);
  EXPECT_EQ(config.bounds[2].millis, 50);
  EXPECT_THAT(config.slo_ms, ElementsAre(std::pair<std::string, double>("tbt", 50),
                                         std::pair<std::string, double>("ttft", 9)));
}

TEST(Curves, TimelineByHand) {
  // 1.2 s in 120 slices of 10 ms. One request waits from 0 to 95 ms and runs to 115 ms with two chunks, at 95
  // and 105 ms, of four tokens in all.
  LoadOutcome o;
  o.start = 1000 * kMs;
  o.duration = 1200 * kMs;
  RequestRecord r = completed(95 * kMs, {10 * kMs});
  r.end = o.start + 115 * kMs;
  r.output_tokens = 4;
  o.records = {r, ended_as(State::kWaiting), ended_as(State::kHeld)};
  const Curves c = curves_of(o);
  EXPECT_DOUBLE_EQ(c.bin_s, 0.01);
  ASSERT_EQ(c.running.size(), 120u);
  EXPECT_NEAR(c.waiting[0], 1, 1e-9);
  EXPECT_NEAR(c.waiting[9], 0.5, 1e-9);
  EXPECT_NEAR(c.running[9], 0.5, 1e-9);
  EXPECT_NEAR(c.running[11], 0.5, 1e-9);
  EXPECT_NEAR(c.running[12], 0, 1e-9);
  EXPECT_NEAR(c.output_per_s[9], 200, 1e-9);
  EXPECT_NEAR(c.output_per_s[10], 200, 1e-9);
  ASSERT_EQ(c.ttft_ms.size(), 101u);
  EXPECT_DOUBLE_EQ(c.ttft_ms[50], 95);
}

TEST(Metrics, SamplesAreSummedOverLabels) {
  const std::string page =
      "# HELP kvasir:num_preemptions_total x\n"
      "vllm:num_preemptions_total 100\n"
      "kvasir:num_preemptions_total{model_name=\"a} \\\" b\",x=\"1\"} 3\n"
      "kvasir:num_preemptions_total{model_name=\"c\"} 4.0 1700000000\n"
      "kvasir:num_preemptions_total_more 50\n";
  EXPECT_EQ(metric_sum(page, "num_preemptions_total"), 7);
  EXPECT_EQ(metric_sum("vllm:num_preemptions_total 5\nvllm:x 1", "num_preemptions_total"), 5);
  EXPECT_EQ(metric_sum("kvasir:num_preemptions_total{a=\"b\n", "num_preemptions_total"), std::nullopt);
  EXPECT_EQ(metric_sum("", "num_preemptions_total"), std::nullopt);
}

TEST(Progress, TextByHand) {
  LoadProgress before{64, 4, 8, 0, 100, 2 * kNanosPerSecond};
  LoadProgress now{64, 16, 8, 1, 400, 4 * kNanosPerSecond};
  // 300 chunks in 2 s; 16 in 4 s leave 48 for 12 s.
  EXPECT_EQ(progress_text(now, before), "16/64 done, 8 running, 1 failed, 150 tok/s, 12 s left");
  EXPECT_EQ(progress_text({2, 2, 0, 0, 5, 0}, {}), "2/2 done, 0 running, 0 failed, 0 tok/s");
}

TEST(Progress, ATerminalGetsABarThatIsTakenAway) {
  std::ostringstream out;
  {
    ProgressLine line(out, true, "seed 1");
    line.show({4, 1, 1, 0, 0, kNanosPerSecond});
  }
  EXPECT_EQ(
      out.str(),
      "\r[######..................] seed 1: 1/4 done, 1 running, 0 failed, 0 tok/s, 3 s left\x1b[K\r\x1b[K");
  std::ostringstream file;
  { ProgressLine(file, false, "").show({4, 1, 1, 0, 0, kNanosPerSecond}); }
  EXPECT_EQ(file.str(), "1/4 done, 1 running, 0 failed, 0 tok/s, 3 s left\n");
}

// Two rates with two seeds: 1 and 3 requests complete at the first, 2 and 2 at the second, each in 2 s.
std::vector<RunResult> four_runs(const BenchConfig& config) {
  std::vector<RunResult> runs;
  const auto add = [&](int64_t point, uint64_t seed, size_t requests) {
    LoadOutcome o;
    o.start = 1000 * kMs;
    o.duration = 2000 * kMs;
    o.records.assign(requests, completed(100 * kMs, {10 * kMs}));
    RunResult run{
        {config.rates[static_cast<size_t>(point)], seed, point}, summarise(o, config), curves_of(o), o};
    if (point == 0) run.summary.preemptions = static_cast<double>(requests);
    runs.push_back(std::move(run));
  };
  add(0, 0, 1);
  add(0, 1, 3);
  add(1, 0, 2);
  add(1, 1, 2);
  return runs;
}

BenchOptions two_rates() {
  BenchOptions options;
  options.request_rate = "1,2";
  options.seeds = 2;
  options.goodput = {"ttft:200"};
  options.label = "<b>&\"x\"";
  return options;
}

TEST(SeveralRuns, MeansAndIntervalsByHand) {
  const BenchConfig config = study_config(two_rates());
  const std::vector<RunResult> runs = four_runs(config);
  const std::vector<PointResult> points = points_of(runs);
  ASSERT_EQ(points.size(), 2u);
  // 0.5 and 1.5 requests per second: deviation 0.7071, half width 12.706 * 0.7071 / sqrt(2) = 6.353.
  EXPECT_THAT(printed_block(points[0], config),
              HasSubstr("Request throughput (req/s):              1.00 +- 6.35\n"));
  const std::string table = rate_table(points, config);
  EXPECT_THAT(table, HasSubstr("       1       1.00 +- 6.35"));
  EXPECT_THAT(table, HasSubstr("       2       1.00 +- 0.00"));
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 3);
}

TEST(SeveralRuns, TheFileHasRunsPointsAndIntervals) {
  const BenchConfig config = study_config(two_rates());
  const Json j = Json::parse(result_json(four_runs(config), config, "m", 0));
  EXPECT_FALSE(j.contains("completed"));
  ASSERT_EQ(j["runs"].size(), 4u);
  EXPECT_EQ(j["runs"][1]["seed"], 1);
  EXPECT_EQ(j["runs"][1]["completed"], 3);
  EXPECT_EQ(j["runs"][1]["preemptions"], 3);
  EXPECT_TRUE(j["runs"][2]["preemptions"].is_null());
  EXPECT_EQ(j["runs"][0]["quantiles_ms"]["ttft"].size(), 101u);
  ASSERT_EQ(j["points"].size(), 2u);
  EXPECT_EQ(j["points"][0]["request_rate"], 1.0);
  EXPECT_EQ(j["points"][0]["completed"], 2);
  EXPECT_NEAR(j["points"][0]["intervals"]["request_throughput"]["half_width"].get<double>(), 6.353, 1e-3);
  EXPECT_EQ(j["points"][0]["attainment_joint"], 100.0);
  EXPECT_TRUE(j["points"][1]["preemptions"].is_null());

  BenchOptions one_rate = two_rates();
  one_rate.request_rate = "1";
  const BenchConfig one = study_config(one_rate);
  std::vector<RunResult> first = four_runs(config);
  first.resize(2);
  const Json k = Json::parse(result_json(first, one, "m", 0));
  EXPECT_EQ(k["completed"], 2);
  EXPECT_EQ(k["intervals"]["completed"]["mean"], 2.0);
}

TEST(Html, ThePageIsWholeAndEscaped) {
  const BenchConfig config = study_config(two_rates());
  const auto a = read_result(result_json(four_runs(config), config, "m", 0), "a");
  ASSERT_TRUE(a.ok()) << a.status().message();
  EXPECT_EQ(a->label, "<b>&\"x\"");
  ASSERT_EQ(a->runs.size(), 4u);
  ReportSeries b = *a;
  b.label = "other";
  const std::string page = html_report({*a, b});
  EXPECT_THAT(page, Not(HasSubstr("<b>")));
  EXPECT_THAT(page, HasSubstr("<td class=\"s\">&lt;b&gt;&amp;&quot;x&quot;</td><td>1</td><td>2</td>"));
  EXPECT_THAT(page, HasSubstr("<td class=\"s\">other</td>"));
  EXPECT_THAT(page, HasSubstr("<td>1 \u00b1 6.4</td>"));  // the throughput
  EXPECT_THAT(page, HasSubstr("<td>100 ms</td>"));        // mean TTFT
  EXPECT_THAT(page, HasSubstr("half the 95\u00a0% interval"));
  EXPECT_THAT(page, HasSubstr("bound 200 ms</text>"));
  EXPECT_THAT(page, HasSubstr("<td class=\"x\">goodput bounds ms</td><td class=\"x\">ttft: 200.0</td>"));
  // Values where the pointer rests.
  EXPECT_THAT(page, HasSubstr("<title>other: 100 ms at 1</title>"));
  EXPECT_THAT(page, HasSubstr(">Goodput</text>"));
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme:dark"));
  for (const char* never : {"<script", "http://", "https://", "url(", "nan", "inf,"}) {
    EXPECT_THAT(page, Not(HasSubstr(never)));
  }
  const auto count = [&](const std::string& part) {
    size_t n = 0;
    for (size_t at = page.find(part); at != std::string::npos; at = page.find(part, at + 1)) ++n;
    return n;
  };
  const size_t charts = count("<svg class=\"wide\"");
  EXPECT_EQ(count("<svg class=\"phone\""), charts);
  EXPECT_EQ(charts, 8u + 2 * 6u);  // over the rate, preemptions among them; and three distributions and three
                                   // timelines for each rate
  EXPECT_EQ(report_charts({*a, b}).size(), charts);
}

TEST(Html, OneRunHasNoCurvesOverTheRate) {
  const BenchConfig config = study_config({});
  LoadOutcome o;
  o.duration = kNanosPerSecond;
  o.records = {completed(5 * kMs, {})};
  const RunResult run{{kInf, 0, 0}, summarise(o, config), curves_of(o), o};
  const auto series = read_result(result_json({run}, config, "org/m", 0), "name");
  ASSERT_TRUE(series.ok());
  EXPECT_EQ(series->label, "name");
  const std::string page = html_report({*series});
  EXPECT_THAT(page, Not(HasSubstr("Over the rate")));
  EXPECT_THAT(page, HasSubstr("<summary>Rate inf</summary>"));
  EXPECT_THAT(page, HasSubstr("nothing to draw"));  // it has no gaps
  EXPECT_THAT(page, HasSubstr("One run of each, so no interval"));
  EXPECT_THAT(page, Not(HasSubstr("\u00b1")));
}

TEST(Html, WhatIsNoResultIsSaid) {
  for (const char* text : {"", "[]", "{}", R"({"completed": "x"})", R"({"runs": []})", R"({"runs": [1]})"}) {
    EXPECT_FALSE(read_result(text, "f").ok()) << text;
  }
  // vLLM's own file: figures without curves.
  const auto theirs = read_result(R"({"completed": 3, "request_rate": "inf", "mean_ttft_ms": 5})", "f");
  ASSERT_TRUE(theirs.ok());
  EXPECT_EQ(theirs->runs[0].figures.at("mean_ttft_ms"), 5);
  EXPECT_THAT(html_report({*theirs}), HasSubstr("<td>5 ms</td>"));
  EXPECT_EQ(load_result("/does/not/exist.json").status().code(), ErrorCode::kNotFound);
}

TEST(Svg, PointsLieWhereTheAxesSay) {
  // The plot is from x = 62 to 546 and from y = 274 (0) to 30 (100).
  Chart chart{"t<", "x", "y", false, 100, {{"line", 1, false, true, {0, 5, 10}, {0, 50, 100}, {0, 10, 0}}}};
  const std::string svg = svg_of(chart);
  EXPECT_THAT(svg, HasSubstr("points=\"62.0,274.0 304.0,152.0 546.0,30.0\""));
  EXPECT_THAT(svg, HasSubstr("M304.0 176.4V127.6"));  // 40 to 60
  EXPECT_THAT(svg, HasSubstr("t&lt;"));
  chart.log_x = true;
  chart.lines[0].x = {1, 10, 100};
  EXPECT_THAT(svg_of(chart), HasSubstr("points=\"62.0,274.0 304.0,152.0 546.0,30.0\""));
  chart.lines[0].x = {kInf, kInf, kInf};
  EXPECT_THAT(svg_of(chart), HasSubstr("nothing to draw"));
}

// The attributes by which a reader tells a line: colour, dashes and mark.
std::string look_of(size_t system) {
  const std::string svg = svg_of(Chart{"", "", "", false, 0, {{"", system, false, true, {1}, {1}, {}}}});
  const size_t from = svg.find("<polyline"), to = svg.find("<g class=\"p\"");
  return svg.substr(from, to - from);
}

TEST(Svg, TwentySystemsCanBeTold) {
  std::set<std::string> looks;
  for (size_t i = 0; i < 20; ++i) looks.insert(look_of(i));
  EXPECT_EQ(looks.size(), 20u);
}

TEST(Svg, AxesAreWrittenAsPeopleDo) {
  EXPECT_EQ(readable(80'000, AxisUnit::kMillis), "80 s");
  EXPECT_EQ(readable(250, AxisUnit::kMillis), "250 ms");
  EXPECT_EQ(readable(0.05, AxisUnit::kSeconds), "50 ms");
  EXPECT_EQ(readable(12'345), "12,345");
  EXPECT_EQ(readable(2.5e6), "2.5 M");
  EXPECT_EQ(readable(97.5, AxisUnit::kPercent), "97.5 %");
  Chart chart{"t", "x", "TTFT", false, 0, {{"a", 0, false, true, {1, 2}, {1e3, 8e4}, {}}}};
  chart.y_unit = AxisUnit::kMillis;
  chart.bounds = {{20'000, "bound", false}, {1e9, "far away", false}};
  const std::string svg = svg_of(chart);
  EXPECT_THAT(svg, HasSubstr(">TTFT, s</text>"));
  EXPECT_THAT(svg, HasSubstr(">80</text>"));
  EXPECT_THAT(svg, HasSubstr(">bound 20 s</text>"));
  EXPECT_THAT(svg, HasSubstr("<title>a: 80 s at 2</title>"));
  EXPECT_THAT(svg, Not(HasSubstr("e+")));
  EXPECT_THAT(svg, HasSubstr(">far away 1 M s ↑</text>")) << "above the chart";
  chart.log_y = true;
  chart.bounds = {{1, "low", false}, {0.5, "lower", false}, {9, "right", true}, {-1, "left", true}};
  const std::string other = svg_of(chart);
  for (const char* text :
       {">low 1 ms ↓</text>", ">lower 0.5 ms ↓</text>", ">right 9 →</text>", ">left -1 ←</text>"}) {
    EXPECT_THAT(other, HasSubstr(text));
  }
}

// 312 units across, so that letters of 11 are as large on a phone of 360 pixels; the plot ends at 298.
TEST(Svg, APhoneHasAChartOfItsOwn) {
  Chart chart{"A title that is too long for a phone and has two lines", "x", "y", false, 100,
              {{"line", 0, false, true, {0, 10}, {0, 100}, {}}}};
  const DrawnChart both = drawn(chart);
  EXPECT_EQ(both.wide, svg_of(chart));
  EXPECT_THAT(both.wide, HasSubstr("<svg class=\"wide\" viewBox=\"0 0 560 "));
  EXPECT_THAT(both.phone, HasSubstr("<svg class=\"phone\" viewBox=\"0 0 312 "));
  // 300 / 7.4 = 40 letters a line; all below is 17 lower.
  EXPECT_THAT(both.phone, HasSubstr("y=\"18\">A title that is too long for a phone and</text>"));
  EXPECT_THAT(both.phone, HasSubstr("y=\"35\">has two lines</text>"));
  EXPECT_THAT(both.phone, HasSubstr("points=\"62.0,291.0 298.0,47.0\""));
  // Names of 30 letters have 202 units, more than 0.42 of 312: they lie above their bars, 15 lower.
  const BarChart bars{"b", "x", {{std::string(30, 'n'), 2}, {"two", 1}}};
  EXPECT_THAT(drawn(bars).phone, HasSubstr("x=\"8.0\" y=\"44.0\" text-anchor=\"start\">nnn"));
  EXPECT_THAT(drawn(bars).phone, HasSubstr("x=\"8.0\" y=\"49.0\" width=\"214.0\" height=\"17\""));
  EXPECT_THAT(drawn(bars).wide, HasSubstr("x=\"196.0\" y=\"47.0\" text-anchor=\"end\">nnn"));
}

// Of 1, 2 and 5 times each power of ten, from 100 to 90,000, a phone has room for the powers alone.
TEST(Svg, NumbersOfAnAxisDoNotOverlap) {
  Chart chart{"t", "x", "y", true, 0, {{"a", 0, false, true, {100, 90'000}, {1, 2}, {}}}};
  const std::string phone = drawn(chart).phone;
  EXPECT_THAT(phone, HasSubstr(">100</text>"));
  EXPECT_THAT(phone, HasSubstr(">10,000</text>"));
  EXPECT_THAT(phone, Not(HasSubstr(">20,000</text>")));
  EXPECT_THAT(drawn(chart).wide, HasSubstr(">20,000</text>"));
}

TEST(Svg, AnotherSourcesFiguresAreHollowMarksAndBands) {
  Chart chart{"t", "x", "y", false, 0, {{"a", 0, false, true, {1, 2}, {50, 100}, {}}}};
  chart.lines.push_back({"theirs", 0, false, true, {2}, {80}, {}, /*hollow=*/true});
  chart.bands = {{150, 200, "paper", 0}};
  const std::string svg = svg_of(chart);
  // From y = 274 (0) to 30 (210): the band is on the chart though no value is as high.
  EXPECT_THAT(svg, HasSubstr("y=\"41.6\" width=\"484.0\" height=\"58.1\"><title>paper 150 to 200</title>"));
  EXPECT_THAT(
      svg, HasSubstr("<circle r=\"3.2\" cx=\"546.0\" cy=\"181.0\" class=\"o\" style=\"stroke:var(--c0)\"/>"));
  EXPECT_THAT(svg, HasSubstr("<title>theirs: 80 at 2</title>"));
  chart.bands[0].high = 150;
  EXPECT_THAT(svg_of(chart), HasSubstr("height=\"1.5\"><title>paper 150</title>")) << "one value is a line";
  const auto lines = [](const std::string& of) {
    size_t n = 0;
    for (size_t at = of.find("<polyline"); at != std::string::npos; at = of.find("<polyline", at + 1)) ++n;
    return n;
  };
  EXPECT_EQ(lines(svg), 1u) << "hollow marks have no line";
}

TEST(Svg, ALogarithmicAxisHasUnits) {
  Chart chart{"t", "x", "TTFT", false, 0, {{"a", 0, false, true, {0, 1}, {120, 12'000}, {}}}};
  chart.y_unit = AxisUnit::kMillis;
  chart.log_y = true;
  // From 100 ms (y = 274) to 12.6 s (30).
  EXPECT_THAT(svg_of(chart), HasSubstr("points=\"62.0,264.8 546.0,32.5\""));
  EXPECT_THAT(svg_of(chart), HasSubstr(">200 ms</text>"));
  EXPECT_THAT(svg_of(chart), HasSubstr(">10 s</text>"));
  chart.lines[0].y[0] = 0;
  EXPECT_THAT(svg_of(chart), HasSubstr("points=\"62.0,274.0 546.0,41.6\"")) << "zero has no logarithm";
}

TEST(Svg, ValuesBelowZeroAreOnTheChart) {
  // From -10.5 (y = 274) to 21 (30).
  const std::string svg =
      svg_of(Chart{"t", "x", "y", false, 0, {{"a", 0, false, true, {0, 1}, {-10, 20}, {}}}});
  EXPECT_THAT(svg, HasSubstr("points=\"62.0,270.1 546.0,37.7\""));
  EXPECT_THAT(svg, HasSubstr(">-10</text>"));
  EXPECT_THAT(svg, HasSubstr(">0</text>"));
  const std::string small =
      svg_of(Chart{"t", "x", "y", false, 0, {{"a", 0, false, true, {0, 1}, {-0.4, 0.4}, {}}}});
  EXPECT_THAT(small, Not(HasSubstr(">-0</text>")));
  EXPECT_THAT(small, Not(HasSubstr("e-")));
}

TEST(Svg, RowsHavePointsOfSeveralSystems) {
  RowChart chart{"t",
                 "x",
                 {"ours", "the paper's"},
                 {{"first", {{2, 0, 0.5}, {4, 8, 0, 1, true}}}, {"<second>", {{10}}}}};
  chart.unit = AxisUnit::kPercent;
  const std::string svg = svg_of(chart);
  // Names of eight letters: the plot is from x = 69.6 (0) to 540 (10.5).
  EXPECT_THAT(svg, HasSubstr("<circle r=\"3.2\" cx=\"159.2\" cy=\"45.0\""));
  EXPECT_THAT(svg, HasSubstr("M136.8 45.0H181.6"));
  EXPECT_THAT(
      svg,
      HasSubstr(
          "x=\"248.8\" y=\"40.0\" width=\"179.2\" height=\"10\"><title>the paper&#39;s: 4 % to 8 % (first)"));
  EXPECT_THAT(svg, HasSubstr("<title>ours: 2 % +- 0.5 % (first)</title>"));
  EXPECT_THAT(svg, HasSubstr("<title>ours: 10 % (&lt;second&gt;)</title>"));
  EXPECT_THAT(svg, HasSubstr(">the paper&#39;s</text>"));
  chart.rows[0].name = std::string(60, 'n');
  EXPECT_THAT(svg_of(chart), HasSubstr("x=\"8.0\" y=\"47.0\" text-anchor=\"start\">nnn"))
      << "long names lie above";
}

TEST(Svg, AFileStandsAlone) {
  const std::string file = svg_file(svg_of(BarChart{"b", "x", {{"one", 2, 1, 3, true, ""}, {"two", 1}}}));
  EXPECT_EQ(file.find("<?xml"), 0u);
  EXPECT_THAT(file, HasSubstr("xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_THAT(file, Not(HasSubstr("var(")));  // programs that make PDF of it know no variables
  EXPECT_THAT(file, HasSubstr("<title>one: 2</title>"));
  EXPECT_EQ(file_name_of("at 1.5 Time between tokens"), "at-1-5-time-between-tokens");
}

TEST(Svg, TextIsEscaped) {
  EXPECT_EQ(escape_html("a<b>&\"'\n"), "a&lt;b&gt;&amp;&quot;&#39; ");
}

}  // namespace
}  // namespace kvasir
