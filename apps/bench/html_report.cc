#include "apps/bench/html_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ostream>
#include <set>

#include "apps/bench/result_file.h"
#include "apps/bench/stats.h"
#include "apps/report/chart.h"
#include "apps/report/page.h"

namespace kvasir {
namespace {

struct Column {
  const char* key;
  const char* title;
};
// Two tables, each of which fits a window.
constexpr std::array<Column, 14> kServed = {{{"submitted", "submitted"},
                                             {"completed", "completed"},
                                             {"failed", "failed"},
                                             {"refused", "refused"},
                                             {"unserved", "unserved"},
                                             {"request_throughput", "req/s"},
                                             {"request_goodput", "goodput, req/s"},
                                             {"output_throughput", "output tok/s"},
                                             {"attainment_joint", "all met, %"},
                                             {"attainment_ttft", "TTFT met, %"},
                                             {"attainment_tpot", "mean TPOT met, %"},
                                             {"attainment_p99_tbt", "P99 TBT met, %"},
                                             {"attainment_max_tbt", "every TBT met, %"},
                                             {"attainment_e2el", "E2EL met, %"}}};
constexpr std::array<Column, 7> kLatencies = {{{"mean_ttft_ms", "mean TTFT"},
                                               {"median_ttft_ms", "P50 TTFT"},
                                               {"p99_ttft_ms", "P99 TTFT"},
                                               {"mean_tpot_ms", "mean TPOT"},
                                               {"p99_itl_ms", "P99 TBT"},
                                               {"p99_e2el_ms", "P99 E2EL"},
                                               {"preemptions", "preemptions"}}};

struct RateChart {
  const char* key;
  const char* title;
  const char* unit;
};
// Beside those that are always there: of what a simulator, or a server's /metrics, can tell.
constexpr std::array<RateChart, 5> kEngineRateCharts = {
    {{"preemptions", "Preemptions", "in the run"},
     {"time_at_batch_limit", "Time at the batch limit", "% of the run"},
     {"mean_running_requests", "Requests that run at once", "mean over time"},
     {"link_busy", "Link busy", "% of the run"},
     {"computed_again_tokens", "Tokens recomputed", "in the run"}}};

std::string rate_name(double rate) {
  return std::isinf(rate) ? "inf" : fmt::format("{:.4g}", rate);
}

std::vector<const ReportRun*> runs_at(const ReportSeries& series, double rate) {
  std::vector<const ReportRun*> runs;
  for (const ReportRun& run : series.runs) {
    if (run.rate == rate) runs.push_back(&run);
  }
  return runs;
}

std::set<double> rates_of(const std::vector<ReportSeries>& series) {
  std::set<double> rates;
  for (const ReportSeries& s : series) {
    for (const ReportRun& run : s.runs) rates.insert(run.rate);
  }
  return rates;
}

std::vector<double> values_of(const std::vector<const ReportRun*>& runs, const char* key) {
  std::vector<double> values;
  for (const ReportRun* run : runs) {
    if (const auto found = run->figures.find(key); found != run->figures.end())
      values.push_back(found->second);
  }
  return values;
}

std::string setting_of(const ReportSeries& series, const std::string& key) {
  for (const auto& [name, value] : series.settings) {
    if (name == key) return value;
  }
  return "";
}

// Those that all systems have alike, one below the other; and the others, a row for each system.
void add_settings(const std::vector<ReportSeries>& series, Page& page) {
  std::vector<std::string> keys;
  for (const ReportSeries& s : series) {
    for (const auto& [key, value] : s.settings) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
    }
  }
  std::vector<std::pair<std::string, std::string>> common;
  PageTable others;
  others.heads.emplace_back("system");
  others.texts = true;
  std::vector<std::string> differ;
  for (const std::string& key : keys) {
    const std::string value = setting_of(series.front(), key);
    const bool same = std::all_of(series.begin(), series.end(),
                                  [&](const ReportSeries& s) { return setting_of(s, key) == value; });
    if (same) common.emplace_back(key, value);
    if (!same) differ.push_back(key);
  }
  others.heads.insert(others.heads.end(), differ.begin(), differ.end());
  for (const ReportSeries& s : series) {
    std::vector<std::string> row = {s.label};
    for (const std::string& key : differ) row.push_back(setting_of(s, key));
    others.rows.push_back(std::move(row));
  }
  page.heading("Settings");
  page.settings(common);
  if (!differ.empty()) page.table(others);
}

bool is_time(const std::string& key) {
  return key.size() > 3 && key.compare(key.size() - 3, 3, "_ms") == 0;
}

// So many digits, and never an exponent for a large number.
std::string rounded(double value, int digits) {
  if (std::abs(value) >= 9999.5) return readable(std::round(value));
  return std::abs(value) >= std::pow(10, digits) ? fmt::format("{:.0f}", value)
                                                 : fmt::format("{:.{}g}", value, digits);
}

std::string cell(const std::vector<double>& values, const std::string& key) {
  if (values.empty()) return "";
  MeanInterval interval = mean_interval(values);
  std::string unit;
  if (is_time(key)) {
    const bool seconds = interval.mean >= 1000;
    unit = seconds ? " s" : " ms";
    if (seconds) {
      interval.mean /= 1000;
      interval.half_width /= 1000;
    }
  }
  const std::string mean = rounded(interval.mean, 4);
  return (values.size() < 2 || interval.half_width == 0
              ? mean
              : fmt::format("{} \u00b1 {}", mean, rounded(interval.half_width, 2))) +
         unit;
}

template <size_t N>
void add_table(const std::vector<ReportSeries>& series, const std::set<double>& rates,
               const std::array<Column, N>& all, Page& page) {
  PageTable out;
  out.heads = {"system", "rate, req/s", "runs"};
  std::vector<Column> columns;
  for (const Column& column : all) {
    // Counts of what went wrong are columns where something did.
    const std::string key = column.key;
    const bool trouble = key == "failed" || key == "refused" || key == "unserved";
    const bool known = std::any_of(series.begin(), series.end(), [&](const ReportSeries& s) {
      return std::any_of(s.runs.begin(), s.runs.end(), [&](const ReportRun& run) {
        const auto found = run.figures.find(key);
        return found != run.figures.end() && (!trouble || found->second != 0);
      });
    });
    if (!known) continue;
    columns.push_back(column);
    out.heads.emplace_back(column.title);
  }
  for (double rate : rates) {
    for (const ReportSeries& s : series) {
      const auto runs = runs_at(s, rate);
      if (runs.empty()) continue;
      std::vector<std::string> row = {s.label, rate_name(rate), fmt::format("{}", runs.size())};
      for (const Column& column : columns) row.push_back(cell(values_of(runs, column.key), column.key));
      out.rows.push_back(std::move(row));
    }
  }
  page.table(out);
}

void add_tables(const std::vector<ReportSeries>& series, const std::set<double>& rates, Page& page) {
  page.heading("Requests and bounds");
  add_table(series, rates, kServed, page);
  page.heading("Latencies");
  add_table(series, rates, kLatencies, page);
  const bool several = std::any_of(rates.begin(), rates.end(), [&](double rate) {
    return std::any_of(series.begin(), series.end(),
                       [&](const ReportSeries& s) { return runs_at(s, rate).size() > 1; });
  });
  page.paragraph(
      std::string(several ? "Means over the runs, \u00b1 half the 95\u00a0% interval of Student's t."
                          : "One run of each, so no interval: --seeds 3 gives one.") +
          " What failed, was refused or did not end attains nothing.",
      /*dim=*/true);
}

// The bounds of this kind, where all systems have the same.
std::vector<ChartBound> bounds_of(const std::vector<ReportSeries>& series,
                                  const std::vector<std::string>& keys, bool of_x) {
  std::vector<ChartBound> out;
  for (const std::string& key : keys) {
    const auto bound = [&](const ReportSeries& s) {
      const auto found = s.bounds_ms.find(key);
      return found == s.bounds_ms.end() ? -1.0 : found->second;
    };
    const double first = bound(series.front());
    const bool same =
        std::all_of(series.begin(), series.end(), [&](const ReportSeries& s) { return bound(s) == first; });
    const bool drawn =
        std::any_of(out.begin(), out.end(), [&](const ChartBound& b) { return b.value == first; });
    if (same && first > 0 && !drawn) out.push_back({first, "bound", of_x});
  }
  return out;
}

Chart over_rate(const std::vector<ReportSeries>& series, const std::set<double>& rates, const char* key,
                const char* title, const char* label, AxisUnit unit = AxisUnit::kPlain,
                const std::vector<std::string>& bounds = {}) {
  Chart chart{title, "requests per second offered", label, false, 0, {}};
  chart.y_unit = unit;
  chart.bounds = bounds_of(series, bounds, /*of_x=*/false);
  for (size_t i = 0; i < series.size(); ++i) {
    ChartLine line{series[i].label, i, false, true, {}, {}, {}};
    for (double rate : rates) {
      const std::vector<double> values = values_of(runs_at(series[i], rate), key);
      if (values.empty()) continue;
      const MeanInterval interval = mean_interval(values);
      line.x.push_back(rate);
      line.y.push_back(interval.mean);
      line.half.push_back(interval.half_width);
    }
    chart.lines.push_back(std::move(line));
  }
  return chart;
}

using NamedCharts = std::vector<std::pair<std::string, DrawnChart>>;

template <typename AnyChart>
void add_chart(const AnyChart& chart, const std::string& where, NamedCharts& out) {
  out.emplace_back(file_name_of(where + chart.title), drawn(chart));
}

NamedCharts rate_charts(const std::vector<ReportSeries>& series, const std::set<double>& rates) {
  constexpr AxisUnit kMs = AxisUnit::kMillis;
  NamedCharts out;
  Chart attained = over_rate(series, rates, "attainment_joint", "Requests that met all bounds",
                             "% of requests", AxisUnit::kPercent);
  attained.y_max = 100;
  const std::string where = "rate ";
  add_chart(attained, where, out);
  add_chart(over_rate(series, rates, "request_goodput", "Goodput", "req/s"), where, out);
  add_chart(over_rate(series, rates, "p99_ttft_ms", "P99 time to the first token", "", kMs, {"ttft"}), where,
            out);
  add_chart(over_rate(series, rates, "p99_tpot_ms", "P99 time per further token", "", kMs, {"tpot"}), where,
            out);
  add_chart(
      over_rate(series, rates, "p99_itl_ms", "P99 time between tokens", "", kMs, {"p99_tbt", "max_tbt"}),
      where, out);
  add_chart(over_rate(series, rates, "p99_e2el_ms", "P99 end-to-end latency", "", kMs, {"e2el"}), where, out);
  add_chart(over_rate(series, rates, "output_throughput", "Output", "tokens/s"), where, out);
  const auto known = [&](const char* key) {
    return std::any_of(series.begin(), series.end(), [&](const ReportSeries& s) {
      return std::any_of(s.runs.begin(), s.runs.end(),
                         [&](const ReportRun& run) { return run.figures.count(key) > 0; });
    });
  };
  for (const auto& [key, title, unit] : kEngineRateCharts) {
    if (known(key)) add_chart(over_rate(series, rates, key, title, unit), where, out);
  }
  return out;
}

// Percentile by percentile, the mean over the runs.
Chart distribution(const std::vector<ReportSeries>& series, double rate, std::vector<double> Curves::*values,
                   const char* title, const std::vector<std::string>& bounds) {
  Chart chart{title, "time (logarithmic)", "% at or below", true, 100, {}};
  chart.x_unit = AxisUnit::kMillis;
  chart.y_unit = AxisUnit::kPercent;
  chart.bounds = bounds_of(series, bounds, /*of_x=*/true);
  for (size_t i = 0; i < series.size(); ++i) {
    ChartLine line{series[i].label, i, false, false, {}, {}, {}};
    double runs = 0;
    for (const ReportRun* run : runs_at(series[i], rate)) {
      const std::vector<double>& quantiles = run->curves.*values;
      if (quantiles.size() < 2 || (!line.x.empty() && quantiles.size() != line.x.size())) continue;
      line.x.resize(quantiles.size(), 0);
      for (size_t q = 0; q < quantiles.size(); ++q) line.x[q] += quantiles[q];
      ++runs;
    }
    for (size_t q = 0; q < line.x.size(); ++q) {
      line.x[q] /= runs;
      line.y.push_back(100.0 * static_cast<double>(q) / static_cast<double>(line.x.size() - 1));
    }
    chart.lines.push_back(std::move(line));
  }
  return chart;
}

ChartLine over_time(const Curves& curves, const std::vector<double>& values, std::string name, size_t system,
                    bool faint) {
  ChartLine line{std::move(name), system, faint, false, {}, values, {}};
  for (size_t i = 0; i < values.size(); ++i) line.x.push_back((static_cast<double>(i) + 0.5) * curves.bin_s);
  return line;
}

Chart of_time(const char* title, const char* label) {
  Chart chart{title, "time", label, false, 0, {}};
  chart.x_unit = AxisUnit::kSeconds;
  return chart;
}

void add_timeline(const std::vector<ReportSeries>& series, double rate, const std::string& where,
                  NamedCharts& out) {
  Chart running = of_time("Requests that get tokens, as the client sees them", "requests");
  Chart waiting = of_time("Requests that wait for a first token", "requests");
  Chart output = of_time("Output", "tokens/s");
  for (size_t i = 0; i < series.size(); ++i) {
    const auto runs = runs_at(series[i], rate);
    if (runs.empty()) continue;
    const Curves& curves = runs.front()->curves;
    running.lines.push_back(over_time(curves, curves.running, series[i].label, i, false));
    waiting.lines.push_back(over_time(curves, curves.waiting, series[i].label, i, false));
    output.lines.push_back(over_time(curves, curves.output_per_s, series[i].label, i, false));
  }
  for (const Chart& chart : {running, waiting, output}) add_chart(chart, where, out);
}

// What the engines say of themselves, chart by chart; the lines of a system have its colour.
void add_engine_charts(const std::vector<ReportSeries>& series, double rate, const std::string& where,
                       NamedCharts& out) {
  std::vector<Chart> charts;
  for (size_t i = 0; i < series.size(); ++i) {
    const auto runs = runs_at(series[i], rate);
    if (runs.empty()) continue;
    const Curves& curves = runs.front()->curves;
    for (const EngineLine& line : curves.engine) {
      auto chart =
          std::find_if(charts.begin(), charts.end(), [&](const Chart& c) { return c.title == line.chart; });
      if (chart == charts.end()) {
        charts.push_back(of_time(line.chart.c_str(), ""));
        chart = charts.end() - 1;
      }
      const bool second = std::any_of(chart->lines.begin(), chart->lines.end(),
                                      [&](const ChartLine& l) { return l.system == i; });
      const std::string name = series.size() > 1 ? series[i].label + ": " + line.name : line.name;
      chart->lines.push_back(over_time(curves, line.values, name, series.size() > 1 ? i : chart->lines.size(),
                                       second && series.size() > 1));
    }
  }
  for (const Chart& chart : charts) add_chart(chart, where, out);
}

NamedCharts charts_at(const std::vector<ReportSeries>& series, double rate) {
  const std::string where = "at " + rate_name(rate) + " ";
  NamedCharts out;
  add_chart(distribution(series, rate, &Curves::ttft_ms, "Time to the first token", {"ttft"}), where, out);
  add_chart(distribution(series, rate, &Curves::tbt_ms, "Time between tokens", {"p99_tbt", "max_tbt"}), where,
            out);
  add_chart(distribution(series, rate, &Curves::e2el_ms, "End-to-end latency", {"e2el"}), where, out);
  add_timeline(series, rate, where, out);
  add_engine_charts(series, rate, where, out);
  return out;
}

bool has_rate_charts(const std::set<double>& rates) {
  return std::count_if(rates.begin(), rates.end(), [](double r) { return std::isfinite(r); }) > 1;
}

std::vector<DrawnChart> without_names(NamedCharts charts) {
  std::vector<DrawnChart> out;
  for (auto& [name, chart] : charts) out.push_back(std::move(chart));
  return out;
}

}  // namespace

