#include "bench/config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

namespace kvasir {
namespace {

constexpr int64_t kMaxPrompts = 10'000'000;
constexpr int64_t kMaxLength = 10'000'000;
constexpr int64_t kMaxPromptWords = 400'000'000;  // of all prompts together: about 2 GB of text
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

Status check_goals(BenchConfig* config) {
  for (const std::string& text : config->options.goodput) {
    const size_t colon = text.find(':');
    const std::string_view name = std::string_view(text).substr(0, colon);
    const auto found =
        std::find_if(kGoals.begin(), kGoals.end(), [&](const auto& g) { return g.first == name; });
    const auto millis =
        colon == std::string::npos ? std::nullopt : parse_number(std::string_view(text).substr(colon + 1));
    if (found == kGoals.end() || !millis.has_value() || *millis < 0) {
      return error(
          ErrorCode::kInvalidArgument,
          "--goodput: '{}' is not KEY:MILLISECONDS with a key out of ttft, tpot, p99_tbt, max_tbt, e2el",
          text);
    }
    for (const Goal& goal : config->goals) {
      if (goal.key == found->second)
        return error(ErrorCode::kInvalidArgument, "--goodput: '{}' is given twice", name);
    }
    config->goals.push_back(Goal{found->second, *millis});
  }
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
  if (o.dataset_name == "sharegpt" || o.dataset_name == "trace") {
    return error(
        ErrorCode::kUnsupported,
        "--dataset-name {}: not supported yet; convert it to JSON lines and use --dataset-name custom",
        o.dataset_name);
  }
  if (o.dataset_name != "random" && o.dataset_name != "custom") {
    return error(ErrorCode::kInvalidArgument, "--dataset-name {}: expected random or custom", o.dataset_name);
  }
  if (o.dataset_name == "custom" && o.dataset_path.empty()) {
    return error(ErrorCode::kInvalidArgument,
                 "--dataset-name custom: --dataset-path must name a file of JSON lines");
  }
  if (o.dataset_name == "random" && !o.dataset_path.empty()) {
    return error(ErrorCode::kInvalidArgument, "--dataset-path {}: needs --dataset-name custom",
                 o.dataset_path);
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
  for (const Bound& b : {Bound{"--num-prompts", o.num_prompts, 0, kMaxPrompts},
                         Bound{"--random-input-len", o.random_input_len, 1, kMaxLength},
                         Bound{"--random-output-len", o.random_output_len, 1, kMaxLength},
                         Bound{"--custom-output-len", o.custom_output_len, 1, kMaxLength},
                         Bound{"--max-concurrency", o.max_concurrency, 0, kMaxPrompts},
                         Bound{"--num-warmups", o.num_warmups, 0, kMaxPrompts}}) {
    if (b.value < b.low || b.value > b.high) {
      return error(ErrorCode::kInvalidArgument, "{} {}: expected {} to {}", b.flag, b.value, b.low, b.high);
    }
  }
  if (o.dataset_name == "random" && (o.num_prompts + o.num_warmups) * o.random_input_len > kMaxPromptWords) {
    return error(
        ErrorCode::kInvalidArgument,
        "--num-prompts and --num-warmups times --random-input-len is above {} words; lower one of them",
        kMaxPromptWords);
  }
  if (!(o.request_rate > 0)) {
    return error(ErrorCode::kInvalidArgument,
                 "--request-rate {}: expected requests per second above 0, or inf", o.request_rate);
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

}  // namespace

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
  if (!options.save_result &&
      (options.save_detailed || !options.result_filename.empty() || !options.result_dir.empty())) {
    return error(ErrorCode::kInvalidArgument,
                 "--save-detailed, --result-dir and --result-filename need --save-result");
  }
  return config;
}

}  // namespace kvasir
