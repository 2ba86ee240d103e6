#include "apps/bench/config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "apps/bench/completion_stream.h"
#include "apps/bench/parse_text.h"
#include "apps/bench/workloads.h"

namespace kvasir {
namespace {

constexpr const char* kRateFlag = "--request-rate";
constexpr int64_t kMaxPrompts = 10'000'000;
constexpr int64_t kMaxLength = 10'000'000;
constexpr int64_t kMaxSeeds = 1000;
constexpr double kMaxLengthScale = 1000;
constexpr double kMaxTimeoutSeconds = 1e8;
constexpr double kLeastCv = 0.01, kMostCv = 100;

constexpr std::array<std::pair<std::string_view, Metric>, 4> kMetrics = {
    {{"ttft", Metric::kTtft}, {"tpot", Metric::kTpot}, {"itl", Metric::kItl}, {"e2el", Metric::kE2el}}};
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
    if (!value.has_value() || *value <= 0 || *value > 100) {
      return error(ErrorCode::kInvalidArgument,
                   "--metric-percentiles: '{}' is no number above 0, at most 100", text);
    }
    config->percentiles.push_back(*value);
    config->percentile_names.push_back(fmt::format("{}", *value));
  }
  return Status();
}

Status check_goals(BenchConfig* config) {
  for (const std::string& text : config->options.goodput) {
    KV_ASSIGN_OR_RETURN(const Goal goal, parse_goal("--goodput", text));
    if (has_goal(config->goals, goal.key)) {
      return error(ErrorCode::kInvalidArgument, "--goodput: '{}' is given twice", goal_key(goal.key));
    }
    config->goals.push_back(goal);
  }
  return Status();
}

// Bounds of the requests' own, in place of the run's. Comes before check_slo.
Status check_own_bounds(BenchConfig* config) {
  const BenchOptions& o = config->options;
  const int kinds = static_cast<int>(!o.slo_classes.empty()) + static_cast<int>(!o.relative_slo.empty()) +
                    static_cast<int>(!o.goodput.empty() || !o.slo.empty());
  if (kinds > 1) {
    return error(
        ErrorCode::kInvalidArgument,
        "--slo-class, --relative-slo and --goodput with --slo exclude each other; give bounds one way");
  }
  KV_ASSIGN_OR_RETURN(config->classes, parse_slo_classes(o.slo_classes));
  for (const SloClass& one : config->classes) {
    for (const Goal& goal : one.goals) {
      if (!has_goal(config->goals, goal.key)) config->goals.push_back({goal.key, kOwnBound});
    }
  }
  if (!o.relative_slo.empty()) {
    KV_ASSIGN_OR_RETURN(config->relative, parse_relative_slo(o.relative_slo));
    config->goals = {{Goal::Key::kTtft, kOwnBound}, {Goal::Key::kMaxTbt, kOwnBound}};
  }
  if (!o.slo_reference.empty()) {
    if (!config->relative.has_value()) {
      return error(ErrorCode::kInvalidArgument, "--slo-reference: needs --relative-slo");
    }
    KV_ASSIGN_OR_RETURN(config->reference, parse_slo_reference(o.slo_reference));
  }
  return Status();
}

// "KEY:MILLISECONDS" as servers take it.
Result<std::pair<std::string_view, double>> parse_slo_bound(std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const std::string_view number = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  const double millis = parse_number(number).value_or(-1);
  const bool known =
      std::any_of(kSloKeys.begin(), kSloKeys.end(), [&](const SloKey& key) { return key.name == name; });
  if (!known || millis < 0) {
    std::vector<std::string_view> keys;
    for (const SloKey& key : kSloKeys) keys.push_back(key.name);
    return error(ErrorCode::kInvalidArgument, "--slo: '{}' is not KEY:MILLISECONDS with a key out of {}",
                 text, fmt::join(keys, ", "));
  }
  if (millis < 1 || millis > kMaxSloMillis || millis != std::floor(millis)) {
    return error(ErrorCode::kInvalidArgument, "--slo: '{}': servers take whole milliseconds from 1 to {}",
                 text, kMaxSloMillis);
  }
  return std::pair{name, millis};
}

