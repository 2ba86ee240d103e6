#include "apps/simulate/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>

#include "apps/bench/attainment.h"
#include "apps/bench/figures.h"
#include "apps/bench/stats.h"
#include "base/units.h"

namespace kvasir {
namespace {

struct Column {
  const char* key;
  const char* title;
};
constexpr std::array<Column, 12> kColumns = {{{"request_throughput", "req/s"},
                                              {"output_throughput", "tok/s"},
                                              {"request_goodput", "goodput"},
                                              {"attainment_joint", "all met %"},
                                              {"mean_ttft_ms", "mean TTFT"},
                                              {"p99_ttft_ms", "p99 TTFT"},
                                              {"mean_tpot_ms", "mean TPOT"},
                                              {"p99_itl_ms", "p99 TBT"},
                                              {"p99_e2el_ms", "p99 E2EL"},
                                              {"time_at_batch_limit", "at limit %"},
                                              {"preemptions", "preempt."},
                                              {"unserved", "unserved"}}};

std::string number(double v) {
  return std::abs(v) >= 9999.5 ? fmt::format("{:.0f}", v) : fmt::format("{:.4g}", v);
}

std::string cell(const MeanFigure* f, size_t runs) {
  if (f == nullptr || !f->figure.value.has_value()) return "-";
  if (runs < 2) return number(*f->figure.value);
  return fmt::format("{}+-{}", number(f->interval.mean), number(f->interval.half_width));
}

// Why requests failed or were refused, over all runs.
std::string failures(const std::vector<PolicyRuns>& all) {
  std::map<std::string, int64_t> errors;
  for (const PolicyRuns& runs : all) {
    for (const RunResult& run : runs.runs) {
      for (const auto& [what, count] : run.summary.errors) errors[what] += count;
    }
  }
  constexpr size_t kShown = 3;
  std::string out;
  size_t shown = 0;
  for (const auto& [what, count] : errors) {
    if (++shown > kShown) {
      return out + fmt::format("... and {} other kinds of failures\n", errors.size() - kShown);
    }
    fmt::format_to(std::back_inserter(out), "{} failed: {}\n",
                   count_of(static_cast<uint64_t>(count), "request"), what);
  }
  return out;
}

// Of a policy at a rate, the mean shares of what may be scarce.
std::string what_is_full(const std::vector<PolicyRuns>& all, const std::string& policy, double rate) {
  constexpr std::array<std::pair<const char*, const char*>, 4> kShares = {
      {{"time_at_batch_limit", "requests wait for memory or a slot {:.0f} % of the time"},
       {"mean_kv_allocated", "{:.0f} % of the KV memory is allocated"},
       {"time_in_steps", "the device is in a step {:.0f} % of the time"},
       {"link_busy", "the link to the host is busy {:.0f} %"}}};
  std::string out;
  for (const auto& [key, words] : kShares) {
    std::vector<double> values;
    for (const PolicyRuns& runs : all) {
      if (runs.policy != policy) continue;
      for (const RunResult& run : runs.runs) {
        for (const EngineFigure& e : run.summary.engine) {
          if (run.key.rate == rate && e.key == key) values.push_back(e.value);
        }
      }
    }
    if (values.empty()) continue;
    out +=
        (out.empty() ? "; under it " : ", ") + fmt::format(fmt::runtime(words), mean_interval(values).mean);
  }
  return out;
}

}  // namespace

std::string study_table(const std::vector<PolicyRuns>& all, const BenchConfig& config, double capacity) {
  std::vector<std::vector<std::string>> rows(1, {"policy", "rate", "x capacity"});
  for (const Column& column : kColumns) rows.front().emplace_back(column.title);
  for (const PolicyRuns& runs : all) {
    for (const PointResult& point : points_of(runs.runs)) {
      std::vector<Figures> figures;
      for (const Summary& s : point.runs) figures.push_back(figures_of(s, config));
      const std::vector<MeanFigure> means = mean_figures(figures);
      const bool finite = std::isfinite(point.rate);
      rows.push_back({runs.policy, finite ? number(point.rate) : "as given",
                      finite ? fmt::format("{:.2f}", point.rate / capacity) : "-"});
      for (const Column& column : kColumns) {
        rows.back().push_back(cell(find_figure(means, column.key), point.runs.size()));
      }
    }
  }
  std::string out;
  for (const std::vector<std::string>& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) {
      size_t width = 0;
      for (const auto& r : rows) width = std::max(width, r[c].size());
      out += c == 0 ? fmt::format("{:<{}}", row[c], width) : fmt::format("  {:>{}}", row[c], width);
    }
    out += '\n';
  }
  return out + "Times in ms. Rates in requests/s.\n" + failures(all);
}

namespace {

// The highest of the rates that were simulated at which a share of the requests meets all bounds.
std::string highest_line(const std::vector<PolicyRuns>& all) {
  constexpr double kMet = 90;  // percent
  std::string out;
  for (const PolicyRuns& runs : all) {
    double highest = 0;
    for (const PointResult& point : points_of(runs.runs)) {
      std::vector<double> shares;
      for (const Summary& s : point.runs) shares.push_back(100 * s.share(s.good));
      if (std::isfinite(point.rate) && mean_interval(shares).mean >= kMet) {
        highest = std::max(highest, point.rate);
      }
    }
    out +=
        fmt::format("{}{} {}", out.empty() ? "" : ", ", runs.policy, highest > 0 ? number(highest) : "none");
  }
  return fmt::format("the highest of these rates at which {:g} % of the requests meet all bounds: {}\n", kMet,
                     out);
}

}  // namespace

