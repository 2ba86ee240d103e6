#include "bench/config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

namespace kvasir {
namespace {

constexpr int64_t kMaxPrompts = 10'000'000;
constexpr int64_t kMaxLength = 10'000'000;
constexpr int64_t kMaxSeeds = 1000;
constexpr double kMaxLengthScale = 1000;
constexpr double kMaxTimeoutSeconds = 1e8;

constexpr std::array<std::pair<std::string_view, Metric>, 4> kMetrics = {
    {{"ttft", Metric::kTtft}, {"tpot", Metric::kTpot}, {"itl", Metric::kItl}, {"e2el", Metric::kE2el}}};
constexpr std::array<std::pair<std::string_view, Goal::Key>, 5> kGoals = {{{"ttft", Goal::Key::kTtft},
                                                                           {"tpot", Goal::Key::kTpot},
                                                                           {"p99_tbt", Goal::Key::kP99Tbt},
                                                                           {"max_tbt", Goal::Key::kMaxTbt},
                                                                           {"e2el", Goal::Key::kE2el}}};

std::string_view trim(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> split_commas(std::string_view text) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t comma = text.find(',');
    const std::string_view part = trim(text.substr(0, comma));
    if (!part.empty()) parts.push_back(part);
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
    return std::nullopt;
  return value;
}

bool has_control_characters(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

Status check_metrics(BenchConfig* config) {
  for (std::string_view name : split_commas(config->options.percentile_metrics)) {
    const auto found =
        std::find_if(kMetrics.begin(), kMetrics.end(), [&](const auto& m) { return m.first == name; });
    if (found == kMetrics.end()) {
      return error(ErrorCode::kInvalidArgument, "--percentile-metrics: '{}' is none of ttft, tpot, itl, e2el",
                   name);
    }
    if (std::count(config->metrics.begin(), config->metrics.end(), found->second) == 0) {
      config->metrics.push_back(found->second);
    }
  }
  for (std::string_view text : split_commas(config->options.metric_percentiles)) {
    const auto value = parse_number(text);
    if (!value.has_value() || *value <= 0 || *value >= 100) {
      return error(ErrorCode::kInvalidArgument, "--metric-percentiles: '{}' is no number between 0 and 100",
                   text);
    }
    config->percentiles.push_back(*value);
    config->percentile_names.push_back(fmt::format("{}", *value));
  }
  return Status();
}

// "KEY:MILLISECONDS"; `keys` is what the error offers.
Result<std::pair<std::string_view, double>> parse_bound(const char* flag, std::string_view text,
                                                        const std::vector<std::string_view>& keys) {
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const std::string_view number = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  const double millis = parse_number(number).value_or(-1);
  if (std::find(keys.begin(), keys.end(), name) == keys.end() || millis < 0) {
    return error(ErrorCode::kInvalidArgument, "{}: '{}' is not KEY:MILLISECONDS with a key out of {}", flag,
                 text, fmt::join(keys, ", "));
  }
  return std::pair{name, millis};
}

bool has_goal(const std::vector<Goal>& goals, Goal::Key key) {
  return std::any_of(goals.begin(), goals.end(), [&](const Goal& goal) { return goal.key == key; });
}

Status check_goals(BenchConfig* config) {
  std::vector<std::string_view> keys;
  for (const auto& [name, key] : kGoals) keys.push_back(name);
  for (const std::string& text : config->options.goodput) {
    KV_ASSIGN_OR_RETURN(const auto bound, parse_bound("--goodput", text, keys));
    const size_t index = static_cast<size_t>(std::find(keys.begin(), keys.end(), bound.first) - keys.begin());
    const Goal goal{kGoals[index].second, bound.second};
    if (has_goal(config->goals, goal.key))
      return error(ErrorCode::kInvalidArgument, "--goodput: '{}' is given twice", bound.first);
    config->goals.push_back(goal);
  }
  return Status();
}

// Comes after check_goals, whose bounds go before those of --slo.
Status check_slo(BenchConfig* config) {
  config->bounds = config->goals;
  const bool goals_too = config->goals.empty();
  for (const std::string& text : config->options.slo) {
    KV_ASSIGN_OR_RETURN(const auto bound, parse_bound("--slo", text, {"ttft", "tpot", "tbt", "e2el"}));
    const auto& [name, millis] = bound;
    if (millis < 1 || millis > 86'400'000 || millis != std::floor(millis)) {
      return error(ErrorCode::kInvalidArgument,
                   "--slo: '{}': servers take whole milliseconds from 1 to 86400000", text);
    }
    for (const auto& [known, value] : config->slo_ms) {
      if (known == name) return error(ErrorCode::kInvalidArgument, "--slo: '{}' is given twice", name);
    }
    config->slo_ms.emplace_back(name, millis);
    std::vector<Goal> named = {{name == "ttft"   ? Goal::Key::kTtft
                                : name == "tpot" ? Goal::Key::kTpot
                                : name == "tbt"  ? Goal::Key::kMaxTbt
                                                 : Goal::Key::kE2el,
                                millis}};
    if (goals_too) config->goals.push_back(named.front());
    if (name == "tbt") named.push_back({Goal::Key::kP99Tbt, millis});
    for (const Goal& goal : named) {
      if (!has_goal(config->bounds, goal.key)) config->bounds.push_back(goal);
    }
  }
  std::sort(config->bounds.begin(), config->bounds.end(),
            [](const Goal& a, const Goal& b) { return a.key < b.key; });
  return Status();
}

Status check_endpoint(BenchConfig* config) {
  constexpr std::string_view kChat = "/chat/completions";
  constexpr std::string_view kPlain = "/completions";
  const std::string& endpoint = config->options.endpoint;
  config->chat = endpoint.ends_with(kChat);
  if (!endpoint.starts_with('/') || !endpoint.ends_with(kPlain) || has_control_characters(endpoint) ||
      endpoint.find(' ') != std::string::npos) {
    return error(ErrorCode::kInvalidArgument,
                 "--endpoint {}: expected /v1/completions or /v1/chat/completions", endpoint);
  }
  const size_t tail = config->chat ? kChat.size() : kPlain.size();
  config->models_path = endpoint.substr(0, endpoint.size() - tail) + "/models";
  if (has_control_characters(config->options.api_key)) {
    return error(ErrorCode::kInvalidArgument,
                 "--api-key: holds a control character; is there a line break in it?");
  }
  return Status();
}

Status check_dataset(const BenchOptions& o) {
  const bool needs_file = o.dataset_name == "custom" || o.dataset_name == "trace";
  const bool may_have_file = needs_file || o.dataset_name == "sharegpt";
  if (!may_have_file && o.dataset_name != "random") {
    return error(ErrorCode::kInvalidArgument, "--dataset-name {}: expected random, sharegpt, trace or custom",
                 o.dataset_name);
  }
  if (needs_file && o.dataset_path.empty()) {
    return error(ErrorCode::kInvalidArgument, "--dataset-name {}: --dataset-path must name a file of {}",
                 o.dataset_name, o.dataset_name == "custom" ? "JSON lines" : "comma-separated values");
  }
  if (!may_have_file && !o.dataset_path.empty()) {
    return error(ErrorCode::kInvalidArgument,
                 "--dataset-path {}: needs --dataset-name sharegpt, trace or custom", o.dataset_path);
  }
  if (!(o.length_scale > 0 && o.length_scale <= kMaxLengthScale)) {
    return error(ErrorCode::kInvalidArgument, "--length-scale {}: expected above 0, to {}", o.length_scale,
                 kMaxLengthScale);
  }
  const bool draws_lengths =
      o.dataset_name == "trace" || (o.dataset_name == "sharegpt" && o.dataset_path.empty());
  if (o.length_scale != 1 && !draws_lengths) {
    return error(ErrorCode::kInvalidArgument,
                 "--length-scale {}: needs --dataset-name trace, or sharegpt without --dataset-path",
                 o.length_scale);
  }
  if (!(o.random_range_ratio >= 0 && o.random_range_ratio < 1)) {
    return error(ErrorCode::kInvalidArgument, "--random-range-ratio {}: expected at least 0 and below 1",
                 o.random_range_ratio);
  }
  return Status();
}

struct Bound {
  const char* flag;
  int64_t value;
  int64_t low;
  int64_t high;
};

Status check_numbers(const BenchOptions& o) {
  for (const Bound& b :
       {Bound{"--num-prompts", o.num_prompts, 0, kMaxPrompts},
        Bound{"--random-input-len", o.random_input_len, 1, kMaxLength},
        Bound{"--random-output-len", o.random_output_len, 1, kMaxLength},
        Bound{"--custom-output-len", o.custom_output_len, 1, kMaxLength},
        Bound{"--max-concurrency", o.max_concurrency, 0, kMaxPrompts},
        Bound{"--num-warmups", o.num_warmups, 0, kMaxPrompts},
        Bound{"--max-tokens", o.max_tokens, 0, kMaxLength}, Bound{"--seeds", o.seeds, 1, kMaxSeeds}}) {
    if (b.value < b.low || b.value > b.high) {
      return error(ErrorCode::kInvalidArgument, "{} {}: expected {} to {}", b.flag, b.value, b.low, b.high);
    }
  }
  for (double rate : o.request_rates) {
    if (rate >= 1e-6) continue;
    return error(ErrorCode::kInvalidArgument,
                 "--request-rate {}: expected requests per second of at least 1e-6, or inf", rate);
  }
  if (!(o.drain_timeout_s >= 0)) {
    return error(ErrorCode::kInvalidArgument, "--drain-timeout {}: expected seconds of 0 or more",
                 o.drain_timeout_s);
  }
  if (!(o.burstiness > 0) || std::isinf(o.burstiness)) {
    return error(ErrorCode::kInvalidArgument, "--burstiness {}: expected a number above 0", o.burstiness);
  }
  if (!(o.timeout_s > 0 && o.timeout_s <= kMaxTimeoutSeconds)) {
    return error(ErrorCode::kInvalidArgument, "--timeout {}: expected seconds above 0", o.timeout_s);
  }
  if (!(o.temperature >= 0) || std::isinf(o.temperature)) {
    return error(ErrorCode::kInvalidArgument, "--temperature {}: expected 0 or more", o.temperature);
  }
  return Status();
}

Status check_reports(const BenchOptions& o) {
  if (!o.compare.empty() && o.html.empty()) {
    return error(ErrorCode::kInvalidArgument, "--compare: --html must name the report to write");
  }
  if (o.max_tokens > 0 && !o.force_output_lengths) {
    return error(ErrorCode::kInvalidArgument,
                 "--max-tokens {}: needs --force-output-lengths; else each request's own length is sent",
                 o.max_tokens);
  }
  return Status();
}

}  // namespace

std::string_view goal_key(Goal::Key key) {
  return kGoals[static_cast<size_t>(key)].first;
}

std::string_view metric_key(Metric metric) {
  return kMetrics[static_cast<size_t>(metric)].first;
}

Result<BenchConfig> check_options(const BenchOptions& options) {
  BenchConfig config;
  config.options = options;
  KV_ASSIGN_OR_RETURN(config.target, parse_base_url(options.base_url));
  KV_RETURN_IF_ERROR(check_endpoint(&config));
  KV_RETURN_IF_ERROR(check_dataset(options));
  KV_RETURN_IF_ERROR(check_numbers(options));
  KV_RETURN_IF_ERROR(check_metrics(&config));
  KV_RETURN_IF_ERROR(check_goals(&config));
  KV_RETURN_IF_ERROR(check_slo(&config));
  KV_RETURN_IF_ERROR(check_reports(options));
  config.rates = options.request_rates;
  if (config.rates.empty()) config.rates.push_back(std::numeric_limits<double>::infinity());
  if (!options.save_result &&
      (options.save_detailed || !options.result_filename.empty() || !options.result_dir.empty())) {
    return error(ErrorCode::kInvalidArgument,
                 "--save-detailed, --result-dir and --result-filename need --save-result");
  }
  return config;
}

}  // namespace kvasir