// Comes after check_goals, whose bounds go before those of --slo.
Status check_slo(BenchConfig* config) {
  config->bounds = config->goals;
  const bool goals_too = config->goals.empty();
  for (const std::string& text : config->options.slo) {
    KV_ASSIGN_OR_RETURN(const auto bound, parse_slo_bound(text));
    const auto& [name, millis] = bound;
    for (const auto& [known, value] : config->slo_ms) {
      if (known == name) return error(ErrorCode::kInvalidArgument, "--slo: '{}' is given twice", name);
    }
    config->slo_ms.emplace_back(name, millis);
    std::vector<Goal> named = {{goal_of(name).value_or(Goal::Key::kMaxTbt), millis}};  // tbt: every one
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

// Which datasets there are besides the named workloads.
Status check_dataset_name(const BenchOptions& o) {
  const bool needs_file = o.dataset_name == "custom" || o.dataset_name == "trace";
  if (!needs_file && o.dataset_name != "random") {
    const Result<Workload> workload = find_workload(o.dataset_name);
    if (!workload.ok()) {
      return error(ErrorCode::kInvalidArgument,
                   "--dataset-name {}: there are random, trace, custom, and the workloads {}", o.dataset_name,
                   fmt::join(workload_names(), ", "));
    }
  }
  if (needs_file && o.dataset_path.empty()) {
    return error(ErrorCode::kInvalidArgument, "--dataset-name {}: --dataset-path must name a file of {}",
                 o.dataset_name, o.dataset_name == "custom" ? "JSON lines" : "comma-separated values");
  }
  if (!needs_file && o.dataset_name != "sharegpt" && !o.dataset_path.empty()) {
    return error(ErrorCode::kInvalidArgument,
                 "--dataset-path {}: needs --dataset-name sharegpt, trace or custom", o.dataset_path);
  }
  return Status();
}

Status check_dataset(const BenchOptions& o) {
  KV_RETURN_IF_ERROR(check_dataset_name(o));
  if (!(o.length_scale > 0 && o.length_scale <= kMaxLengthScale)) {
    return error(ErrorCode::kInvalidArgument, "--length-scale {}: expected above 0, to {}", o.length_scale,
                 kMaxLengthScale);
  }
  const bool has_lengths =
      o.dataset_name == "trace" || (o.dataset_name != "random" && o.dataset_path.empty());
  if (o.length_scale != 1 && !has_lengths) {
    return error(ErrorCode::kInvalidArgument,
                 "--length-scale {}: needs --dataset-name trace, or a workload without --dataset-path",
                 o.length_scale);
  }
  if (o.shared_prefix_len > 0 && o.dataset_name != "random" && !has_lengths) {
    return error(
        ErrorCode::kInvalidArgument,
        "--shared-prefix-len {}: needs --dataset-name random or trace, or a workload without --dataset-path",
        o.shared_prefix_len);
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
        Bound{"--shared-prefix-len", o.shared_prefix_len, 0, kMaxLength},
        Bound{"--num-shared-prefixes", o.num_shared_prefixes, 1, kMaxPrompts},
        Bound{"--custom-output-len", o.custom_output_len, 1, kMaxLength},
        Bound{"--max-concurrency", o.max_concurrency, 0, kMaxPrompts},
        Bound{"--num-warmups", o.num_warmups, 0, kMaxPrompts},
        Bound{"--max-tokens", o.max_tokens, 0, kMaxLength}, Bound{"--seeds", o.seeds, 1, kMaxSeeds}}) {
    if (b.value < b.low || b.value > b.high) {
      return error(ErrorCode::kInvalidArgument, "{} {}: expected {} to {}", b.flag, b.value, b.low, b.high);
    }
  }
  if (!(o.drain_timeout_s >= 0)) {
    return error(ErrorCode::kInvalidArgument, "--drain-timeout {}: expected seconds of 0 or more",
                 o.drain_timeout_s);
  }
  if (!(o.trim >= 0 && o.trim < 0.5)) {
    return error(ErrorCode::kInvalidArgument, "--trim {}: expected 0 to below 0.5", o.trim);
  }
  if (!(o.burstiness > 0) || std::isinf(o.burstiness)) {
    return error(ErrorCode::kInvalidArgument, "--burstiness {}: expected a number above 0", o.burstiness);
  }
  if (o.arrival_cv != 0 && o.burstiness != 1) {
    return error(ErrorCode::kInvalidArgument, "--arrival-cv and --burstiness say the same thing; give one");
  }
  if (o.arrival_cv != 0 && !(o.arrival_cv >= kLeastCv && o.arrival_cv <= kMostCv)) {
    return error(ErrorCode::kInvalidArgument, "--arrival-cv {}: expected {} to {}", o.arrival_cv, kLeastCv,
                 kMostCv);
  }
  if (!(o.timeout_s > 0 && o.timeout_s <= kMaxTimeoutSeconds)) {
    return error(ErrorCode::kInvalidArgument, "--timeout {}: expected seconds above 0", o.timeout_s);
  }
  if (!(o.temperature >= 0) || std::isinf(o.temperature)) {
    return error(ErrorCode::kInvalidArgument, "--temperature {}: expected 0 or more", o.temperature);
  }
  if (!o.extra_body.empty() && !is_json_object(o.extra_body)) {
    return error(ErrorCode::kInvalidArgument, "--extra-body: not a JSON object");
  }
  return Status();
}

Status check_reports(const BenchOptions& o) {
  if (!o.save_result && (o.save_detailed || !o.result_filename.empty() || !o.result_dir.empty())) {
    return error(ErrorCode::kInvalidArgument,
                 "--save-detailed, --result-dir and --result-filename need --save-result");
  }
  if (!o.compare.empty() && o.html.empty() && o.svg.empty()) {
    return error(ErrorCode::kInvalidArgument, "--compare: give --html FILE or --svg FOLDER for the report");
  }
  if (o.max_tokens > 0 && !o.force_output_lengths) {
    return error(ErrorCode::kInvalidArgument,
                 "--max-tokens {}: needs --force-output-lengths; else each request's own length is sent",
                 o.max_tokens);
  }
  return Status();
}

}  // namespace

