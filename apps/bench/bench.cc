#include "bench/bench.h"

#include <sys/resource.h>

#include <ctime>
#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>

#include "bench/arrivals.h"
#include "bench/config.h"
#include "bench/load_runner.h"
#include "bench/prompts.h"
#include "bench/report.h"
#include "bench/result_file.h"

namespace kvasir {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitInterrupted = 130;  // as a shell reports SIGINT
constexpr int64_t kDefaultRandomPrompts = 1000;
constexpr int64_t kFirstWarmup = int64_t{1} << 32;  // random prompts from here on are never measured
constexpr Nanos kProbeTimeout = 30 * kNanosPerSecond;
constexpr size_t kMaxModelsBytes = 4 << 20;

// Hundreds of connections need more descriptors than the usual soft limit of 1,024. What cannot be had shows
// as failed requests.
void raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Makes the measured prompts and sets num_prompts to their number.
Result<std::vector<Prompt>> measured_prompts(BenchOptions* o) {
  if (o->dataset_name == "random") {
    if (o->num_prompts == 0) o->num_prompts = kDefaultRandomPrompts;
    return random_prompts({o->random_input_len, o->random_output_len, o->random_range_ratio, o->seed}, 0,
                          o->num_prompts);
  }
  KV_ASSIGN_OR_RETURN(std::vector<Prompt> prompts,
                      load_custom_prompts(o->dataset_path, o->custom_output_len));
  const size_t lines = prompts.size();
  if (o->num_prompts == 0) o->num_prompts = static_cast<int64_t>(lines);
  const size_t wanted = static_cast<size_t>(o->num_prompts);
  prompts.reserve(wanted);
  while (prompts.size() < wanted) prompts.push_back(prompts[prompts.size() - lines]);
  prompts.resize(wanted);
  return prompts;
}

std::vector<Prompt> warmup_prompts(const BenchOptions& o, const std::vector<Prompt>& measured) {
  if (o.dataset_name == "random") {
    return random_prompts({o.random_input_len, o.random_output_len, o.random_range_ratio, o.seed},
                          kFirstWarmup, o.num_warmups);
  }
  std::vector<Prompt> prompts;
  for (size_t i = 0; i < static_cast<size_t>(o.num_warmups); ++i)
    prompts.push_back(measured[i % measured.size()]);
  return prompts;
}

// Asks the server which models it has: shows that it can be reached before any load is sent, and answers with
// the name to use.
Result<std::string> find_model(const BenchConfig& config) {
  const BenchOptions& o = config.options;
  const Result<HttpReply> reply =
      http_get(config.target, config.models_path, o.api_key, kProbeTimeout, kMaxModelsBytes);
  if (!reply.ok()) {
    return error(reply.status().code(), "{}; is the server up, and is --base-url {} right?",
                 reply.status().message(), o.base_url);
  }
  if (!o.model.empty()) return o.model;
  if (reply->status != 200) {
    return error(ErrorCode::kUnavailable, "GET {}: HTTP {}: {}; name the model by --model",
                 config.models_path, reply->status, error_message_of(reply->body));
  }
  const nlohmann::json json = nlohmann::json::parse(reply->body, nullptr, false);
  if (json.is_object() && json.contains("data") && json["data"].is_array()) {
    for (const auto& entry : json["data"]) {
      if (entry.is_object() && entry.contains("id") && entry["id"].is_string())
        return entry["id"].get<std::string>();
    }
  }
  return error(ErrorCode::kCorrupt, "GET {}: the answer names no model; name it by --model",
               config.models_path);
}

LoadPlan make_plan(const BenchConfig& config, const std::string& model) {
  const BenchOptions& o = config.options;
  LoadPlan plan;
  plan.target = config.target;
  plan.path = o.endpoint;
  plan.api_key = o.api_key;
  plan.request = {model, config.chat, o.ignore_eos, o.temperature};
  plan.max_concurrency = o.max_concurrency;
  plan.timeout = from_seconds(o.timeout_s);
  return plan;
}

// Sets *interrupted when the user gave up meanwhile.
Status warm_up(const LoadPlan& plan, std::ostream& err, bool* interrupted) {
  if (plan.prompts.empty()) return Status();
  KV_ASSIGN_OR_RETURN(const LoadOutcome outcome, run_load(plan));
  *interrupted = outcome.interrupted;
  size_t failed = 0;
  const std::string* example = nullptr;
  for (const RequestRecord& record : outcome.records) {
    if (record.state != RequestRecord::State::kFailed) continue;
    ++failed;
    if (example == nullptr) example = &record.error;
  }
  if (failed == 0) return Status();
  if (failed == outcome.records.size()) {
    return error(ErrorCode::kUnavailable, "every warm-up request failed, the first one with: {}", *example);
  }
  err << fmt::format("{} of {} warm-up requests failed, the first one with: {}\n", failed,
                     outcome.records.size(), *example);
  return Status();
}

Result<int> measure(BenchConfig config, std::ostream& out, std::ostream& err) {
  KV_ASSIGN_OR_RETURN(std::vector<Prompt> prompts, measured_prompts(&config.options));
  const BenchOptions& o = config.options;
  raise_file_limit();
  KV_ASSIGN_OR_RETURN(const std::string model, find_model(config));

  LoadPlan plan = make_plan(config, model);
  plan.prompts = warmup_prompts(o, prompts);
  plan.arrivals.assign(plan.prompts.size(), 0);
  bool interrupted = false;
  KV_RETURN_IF_ERROR(warm_up(plan, err, &interrupted));
  if (interrupted) return kExitInterrupted;

  plan.prompts = std::move(prompts);
  plan.arrivals = draw_arrivals(o.num_prompts, o.request_rate, o.burstiness, o.seed);
  plan.keep_text = o.save_detailed;
  KV_ASSIGN_OR_RETURN(const LoadOutcome outcome, run_load(plan));

  const Summary summary = summarise(outcome, config);
  out << printed_block(summary, config) << std::flush;
  if (o.save_result) {
    const std::time_t date = std::time(nullptr);
    const std::string path = result_path(config, model, date);
    KV_RETURN_IF_ERROR(write_result(path, result_json(summary, outcome, config, model, date)));
    out << fmt::format("Result written to {}\n", path) << std::flush;
  }
  if (summary.interrupted) return kExitInterrupted;
  return summary.completed > 0 ? 0 : kExitFailed;
}

}  // namespace

int run_bench(const BenchOptions& options) {
  return run_bench(options, std::cout, std::cerr);
}

int run_bench(const BenchOptions& options, std::ostream& out, std::ostream& err) {
  Result<BenchConfig> config = check_options(options);
  const Result<int> code =
      config.ok() ? measure(std::move(config).value(), out, err) : Result<int>(config.status());
  if (code.ok()) return *code;
  err << fmt::format("kvasir bench: {}\n", code.status().message());
  return kExitFailed;
}

}  // namespace kvasir
