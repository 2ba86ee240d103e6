#include "apps/bench/bench.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>

#include "apps/bench/config.h"
#include "apps/bench/curves.h"
#include "apps/bench/dataset.h"
#include "apps/bench/html_report.h"
#include "apps/bench/load_runner.h"
#include "apps/bench/progress.h"
#include "apps/bench/report.h"
#include "apps/bench/result_file.h"
#include "apps/bench/result_reader.h"
#include "apps/bench/server_metrics.h"

namespace kvasir {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitInterrupted = 130;  // as a shell reports SIGINT
constexpr double kMaxDrainSeconds = 1e8;
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
  if (reply->status == 401) {
    return error(ErrorCode::kUnavailable, "GET {}: HTTP 401: {}; {}", config.models_path,
                 error_message_of(reply->body),
                 o.api_key.empty() ? "the server wants a key: give --api-key KEY, or set KVASIR_API_KEY"
                                   : "the server refuses the key of --api-key or KVASIR_API_KEY");
  }
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
  plan.request = {
      model,        config.chat,   o.ignore_eos, o.temperature, o.force_output_lengths, o.tell_output_lengths,
      o.max_tokens, config.slo_ms, o.extra_body};
  plan.max_concurrency = o.max_concurrency;
  plan.timeout = from_seconds(o.timeout_s);
  if (!std::isinf(o.drain_timeout_s)) {
    plan.drain_timeout = from_seconds(std::min(o.drain_timeout_s, kMaxDrainSeconds));
  }
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

struct Console {
  std::ostream& out;
  std::ostream& err;
  bool terminal;
};

std::string run_name(const BenchConfig& config, const RunKey& key) {
  std::string name;
  if (config.rates.size() > 1) name = fmt::format("rate {:.4g}", key.rate);
  if (config.options.seeds > 1) name += fmt::format("{}seed {}", name.empty() ? "" : ", ", key.seed);
  return name;
}

// One run. Records are kept only where the result shows them.
Result<RunResult> measure_run(const BenchConfig& config, const Dataset& dataset, const RunKey& key,
                              LoadPlan plan, const Console& console) {
  plan.prompts = dataset.prompts(key);
  plan.arrivals = dataset.arrivals(key);
  plan.keep_text = config.options.save_detailed;
  const std::optional<double> before = read_preemptions(config.target, config.options.api_key);
  RunResult run;
  run.key = key;
  {
    ProgressLine line(console.err, console.terminal, run_name(config, key));
    if (config.options.progress) {
      plan.progress_period = line.period();
      plan.progress = [&line](const LoadProgress& progress) { line.show(progress); };
    }
    KV_ASSIGN_OR_RETURN(run.outcome, run_load(plan));
  }
  const std::optional<double> after = read_preemptions(config.target, config.options.api_key);
  run.summary = summarise(run.outcome, config);
  // A counter that went back belongs to a server that was started again.
  if (before.has_value() && after.has_value() && *after >= *before)
    run.summary.preemptions = *after - *before;
  run.curves = curves_of(run.outcome);
  if (!config.options.save_detailed) run.outcome.records.clear();
  return run;
}

Status save(const BenchConfig& config, const std::string& model, const std::vector<RunResult>& runs,
            std::ostream& out) {
  const BenchOptions& o = config.options;
  if (!o.save_result && o.html.empty() && o.svg.empty()) return Status();
  const std::time_t date = std::time(nullptr);
  const std::string json = result_json(runs, config, model, date);
  if (o.save_result) {
    const std::string path = result_path(config, model, date);
    KV_RETURN_IF_ERROR(write_text(path, json, "--result-dir"));
    out << fmt::format("Result written to {}\n", path) << std::flush;
  }
  if (o.html.empty() && o.svg.empty()) return Status();
  KV_ASSIGN_OR_RETURN(const ReportSeries series, read_result(json, model));
  return write_report(o, {series}, "kvasir bench", out);
}

// Every rate with every seed, in turn; stops after a run that was interrupted.
Result<std::vector<RunResult>> measure_all(const BenchConfig& config, const Dataset& dataset,
                                           const LoadPlan& plan, const Console& console) {
  const BenchOptions& o = config.options;
  std::vector<RunResult> runs;
  for (size_t point = 0; point < config.rates.size(); ++point) {
    for (int64_t i = 0; i < o.seeds; ++i) {
      const RunKey key{config.rates[point], o.seed + static_cast<uint64_t>(i), static_cast<int64_t>(point)};
      KV_ASSIGN_OR_RETURN(RunResult run, measure_run(config, dataset, key, plan, console));
      runs.push_back(std::move(run));
      if (runs.back().summary.interrupted) break;
    }
    console.out << printed_block(points_of(runs).back(), config) << std::flush;
    if (runs.back().summary.interrupted) break;
  }
  return runs;
}

Result<int> measure(BenchConfig config, const Console& console) {
  KV_ASSIGN_OR_RETURN(const Dataset dataset, Dataset::open(config.options));
  config.options.num_prompts = dataset.num_prompts();
  raise_file_limit();
  KV_ASSIGN_OR_RETURN(const std::string model, find_model(config));

  LoadPlan plan = make_plan(config, model);
  plan.prompts = dataset.warmups();
  plan.arrivals.assign(plan.prompts.size(), 0);
  bool interrupted = false;
  KV_RETURN_IF_ERROR(warm_up(plan, console.err, &interrupted));
  if (interrupted) return kExitInterrupted;

  KV_ASSIGN_OR_RETURN(const std::vector<RunResult> runs, measure_all(config, dataset, plan, console));
  const std::vector<PointResult> points = points_of(runs);
  if (points.size() > 1) console.out << rate_table(points, config) << std::flush;
  KV_RETURN_IF_ERROR(save(config, model, runs, console.out));
  if (runs.back().summary.interrupted) return kExitInterrupted;
  const bool any =
      std::any_of(runs.begin(), runs.end(), [](const RunResult& run) { return run.summary.completed > 0; });
  return any ? 0 : kExitFailed;
}

// A report on results that are there already.
Result<int> compare(const BenchOptions& o, std::ostream& out) {
  std::vector<ReportSeries> all;
  for (const std::string& path : o.compare) {
    KV_ASSIGN_OR_RETURN(ReportSeries series, load_result(path));
    all.push_back(std::move(series));
  }
  KV_RETURN_IF_ERROR(write_report(o, all, "kvasir bench", out));
  return 0;
}

}  // namespace

int run_bench(const BenchOptions& options) {
  return run_bench(options, std::cout, std::cerr, ::isatty(STDERR_FILENO) == 1);
}

int run_bench(const BenchOptions& options, std::ostream& out, std::ostream& err, bool terminal) {
  Result<BenchConfig> config = check_options(options);
  const auto run = [&]() -> Result<int> {
    if (!config.ok()) return config.status();
    if (!options.compare.empty()) return compare(options, out);
    return measure(std::move(config).value(), Console{out, err, terminal});
  };
  const Result<int> code = run();
  if (code.ok()) return *code;
  err << fmt::format("kvasir bench: {}\n", code.status().message());
  return kExitFailed;
}

}  // namespace kvasir