double arrival_shape(const BenchOptions& options) {
  return options.arrival_cv > 0 ? 1 / (options.arrival_cv * options.arrival_cv) : options.burstiness;
}

std::string_view metric_key(Metric metric) {
  return kMetrics[static_cast<size_t>(metric)].first;
}

Result<BenchConfig> check_load_options(const BenchOptions& options) {
  BenchConfig config;
  config.options = options;
  KV_RETURN_IF_ERROR(check_dataset(options));
  KV_RETURN_IF_ERROR(check_numbers(options));
  KV_RETURN_IF_ERROR(check_metrics(&config));
  KV_RETURN_IF_ERROR(check_goals(&config));
  KV_RETURN_IF_ERROR(check_own_bounds(&config));
  KV_RETURN_IF_ERROR(check_slo(&config));
  KV_RETURN_IF_ERROR(check_reports(options));
  config.rate_specs.emplace_back();
  if (!options.request_rate.empty()) {
    KV_ASSIGN_OR_RETURN(config.rate_specs, parse_rates(kRateFlag, options.request_rate));
  }
  const Result<std::vector<double>> rates = resolve_rates(kRateFlag, config.rate_specs, std::nullopt);
  if (rates.ok()) config.rates = *rates;
  return config;
}

Result<BenchConfig> check_options(const BenchOptions& options) {
  KV_ASSIGN_OR_RETURN(BenchConfig config, check_load_options(options));
  KV_ASSIGN_OR_RETURN(config.target, parse_base_url(options.base_url));
  KV_RETURN_IF_ERROR(check_endpoint(&config));
  KV_ASSIGN_OR_RETURN(config.rates, resolve_rates(kRateFlag, config.rate_specs, std::nullopt));
  if (config.relative.has_value() && !config.reference.has_value()) {
    return error(ErrorCode::kInvalidArgument,
                 "--relative-slo {}: needs --slo-reference with the means that the bounds are relative to",
                 options.relative_slo);
  }
  return config;
}

}  // namespace kvasir
