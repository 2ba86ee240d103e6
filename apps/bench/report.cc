#include "apps/bench/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>

#include "apps/bench/attainment.h"
#include "apps/bench/figures.h"
#include "base/units.h"

namespace kvasir {
namespace {

constexpr size_t kErrorsPrinted = 5;

// What the request adds to the metric's values.
void append_values(const RequestRecord& record, Metric metric, std::vector<double>* values) {
  switch (metric) {
    case Metric::kTtft:
      values->push_back(ttft_ms(record));
      break;
    case Metric::kTpot:
      if (record.output_tokens > 1) values->push_back(tpot_ms(record));
      break;
    case Metric::kItl:
      for (Nanos gap : record.gaps) values->push_back(to_millis(gap));
      break;
    case Metric::kE2el:
      values->push_back(e2el_ms(record));
      break;
  }
}

std::vector<std::pair<std::string, int64_t>> distinct_errors(const std::vector<RequestRecord>& records) {
  std::map<std::string, int64_t> counts;
  for (const RequestRecord& record : records) {
    if (record.state == RequestRecord::State::kFailed) ++counts[record.error];
  }
  std::vector<std::pair<std::string, int64_t>> errors(counts.begin(), counts.end());
  std::stable_sort(errors.begin(), errors.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return errors;
}

// Fills in when requests were refused.
void add_refusals(const std::vector<RequestRecord>& records, Summary* s) {
  std::vector<double> times;
  for (const RequestRecord& r : records) {
    if (r.refused) times.push_back(to_millis(r.end - r.start));
  }
  s->refused = static_cast<int64_t>(times.size());
  if (times.empty()) return;
  std::sort(times.begin(), times.end());
  s->median_refusal_ms = percentile_of_sorted(times, 50);
  s->max_refusal_ms = times.back();
}

void add_completed(const RequestRecord& record, const BenchConfig& config, Summary* s) {
  ++s->completed;
  s->total_input_tokens += record.prompt_tokens;
  s->total_output_tokens += record.output_tokens;
  if (!record.usage_known) ++s->without_usage;
  if (config.options.force_output_lengths && record.output_tokens != record.wanted_tokens)
    ++s->length_mismatches;
}

void judge(const RequestRecord& record, const BenchConfig& config, std::vector<std::vector<double>>* values,
           Summary* s) {
  ++s->judged;
  if (record.state != RequestRecord::State::kCompleted) return;
  if (attains_all(record, config.goals)) ++s->good;
  for (size_t i = 0; i < config.bounds.size(); ++i) {
    if (attains(record, config.bounds[i])) ++s->attained[i];
  }
  for (size_t m = 0; m < values->size(); ++m) append_values(record, config.metrics[m], &(*values)[m]);
}

std::string value_text(const MeanFigure& f, size_t runs) {
  const std::string mean = f.figure.whole && runs == 1 ? fmt::format("{:.0f}", *f.figure.value)
                                                       : fmt::format("{:.2f}", *f.figure.value);
  return runs == 1 ? mean : fmt::format("{} +- {:.2f}", mean, f.interval.half_width);
}

void add_line(std::string* out, const std::string& label, const std::string& value) {
  fmt::format_to(std::back_inserter(*out), "{:<40} {:<10}\n", label, value);
}

// Notes on one run; `name` begins them where there are several.
void add_notes(std::string* out, const Summary& s, const std::string& name) {
  auto to = std::back_inserter(*out);
  const std::string unfinished = count_of(static_cast<uint64_t>(s.unfinished), "request");
  if (s.interrupted) fmt::format_to(to, "{}Interrupted: {} had not ended.\n", name, unfinished);
  if (s.drained_out && s.unfinished > 0) {
    fmt::format_to(to, "{}The drain timeout came: {} had not ended.\n", name, unfinished);
  }
  if (s.length_mismatches > 0) {
    fmt::format_to(to,
                   "{}Forced lengths: {} of {} outputs have another length; does the server know "
                   "forced_output_tokens?\n",
                   name, s.length_mismatches, s.completed);
  }
  if (s.completed > 0 && s.without_usage == 0) {
    fmt::format_to(to, "{}Token counts: the server's usage, for all {} requests.\n", name, s.completed);
  } else if (s.without_usage > 0) {
    fmt::format_to(to,
                   "{}Token counts: the server's usage for {}; {} came without usage and are counted by "
                   "words of the prompt and chunks of the stream.\n",
                   name, count_of(static_cast<uint64_t>(s.completed - s.without_usage), "request"),
                   s.without_usage);
  }
  if (s.errors.empty()) return;
  fmt::format_to(to, "{}Failures:\n", name);
  for (size_t i = 0; i < std::min(kErrorsPrinted, s.errors.size()); ++i) {
    fmt::format_to(to, "  {} x {}\n", s.errors[i].second, s.errors[i].first);
  }
  if (s.errors.size() > kErrorsPrinted)
    fmt::format_to(to, "  and {} other kinds\n", s.errors.size() - kErrorsPrinted);
}

std::vector<MeanFigure> means_of(const PointResult& point, const BenchConfig& config) {
  std::vector<Figures> runs;
  for (const Summary& s : point.runs) runs.push_back(figures_of(s, config));
  return mean_figures(runs);
}

// Of `judged` requests, from the first one's arrival to the last one's: n of them bound n - 1 of n gaps.
std::optional<double> seconds_of_arrivals(Nanos span, int64_t judged, const BenchConfig& config) {
  if (span <= 0 || config.options.max_concurrency > 0) return std::nullopt;
  const auto n = static_cast<double>(judged);
  return to_seconds(span) * n / (n - 1);
}

std::optional<double> steady_throughput(const LoadOutcome& outcome, double trim) {
  if (trim == 0) return std::nullopt;
  std::vector<Nanos> ends;
  for (const RequestRecord& r : outcome.records) {
    if (r.state == RequestRecord::State::kCompleted) ends.push_back(r.end - outcome.start);
  }
  return steady_rate(std::move(ends), trim);
}

}  // namespace

double steady_rate(std::vector<Nanos> ends, double share) {
  if (ends.empty()) return 0;
  std::sort(ends.begin(), ends.end());
  const auto cut = static_cast<size_t>(share * static_cast<double>(ends.size()));
  const Nanos from = ends[cut], to = ends[ends.size() - 1 - cut];
  // Requests of one length end together: those that end at `from` are the ones before, all of them.
  const auto ended = [&](Nanos by) { return std::upper_bound(ends.begin(), ends.end(), by) - ends.begin(); };
  const auto rate = [](auto count, Nanos time) {
    return time > 0 ? static_cast<double>(count) / to_seconds(time) : 0;
  };
  const auto count = ended(to) - ended(from);
  return count == 0 ? rate(ended(to), to) : rate(count, to - from);
}

Summary summarise(const LoadOutcome& outcome, const BenchConfig& config) {
  Summary s;
  s.duration = to_seconds(outcome.duration);
  s.max_concurrent = outcome.max_concurrent;
  s.interrupted = outcome.interrupted;
  s.drained_out = outcome.drained_out;
  s.attained.assign(config.bounds.size(), 0);
  std::vector<std::vector<double>> values(config.metrics.size());
  // Records are in the order of arrival.
  Nanos first_judged = 0, last_judged = 0;
  const size_t trimmed = trimmed_requests(config.options.trim, outcome.records.size());
  for (size_t i = 0; i < outcome.records.size(); ++i) {
    const RequestRecord& record = outcome.records[i];
    if (record.state != RequestRecord::State::kWaiting) {
      ++s.submitted;
      if (i >= trimmed && i < outcome.records.size() - trimmed) {
        judge(record, config, &values, &s);
        if (s.judged == 1) first_judged = record.arrival;
        last_judged = record.arrival;
      }
    }
    if (record.state == RequestRecord::State::kCompleted) {
      add_completed(record, config, &s);
    } else if (record.state != RequestRecord::State::kFailed) {
      ++s.unfinished;
    } else if (!record.refused) {
      ++s.failed;
    }
  }
  s.judged_s = seconds_of_arrivals(last_judged - first_judged, s.judged, config);
  add_refusals(outcome.records, &s);
  s.steady_throughput = steady_throughput(outcome, config.options.trim);
  for (std::vector<double>& v : values) s.metrics.push_back(describe(std::move(v), config.percentiles));
  s.errors = distinct_errors(outcome.records);
  return s;
}

std::string printed_block(const PointResult& point, const BenchConfig& config) {
  const BenchOptions& o = config.options;
  std::string out = fmt::format("{:=^50}\n", " Serving Benchmark Result ");
  const size_t runs = point.runs.size();
  if (runs > 1) add_line(&out, "Runs (mean +- 95 % interval):", std::to_string(runs));
  for (const MeanFigure& f : means_of(point, config)) {
    if (!f.figure.header.empty()) fmt::format_to(std::back_inserter(out), "{:-^50}\n", f.figure.header);
    // Where vLLM's block has them.
    if (f.figure.key == "duration") {
      if (o.max_concurrency > 0)
        add_line(&out, "Maximum request concurrency:", std::to_string(o.max_concurrency));
      if (!std::isinf(point.rate))
        add_line(&out, "Request rate configured (RPS):", fmt::format("{:.2f}", point.rate));
    }
    if (!f.figure.label.empty() && f.figure.value.has_value())
      add_line(&out, f.figure.label, value_text(f, runs));
  }
  fmt::format_to(std::back_inserter(out), "{:=^50}\n", "");
  for (size_t i = 0; i < runs; ++i) {
    add_notes(&out, point.runs[i], runs > 1 ? fmt::format("Seed {}: ", o.seed + i) : "");
  }
  return out;
}

std::string rate_table(const std::vector<PointResult>& points, const BenchConfig& config) {
  struct Column {
    const char* key;
    const char* title;
  };
  constexpr std::array<Column, 10> kColumns = {{{"request_throughput", "req/s"},
                                                {"output_throughput", "tok/s"},
                                                {"request_goodput", "goodput"},
                                                {"attainment_joint", "attained %"},
                                                {"median_ttft_ms", "p50 TTFT"},
                                                {"p99_ttft_ms", "p99 TTFT"},
                                                {"p99_itl_ms", "p99 TBT"},
                                                {"p99_e2el_ms", "p99 E2EL"},
                                                {"unserved", "unserved"},
                                                {"preemptions", "preempt."}}};
  std::string out = fmt::format("{:>8}", "rate");
  for (const Column& column : kColumns) fmt::format_to(std::back_inserter(out), " {:>18}", column.title);
  out += '\n';
  for (const PointResult& point : points) {
    const std::vector<MeanFigure> means = means_of(point, config);
    fmt::format_to(std::back_inserter(out), "{:>8}",
                   std::isinf(point.rate) ? std::string("inf") : fmt::format("{:.6g}", point.rate));
    for (const Column& column : kColumns) {
      const MeanFigure* f = find_figure(means, column.key);
      const bool known = f != nullptr && f->figure.value.has_value();
      fmt::format_to(std::back_inserter(out), " {:>18}", known ? value_text(*f, point.runs.size()) : "-");
    }
    out += '\n';
  }
  return out;
}

}  // namespace kvasir
