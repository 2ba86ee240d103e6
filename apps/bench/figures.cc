#include "apps/bench/figures.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvasir {
namespace {

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

const char* attainment_name(Goal::Key key) {
  switch (key) {
    case Goal::Key::kTtft:
      return "TTFT";
    case Goal::Key::kTpot:
      return "mean TPOT";
    case Goal::Key::kP99Tbt:
      return "P99 TBT";
    case Goal::Key::kMaxTbt:
      return "every TBT";
    case Goal::Key::kE2el:
      return "E2EL";
  }
  KV_CHECK(false, "key={}", static_cast<int>(key));
}

Figure count(std::string key, std::string label, int64_t value) {
  return {std::move(key), std::move(label), "", true, static_cast<double>(value)};
}

Figure real(std::string key, std::string label, std::optional<double> value) {
  return {std::move(key), std::move(label), "", false, value};
}

// A figure that is printed only when it says something.
std::string label_if(bool shown, const char* label) {
  return shown ? label : "";
}

void add_attainments(const Summary& s, const BenchConfig& config, Figures* out) {
  if (config.bounds.empty()) return;
  const auto percent = [&](int64_t attained) { return std::optional(100 * s.share(attained)); };
  const size_t first = out->size();
  for (size_t i = 0; i < config.bounds.size(); ++i) {
    const Goal& bound = config.bounds[i];
    out->push_back(real(fmt::format("attainment_{}", goal_key(bound.key)),
                        bound.millis == kOwnBound
                            ? fmt::format("{} <= its own bound (%):", attainment_name(bound.key))
                            : fmt::format("{} <= {} ms (%):", attainment_name(bound.key), bound.millis),
                        percent(s.attained[i])));
  }
  out->push_back(real("attainment_joint", "All of the goodput's bounds (%):", percent(s.good)));
  (*out)[first].header =
      config.options.trim > 0 ? "SLO Attainment (of judged)" : "SLO Attainment (of submitted)";
}

// Nothing where no request has completed: a mean of nothing is not 0.
void add_metric(const Distribution& d, bool any, Metric metric, const BenchConfig& config, Figures* out) {
  const auto value = [&](double v) { return any ? std::optional(v) : std::nullopt; };
  const MetricTitle title = title_of(metric);
  const std::string key = fmt::format("{}_ms", metric_key(metric));
  out->push_back(real("mean_" + key, fmt::format("Mean {} (ms):", title.name), value(d.mean)));
  out->back().header = title.header;
  out->push_back(real("median_" + key, fmt::format("Median {} (ms):", title.name), value(d.median)));
  out->push_back(real("std_" + key, "", value(d.stddev)));
  for (size_t i = 0; i < config.percentiles.size(); ++i) {
    out->push_back(real(fmt::format("p{}_{}", config.percentile_names[i], key),
                        fmt::format("P{} {} (ms):", config.percentile_names[i], title.name),
                        value(d.percentiles[i])));
  }
}

}  // namespace

Figures figures_of(const Summary& s, const BenchConfig& config) {
  Figures f;
  f.push_back(count("completed", "Successful requests:", s.completed));
  f.push_back(count("failed", "Failed requests:", s.failed));
  f.push_back(count("refused", label_if(s.refused > 0, "Refused requests (503):"), s.refused));
  f.push_back(count("submitted", "", s.submitted));
  f.push_back(count("judged", label_if(config.options.trim > 0, "Judged requests:"), s.judged));
  f.push_back(count("unserved", label_if(s.submitted > s.completed, "Unserved requests:"),
                    s.submitted - s.completed));
  f.push_back(real("duration", "Benchmark duration (s):", s.duration));
  f.push_back(count("total_input_tokens", "Total input tokens:", s.total_input_tokens));
  f.push_back(count("total_output_tokens", "Total generated tokens:", s.total_output_tokens));
  f.push_back(real("request_throughput", "Request throughput (req/s):", s.per_second(s.completed)));
  if (s.steady_throughput.has_value()) {
    f.push_back(real("steady_throughput", "Throughput without the ends (req/s):", s.steady_throughput));
  }
  f.push_back(real("request_goodput", label_if(!config.goals.empty(), "Request goodput (req/s):"),
                   config.goals.empty() ? std::nullopt : std::optional(s.goodput())));
  f.push_back(
      real("output_throughput", "Output token throughput (tok/s):", s.per_second(s.total_output_tokens)));
  f.push_back(count("max_concurrent_requests", "Peak concurrent requests:", s.max_concurrent));
  f.push_back(real("total_token_throughput", "Total Token throughput (tok/s):",
                   s.per_second(s.total_input_tokens + s.total_output_tokens)));
  f.push_back({"preemptions", label_if(s.preemptions.has_value(), "Preemptions (server's count):"), "", true,
               s.preemptions});
  f.push_back(count("requests_without_usage", "", s.without_usage));
  f.push_back(count("length_mismatches", "", s.length_mismatches));
  f.push_back(real("median_refusal_ms", label_if(s.refused > 0, "Median time to refusal (ms):"),
                   s.median_refusal_ms));
  f.push_back(
      real("max_refusal_ms", label_if(s.refused > 0, "Longest time to refusal (ms):"), s.max_refusal_ms));
  add_attainments(s, config, &f);
  for (size_t m = 0; m < s.metrics.size(); ++m) {
    add_metric(s.metrics[m], s.completed > 0, config.metrics[m], config, &f);
  }
  for (const EngineFigure& e : s.engine) {
    f.push_back({e.key, e.label, &e == &s.engine.front() ? "Engine" : "", e.whole, e.value});
  }
  return f;
}

std::vector<MeanFigure> mean_figures(const std::vector<Figures>& runs) {
  KV_CHECK(!runs.empty(), "no runs");
  std::vector<MeanFigure> means;
  for (size_t i = 0; i < runs.front().size(); ++i) {
    MeanFigure mean{runs.front()[i], {}};
    std::vector<double> values;
    for (const Figures& run : runs) {
      KV_CHECK(run.size() == runs.front().size() && run[i].key == mean.figure.key, "key={}", run[i].key);
      if (run[i].value.has_value()) values.push_back(*run[i].value);
      // Some figures are printed only by the runs to which they say something.
      if (mean.figure.label.empty()) mean.figure.label = run[i].label;
    }
    mean.interval = mean_interval(values);
    mean.figure.value = values.empty() ? std::nullopt : std::optional<double>(mean.interval.mean);
    means.push_back(std::move(mean));
  }
  return means;
}

const MeanFigure* find_figure(const std::vector<MeanFigure>& figures, const std::string& key) {
  const auto found =
      std::find_if(figures.begin(), figures.end(), [&](const MeanFigure& f) { return f.figure.key == key; });
  return found == figures.end() ? nullptr : &*found;
}

}  // namespace kvasir