std::string best_lines(const std::vector<PolicyRuns>& all, const BenchConfig& config) {
  if (all.size() < 2 || config.goals.empty()) return "";
  constexpr double kLevel = 2, kMostLevel = 10;  // points of attainment
  std::string out;
  for (const PointResult& point : points_of(all.front().runs)) {
    std::vector<std::pair<const std::string*, std::vector<double>>> shares;
    for (const PolicyRuns& runs : all) {
      shares.emplace_back(&runs.policy, std::vector<double>());
      for (const RunResult& run : runs.runs) {
        if (run.key.rate == point.rate) {
          shares.back().second.push_back(100 * run.summary.share(run.summary.good));
        }
      }
    }
    const auto mean = [](const auto& entry) { return mean_interval(entry.second).mean; };
    std::stable_sort(shares.begin(), shares.end(),
                     [&](const auto& a, const auto& b) { return mean(a) > mean(b); });
    std::string level;
    for (size_t i = 1; i < shares.size(); ++i) {
      std::vector<double> behind;
      for (size_t s = 0; s < shares[i].second.size(); ++s) {
        behind.push_back(shares.front().second[s] - shares[i].second[s]);
      }
      const MeanInterval d = mean_interval(behind);
      if (d.mean > kLevel && (d.mean > kMostLevel || d.mean > d.half_width)) continue;
      level += (level.empty() ? "" : ", ") + *shares[i].first;
    }
    fmt::format_to(std::back_inserter(out),
                   "at {}, most requests meet all bounds under {} ({:.1f} %); {}{}\n",
                   std::isfinite(point.rate) ? number(point.rate) + " requests/s" : "the arrivals as given",
                   *shares.front().first, mean(shares.front()),
                   level.empty() ? "no other is level with it" : "level with it: " + level,
                   what_is_full(all, *shares.front().first, point.rate));
  }
  if (points_of(all.front().runs).size() > 1) out += highest_line(all);
  if (all.front().runs.size() == points_of(all.front().runs).size()) {
    out += "One seed has no interval, so nothing says how far chance goes: give --seeds 3 or more.\n";
  }
  out +=
      "The highest rate that is met in steady state, what binds there and what would help: kvasir plan, with "
      "the same flags.\n";
  return out;
}

std::string short_runs(const std::vector<EffectiveThroughput>& found, int64_t requests, double at_once,
                       double capacity) {
  constexpr double kLong = 10;
  const double residence = at_once / capacity;
  std::string out;
  for (const EffectiveThroughput& f : found) {
    if (f.rate == 0 || f.more) continue;
    const double seconds = static_cast<double>(requests) / f.rate;
    if (f.rate > 1.02 * capacity) {
      fmt::format_to(
          std::back_inserter(out),
          "{}: above the capacity, so either some requests wait for ever, or the runs ended before "
          "their queues grew\n",
          f.policy);
    } else if (seconds < kLong * residence) {
      fmt::format_to(std::back_inserter(out),
                     "{}: {} requests arrive within {:.3g} s, {:.1f} times as long as a request stays in the "
                     "full system; a "
                     "longer run may show that the rate is not sustained: give --num-prompts {:.0f}\n",
                     f.policy, requests, seconds, seconds / residence, std::ceil(kLong * residence * f.rate));
    }
  }
  if (!out.empty()) out += "kvasir plan with the same flags judges steady state.\n";
  return out;
}

std::string effective_table(const std::vector<EffectiveThroughput>& found, double percent, double capacity) {
  std::string out = fmt::format("highest rate at which {:g} % of the requests meet all bounds:\n", percent);
  for (const EffectiveThroughput& f : found) {
    if (f.more) {
      fmt::format_to(std::back_inserter(out),
                     "{:<12} never saturates: {:.1f} % meet them at {:.4g} requests/s, {:g} x the capacity; "
                     "tighten --goodput or give more --num-prompts\n",
                     f.policy, f.attained, f.rate, f.rate / capacity);
    } else if (f.rate == 0) {
      fmt::format_to(std::back_inserter(out),
                     "{:<12} none: not even at a fiftieth of the capacity; loosen --goodput\n", f.policy);
    } else {
      fmt::format_to(std::back_inserter(out),
                     "{:<12} {:.4g} requests/s, {:.2f} x the capacity ({:.1f} % meet them)\n", f.policy,
                     f.rate, f.rate / capacity, f.attained);
    }
  }
  return out;
}

std::string end_of_life(const RequestRecord& record, Nanos start) {
  switch (record.state) {
    case RequestRecord::State::kCompleted: {
      Nanos longest = 0;
      for (Nanos gap : record.gaps) longest = std::max(longest, gap);
      return fmt::format(
          "{:10.3f} s  has ended with {} tokens: TTFT {:.1f} ms, mean TPOT {:.1f} ms, longest TBT {:.1f} ms, "
          "E2EL {:.1f} ms\n",
          to_seconds(record.end - start), record.output_tokens, ttft_ms(record), tpot_ms(record),
          to_millis(longest), e2el_ms(record));
    }
    case RequestRecord::State::kFailed:
      return fmt::format("{:10.3f} s  {}: {}\n", to_seconds(record.end - start),
                         record.refused ? "is refused" : "has failed", record.error);
    default:
      return "            had not ended when the run did\n";
  }
}

std::string decisions_table(const SimulationOutcome& outcome) {
  std::string out;
  for (size_t i = 0; i < kCauses; ++i) {
    if (outcome.decisions[i] == 0) continue;
    const auto cause = static_cast<Cause>(i);
    fmt::format_to(std::back_inserter(out), "{:>9} {:<21} {}\n", outcome.decisions[i], name(cause),
                   meaning(cause));
  }
  return out.empty() ? out : "Reasons for what the plans of this run decided:\n" + out;
}

}  // namespace kvasir
