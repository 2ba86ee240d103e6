#include "bench/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>

namespace kvasir {
namespace {

constexpr size_t kErrorsPrinted = 5;

struct MetricTitle {
  const char* name;
  const char* header;
};

MetricTitle title_of(Metric metric) {
  switch (metric) {
    case Metric::kTtft:
      return {"TTFT", "Time to First Token"};
    case Metric::kTpot:
      return {"TPOT", "Time per Output Token (excl. 1st token)"};
    case Metric::kItl:
      return {"ITL", "Inter-token Latency"};
    case Metric::kE2el:
      return {"E2EL", "End-to-end Latency"};
  }
  KV_CHECK(false, "metric={}", static_cast<int>(metric));
}

std::vector<double> gaps_ms(const RequestRecord& record) {
  std::vector<double> gaps;
  gaps.reserve(record.gaps.size());
  for (Nanos gap : record.gaps) gaps.push_back(to_millis(gap));
  return gaps;
}

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

double goal_value(const RequestRecord& record, Goal::Key key) {
  switch (key) {
    case Goal::Key::kTtft:
      return ttft_ms(record);
    case Goal::Key::kTpot:
      return tpot_ms(record);
    case Goal::Key::kE2el:
      return e2el_ms(record);
    case Goal::Key::kP99Tbt:
    case Goal::Key::kMaxTbt: {
      std::vector<double> gaps = gaps_ms(record);
      std::sort(gaps.begin(), gaps.end());
      return percentile_of_sorted(gaps, key == Goal::Key::kMaxTbt ? 100 : 99);
    }
  }
  KV_CHECK(false, "key={}", static_cast<int>(key));
}

void add_line(std::string* out, const std::string& label, int64_t value) {
  fmt::format_to(std::back_inserter(*out), "{:<40} {:<10}\n", label, value);
}

void add_line(std::string* out, const std::string& label, double value) {
  fmt::format_to(std::back_inserter(*out), "{:<40} {:<10.2f}\n", label, value);
}

void add_metric(std::string* out, const Distribution& d, Metric metric, const BenchConfig& config) {
  const MetricTitle title = title_of(metric);
  fmt::format_to(std::back_inserter(*out), "{:-^50}\n", title.header);
  add_line(out, fmt::format("Mean {} (ms):", title.name), d.mean);
  add_line(out, fmt::format("Median {} (ms):", title.name), d.median);
  for (size_t i = 0; i < config.percentiles.size(); ++i) {
    add_line(out, fmt::format("P{} {} (ms):", config.percentile_names[i], title.name), d.percentiles[i]);
  }
}

void add_notes(std::string* out, const Summary& s) {
  auto to = std::back_inserter(*out);
  if (s.interrupted) fmt::format_to(to, "Interrupted: {} requests had not ended.\n", s.unfinished);
  if (s.completed > 0 && s.without_usage == 0) {
    fmt::format_to(to, "Token counts: the server's usage, for all {} requests.\n", s.completed);
  } else if (s.without_usage > 0) {
    fmt::format_to(
        to,
        "Token counts: the server's usage for {} requests; {} came without usage and are counted by words "
        "of the prompt and chunks of the stream.\n",
        s.completed - s.without_usage, s.without_usage);
  }
  if (s.errors.empty()) return;
  fmt::format_to(to, "Failures:\n");
  for (size_t i = 0; i < std::min(kErrorsPrinted, s.errors.size()); ++i) {
    fmt::format_to(to, "  {} x {}\n", s.errors[i].second, s.errors[i].first);
  }
  if (s.errors.size() > kErrorsPrinted)
    fmt::format_to(to, "  and {} other kinds\n", s.errors.size() - kErrorsPrinted);
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

}  // namespace

double ttft_ms(const RequestRecord& record) {
  return to_millis(record.first - record.start);
}

double e2el_ms(const RequestRecord& record) {
  return to_millis(record.last - record.start);
}

double tpot_ms(const RequestRecord& record) {
  if (record.output_tokens < 2) return 0;
  return to_millis(record.last - record.first) / static_cast<double>(record.output_tokens - 1);
}

bool meets_goals(const RequestRecord& record, const std::vector<Goal>& goals) {
  return std::all_of(goals.begin(), goals.end(),
                     [&](const Goal& goal) { return goal_value(record, goal.key) <= goal.millis; });
}

Summary summarise(const LoadOutcome& outcome, const BenchConfig& config) {
  Summary s;
  s.duration = to_seconds(outcome.duration);
  s.max_concurrent = outcome.max_concurrent;
  s.interrupted = outcome.interrupted;
  std::vector<std::vector<double>> values(config.metrics.size());
  for (const RequestRecord& record : outcome.records) {
    if (record.state == RequestRecord::State::kFailed) ++s.failed;
    if (record.state == RequestRecord::State::kWaiting || record.state == RequestRecord::State::kSent)
      ++s.unfinished;
    if (record.state != RequestRecord::State::kCompleted) continue;
    ++s.completed;
    s.total_input_tokens += record.prompt_tokens;
    s.total_output_tokens += record.output_tokens;
    if (!record.usage_known) ++s.without_usage;
    if (meets_goals(record, config.goals)) ++s.good;
    for (size_t m = 0; m < values.size(); ++m) append_values(record, config.metrics[m], &values[m]);
  }
  for (std::vector<double>& v : values) s.metrics.push_back(describe(std::move(v), config.percentiles));
  s.errors = distinct_errors(outcome.records);
  return s;
}

std::string printed_block(const Summary& s, const BenchConfig& config) {
  const BenchOptions& o = config.options;
  std::string out = fmt::format("{:=^50}\n", " Serving Benchmark Result ");
  add_line(&out, "Successful requests:", s.completed);
  add_line(&out, "Failed requests:", s.failed);
  if (o.max_concurrency > 0) add_line(&out, "Maximum request concurrency:", o.max_concurrency);
  if (!std::isinf(o.request_rate)) add_line(&out, "Request rate configured (RPS):", o.request_rate);
  add_line(&out, "Benchmark duration (s):", s.duration);
  add_line(&out, "Total input tokens:", s.total_input_tokens);
  add_line(&out, "Total generated tokens:", s.total_output_tokens);
  add_line(&out, "Request throughput (req/s):", s.per_second(s.completed));
  if (!config.goals.empty()) add_line(&out, "Request goodput (req/s):", s.per_second(s.good));
  add_line(&out, "Output token throughput (tok/s):", s.per_second(s.total_output_tokens));
  add_line(&out, "Peak concurrent requests:", s.max_concurrent);
  add_line(&out,
           "Total Token throughput (tok/s):", s.per_second(s.total_input_tokens + s.total_output_tokens));
  for (size_t m = 0; m < s.metrics.size(); ++m) add_metric(&out, s.metrics[m], config.metrics[m], config);
  fmt::format_to(std::back_inserter(out), "{:=^50}\n", "");
  add_notes(&out, s);
  return out;
}

}  // namespace kvasir
