#include "bench/result_file.h"

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace kvasir {
namespace {

using Json = nlohmann::ordered_json;

std::string date_text(std::time_t date) {
  std::tm parts{};
  localtime_r(&date, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y%m%d-%H%M%S", &parts);
  return text.data();
}

std::string rate_text(double rate) {
  return std::isinf(rate) ? "inf" : fmt::format("{}", rate);
}

void add_configuration(Json* json, const BenchConfig& config, const std::string& model, std::time_t date) {
  const BenchOptions& o = config.options;
  Json& j = *json;
  j["date"] = date_text(date);
  j["backend"] = config.chat ? "openai-chat" : "openai";
  j["model_id"] = model;
  j["dataset_name"] = o.dataset_name;
  j["num_prompts"] = o.num_prompts;
  j["seed"] = o.seed;
  if (std::isinf(o.request_rate)) {
    j["request_rate"] = "inf";
  } else {
    j["request_rate"] = o.request_rate;
  }
  j["burstiness"] = o.burstiness;
  if (o.max_concurrency > 0) {
    j["max_concurrency"] = o.max_concurrency;
  } else {
    j["max_concurrency"] = nullptr;
  }
}

void add_summary(Json* json, const Summary& s, const BenchConfig& config) {
  Json& j = *json;
  j["duration"] = s.duration;
  j["completed"] = s.completed;
  j["failed"] = s.failed;
  j["total_input_tokens"] = s.total_input_tokens;
  j["total_output_tokens"] = s.total_output_tokens;
  j["request_throughput"] = s.per_second(s.completed);
  if (config.goals.empty()) {
    j["request_goodput"] = nullptr;
  } else {
    j["request_goodput"] = s.per_second(s.good);
  }
  j["output_throughput"] = s.per_second(s.total_output_tokens);
  j["total_token_throughput"] = s.per_second(s.total_input_tokens + s.total_output_tokens);
  j["max_concurrent_requests"] = s.max_concurrent;
  j["requests_without_usage"] = s.without_usage;
  j["interrupted"] = s.interrupted;
  for (size_t m = 0; m < s.metrics.size(); ++m) {
    const Distribution& d = s.metrics[m];
    const std::string key = fmt::format("{}_ms", metric_key(config.metrics[m]));
    j["mean_" + key] = d.mean;
    j["median_" + key] = d.median;
    j["std_" + key] = d.stddev;
    for (size_t i = 0; i < d.percentiles.size(); ++i) {
      j[fmt::format("p{}_{}", config.percentile_names[i], key)] = d.percentiles[i];
    }
  }
}

void add_details(Json* json, const LoadOutcome& outcome) {
  Json ttfts = Json::array(), itls = Json::array(), latencies = Json::array(), starts = Json::array();
  Json inputs = Json::array(), outputs = Json::array(), texts = Json::array(), errors = Json::array();
  for (const RequestRecord& r : outcome.records) {
    const bool completed = r.state == RequestRecord::State::kCompleted;
    const bool sent = r.state != RequestRecord::State::kWaiting;
    ttfts.push_back(completed ? to_seconds(r.first - r.start) : 0.0);
    latencies.push_back(completed ? to_seconds(r.last - r.start) : 0.0);
    starts.push_back(sent ? to_seconds(r.start - outcome.start) : -1.0);
    Json gaps = Json::array();
    for (Nanos gap : r.gaps) gaps.push_back(to_seconds(gap));
    itls.push_back(std::move(gaps));
    inputs.push_back(completed ? r.prompt_tokens : 0);
    outputs.push_back(completed ? r.output_tokens : 0);
    texts.push_back(r.text);
    const bool ended = completed || r.state == RequestRecord::State::kFailed;
    errors.push_back(ended ? r.error : "interrupted");
  }
  Json& j = *json;
  j["input_lens"] = std::move(inputs);
  j["output_lens"] = std::move(outputs);
  j["ttfts"] = std::move(ttfts);
  j["itls"] = std::move(itls);
  j["latencies"] = std::move(latencies);
  j["start_times"] = std::move(starts);
  j["generated_texts"] = std::move(texts);
  j["errors"] = std::move(errors);
}

}  // namespace

std::string result_json(const Summary& summary, const LoadOutcome& outcome, const BenchConfig& config,
                        const std::string& model, std::time_t date) {
  Json json;
  add_configuration(&json, config, model, date);
  add_summary(&json, summary, config);
  if (config.options.save_detailed) add_details(&json, outcome);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string result_path(const BenchConfig& config, const std::string& model, std::time_t date) {
  const BenchOptions& o = config.options;
  std::string name = o.result_filename;
  if (name.empty()) {
    std::string base = model.substr(model.find_last_of('/') + 1);
    for (char& c : base) {
      if (static_cast<unsigned char>(c) <= 0x20 || c == 0x7f) c = '_';
    }
    const std::string concurrency =
        o.max_concurrency > 0 ? fmt::format("-concurrency{}", o.max_concurrency) : std::string();
    name = fmt::format("{}-{}qps{}-{}-{}.json", config.chat ? "openai-chat" : "openai",
                       rate_text(o.request_rate), concurrency, base, date_text(date));
  }
  return o.result_dir.empty() ? name : (std::filesystem::path(o.result_dir) / name).string();
}

Status write_result(const std::string& path, const std::string& json) {
  const std::filesystem::path directory = std::filesystem::path(path).parent_path();
  std::error_code problem;
  if (!directory.empty()) std::filesystem::create_directories(directory, problem);
  if (problem) {
    return error(ErrorCode::kIo, "--result-dir {}: cannot be made ({})", directory.string(),
                 problem.message());
  }
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << json;
  file.close();
  if (!file) return error(ErrorCode::kIo, "{}: the result cannot be written; see --result-dir", path);
  return Status();
}

}  // namespace kvasir
