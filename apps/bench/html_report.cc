#include "apps/bench/html_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <set>

#include "apps/bench/stats.h"
#include "apps/bench/svg_chart.h"

namespace kvasir {
namespace {

constexpr const char* kStyle = R"(
:root{--bg:#fff;--fg:#1b1f24;--dim:#57606a;--grid:#d8dee4;--c0:#0b62c4;--c1:#c2410c;--c2:#15803d;--c3:#9333ea;--c4:#b3261e;
--c5:#0e7490;--c6:#a16207;--c7:#be185d}
@media(prefers-color-scheme:dark){:root{--bg:#0f1216;--fg:#e6eaef;--dim:#9aa5b1;--grid:#2b323a;--c0:#6cb0ff;--c1:#ff9d5c;
--c2:#5fd38a;--c3:#c79bff;--c4:#ff8a80;--c5:#5cd0e6;--c6:#e3bd4f;--c7:#ff8fc0}}
body{background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:76rem;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}
.w{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.85rem}
th,td{border-bottom:1px solid var(--grid);padding:.25rem .6rem;text-align:right;white-space:nowrap}
th:first-child,td:first-child{text-align:left}td.s{text-align:left;white-space:normal}
.c{display:grid;grid-template-columns:repeat(auto-fit,minmax(24rem,1fr));gap:1rem}
svg{width:100%;height:auto}svg text{fill:var(--fg)}.t{font-size:11px;fill:var(--dim)!important}.h{font-size:13px;font-weight:600}
.g{stroke:var(--grid);stroke-width:1}.l{fill:none;stroke-width:1.8}summary{cursor:pointer;font-weight:600;margin:1rem 0}
p.n{color:var(--dim)})";

struct Column {
  const char* key;
  const char* title;
};
constexpr std::array<Column, 20> kColumns = {{{"submitted", "submitted"},
                                              {"completed", "completed"},
                                              {"failed", "failed"},
                                              {"refused", "refused"},
                                              {"unserved", "unserved"},
                                              {"request_throughput", "req/s"},
                                              {"request_goodput", "goodput, req/s"},
                                              {"output_throughput", "output tok/s"},
                                              {"attainment_ttft", "TTFT met, %"},
                                              {"attainment_tpot", "mean TPOT met, %"},
                                              {"attainment_p99_tbt", "P99 TBT met, %"},
                                              {"attainment_max_tbt", "every TBT met, %"},
                                              {"attainment_e2el", "E2EL met, %"},
                                              {"attainment_joint", "all met, %"},
                                              {"mean_ttft_ms", "mean TTFT, ms"},
                                              {"median_ttft_ms", "p50 TTFT, ms"},
                                              {"p99_ttft_ms", "p99 TTFT, ms"},
                                              {"mean_tpot_ms", "mean TPOT, ms"},
                                              {"p99_itl_ms", "p99 TBT, ms"},
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

void add_settings(const std::vector<ReportSeries>& series, std::string* out) {
  std::vector<std::string> keys;
  for (const ReportSeries& s : series) {
    for (const auto& [key, value] : s.settings) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
    }
  }
  *out += "<h2>Settings</h2><div class=\"w\"><table><tr><th></th>";
  for (const ReportSeries& s : series) *out += "<th>" + escape_html(s.label) + "</th>";
  *out += "</tr>\n";
  for (const std::string& key : keys) {
    *out += "<tr><td>" + escape_html(key) + "</td>";
    for (const ReportSeries& s : series) {
      const auto found = std::find_if(s.settings.begin(), s.settings.end(),
                                      [&](const auto& setting) { return setting.first == key; });
      *out += "<td class=\"s\">" + (found == s.settings.end() ? "" : escape_html(found->second)) + "</td>";
    }
    *out += "</tr>\n";
  }
  *out += "</table></div>\n";
}

// So many digits, and never an exponent for a large number.
std::string readable(double value, int digits) {
  return std::abs(value) >= std::pow(10, digits) ? fmt::format("{:.0f}", value)
                                                 : fmt::format("{:.{}g}", value, digits);
}

std::string cell(const std::vector<double>& values) {
  if (values.empty()) return "&ndash;";
  const MeanInterval interval = mean_interval(values);
  const std::string mean = readable(interval.mean, 4);
  return values.size() < 2 ? mean : fmt::format("{} &plusmn; {}", mean, readable(interval.half_width, 2));
}

void add_table(const std::vector<ReportSeries>& series, const std::set<double>& rates, std::string* out) {
  std::vector<Column> columns;
  for (const Column& column : kColumns) {
    const bool known = std::any_of(series.begin(), series.end(), [&](const ReportSeries& s) {
      return std::any_of(s.runs.begin(), s.runs.end(),
                         [&](const ReportRun& run) { return run.figures.count(column.key) > 0; });
    });
    if (known) columns.push_back(column);
  }
  *out += "<h2>Figures</h2><div class=\"w\"><table><tr><th>system</th><th>rate, req/s</th><th>runs</th>";
  for (const Column& column : columns) *out += fmt::format("<th>{}</th>", column.title);
  *out += "</tr>\n";
  for (double rate : rates) {
    for (const ReportSeries& s : series) {
      const auto runs = runs_at(s, rate);
      if (runs.empty()) continue;
      *out += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td>", escape_html(s.label), rate_name(rate),
                          runs.size());
      for (const Column& column : columns) *out += "<td>" + cell(values_of(runs, column.key)) + "</td>";
      *out += "</tr>\n";
    }
  }
  *out +=
      "</table></div>\n<p class=\"n\">Means over the runs, &plusmn; half the 95&nbsp;% interval of Student's "
      "t. "
      "What failed, was refused or did not end attains nothing.</p>\n";
}

Chart over_rate(const std::vector<ReportSeries>& series, const std::set<double>& rates, const char* key,
                const char* title, const char* unit) {
  Chart chart{title, "requests per second offered", unit, false, 0, {}};
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

void add_rate_curves(const std::vector<ReportSeries>& series, const std::set<double>& rates,
                     std::string* out) {
  *out += "<h2>Over the rate</h2><div class=\"c\">\n";
  *out += svg_chart(over_rate(series, rates, "request_goodput", "Goodput", "req/s"));
  Chart attained =
      over_rate(series, rates, "attainment_joint", "Requests that met all bounds", "% of requests");
  attained.y_max = 100;
  *out += svg_chart(attained);
  *out += svg_chart(over_rate(series, rates, "p99_ttft_ms", "P99 time to the first token", "ms"));
  *out += svg_chart(over_rate(series, rates, "p99_itl_ms", "P99 time between tokens", "ms"));
  *out += svg_chart(over_rate(series, rates, "p99_e2el_ms", "P99 end-to-end latency", "ms"));
  *out += svg_chart(over_rate(series, rates, "output_throughput", "Output", "tokens/s"));
  const auto known = [&](const char* key) {
    return std::any_of(series.begin(), series.end(), [&](const ReportSeries& s) {
      return std::any_of(s.runs.begin(), s.runs.end(),
                         [&](const ReportRun& run) { return run.figures.count(key) > 0; });
    });
  };
  for (const auto& [key, title, unit] : kEngineRateCharts) {
    if (known(key)) *out += svg_chart(over_rate(series, rates, key, title, unit));
  }
  *out += "</div>\n";
}

// Percentile by percentile, the mean over the runs.
Chart distribution(const std::vector<ReportSeries>& series, double rate, std::vector<double> Curves::*values,
                   const char* title) {
  Chart chart{title, "ms (logarithmic)", "% at or below", true, 100, {}};
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

ChartLine over_time(const Curves& curves, const std::vector<double>& values, std::string name, size_t colour,
                    bool dashed) {
  ChartLine line{std::move(name), colour, dashed, false, {}, values, {}};
  for (size_t i = 0; i < values.size(); ++i) line.x.push_back((static_cast<double>(i) + 0.5) * curves.bin_s);
  return line;
}

void add_timeline(const std::vector<ReportSeries>& series, double rate, std::string* out) {
  Chart requests{"Requests, as the client sees them", "seconds", "requests", false, 0, {}};
  Chart output{"Output", "seconds", "tokens/s", false, 0, {}};
  for (size_t i = 0; i < series.size(); ++i) {
    const auto runs = runs_at(series[i], rate);
    if (runs.empty()) continue;
    const Curves& curves = runs.front()->curves;
    requests.lines.push_back(over_time(curves, curves.running, series[i].label + ": running", i, false));
    requests.lines.push_back(
        over_time(curves, curves.waiting, series[i].label + ": waiting for a token", i, true));
    output.lines.push_back(over_time(curves, curves.output_per_s, series[i].label, i, false));
  }
  *out += svg_chart(requests) + svg_chart(output);
}

// What the engines say of themselves, chart by chart; the lines of a system have its colour.
void add_engine_charts(const std::vector<ReportSeries>& series, double rate, std::string* out) {
  std::vector<Chart> charts;
  for (size_t i = 0; i < series.size(); ++i) {
    const auto runs = runs_at(series[i], rate);
    if (runs.empty()) continue;
    const Curves& curves = runs.front()->curves;
    for (const EngineLine& line : curves.engine) {
      auto chart =
          std::find_if(charts.begin(), charts.end(), [&](const Chart& c) { return c.title == line.chart; });
      if (chart == charts.end()) {
        charts.push_back({line.chart, "seconds", "", false, 0, {}});
        chart = charts.end() - 1;
      }
      const bool second = std::any_of(chart->lines.begin(), chart->lines.end(),
                                      [&](const ChartLine& l) { return l.colour == i; });
      const std::string name = series.size() > 1 ? series[i].label + ": " + line.name : line.name;
      chart->lines.push_back(over_time(curves, line.values, name, series.size() > 1 ? i : chart->lines.size(),
                                       second && series.size() > 1));
    }
  }
  for (const Chart& chart : charts) *out += svg_chart(chart);
}

void add_rate_section(const std::vector<ReportSeries>& series, double rate, bool open, std::string* out) {
  *out += fmt::format("<details{}><summary>Rate {}</summary><div class=\"c\">\n", open ? " open" : "",
                      rate_name(rate));
  *out += svg_chart(distribution(series, rate, &Curves::ttft_ms, "Time to the first token"));
  *out += svg_chart(distribution(series, rate, &Curves::tbt_ms, "Time between tokens"));
  *out += svg_chart(distribution(series, rate, &Curves::e2el_ms, "End-to-end latency"));
  add_timeline(series, rate, out);
  add_engine_charts(series, rate, out);
  *out += "</div></details>\n";
}

}  // namespace

std::string html_report(const std::vector<ReportSeries>& series, const std::string& title) {
  const std::set<double> rates = rates_of(series);
  std::string out =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width\"><meta name=\"color-scheme\" content=\"light dark\">\n"
      "<title>";
  out += escape_html(title) + "</title><style>";
  out += kStyle;
  out += "</style></head><body>\n<h1>" + escape_html(title) + "</h1>\n";
  add_table(series, rates, &out);
  const auto finite = std::count_if(rates.begin(), rates.end(), [](double r) { return std::isfinite(r); });
  if (finite > 1) add_rate_curves(series, rates, &out);
  out +=
      "<h2>Distributions and the course of time</h2><p class=\"n\">Distributions are means over the runs, "
      "percentile by percentile; the course of time is that of the first run.</p>\n";
  for (double rate : rates)
    add_rate_section(series, rate, rates.size() == 1 || rate == *rates.rbegin(), &out);
  add_settings(series, &out);
  out += "</body></html>\n";
  return out;
}

}  // namespace kvasir