std::vector<std::pair<std::string, DrawnChart>> report_charts(const std::vector<ReportSeries>& series) {
  const std::set<double> rates = rates_of(series);
  NamedCharts out;
  if (has_rate_charts(rates)) out = rate_charts(series, rates);
  for (double rate : rates) {
    for (auto& chart : charts_at(series, rate)) out.push_back(std::move(chart));
  }
  return out;
}

std::string html_report(const std::vector<ReportSeries>& series, const std::string& title) {
  const std::set<double> rates = rates_of(series);
  Page page(title);
  add_tables(series, rates, page);
  if (has_rate_charts(rates)) {
    page.heading("Over the rate");
    page.charts(without_names(rate_charts(series, rates)));
  }
  page.heading("Distributions and the course of time");
  page.paragraph(
      "Distributions are means over the runs, percentile by percentile; the course of time is that of the "
      "first run.",
      /*dim=*/true);
  for (double rate : rates) {
    page.fold("Rate " + rate_name(rate), rates.size() == 1 || rate == *rates.rbegin());
    page.charts(without_names(charts_at(series, rate)));
    page.fold_end();
  }
  add_settings(series, page);
  return page.text();
}

Status write_report(const BenchOptions& options, const std::vector<ReportSeries>& series,
                    const std::string& title, std::ostream& out) {
  if (!options.html.empty()) {
    KV_RETURN_IF_ERROR(write_text(options.html, html_report(series, title), "--html"));
    out << fmt::format("Report written to {}\n", options.html) << std::flush;
  }
  if (!options.svg.empty()) {
    KV_RETURN_IF_ERROR(write_charts(options.svg, report_charts(series)));
    out << fmt::format("Charts written to {}\n", options.svg) << std::flush;
  }
  return {};
}

}  // namespace kvasir
