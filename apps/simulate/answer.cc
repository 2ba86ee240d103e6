#include "apps/simulate/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <ostream>
#include <utility>

#include "apps/bench/html_report.h"
#include "apps/bench/report.h"
#include "apps/bench/result_reader.h"
#include "apps/simulate/policy_choice.h"
#include "apps/simulate/table.h"
#include "engine/map_file.h"

namespace kvasir {
namespace {

// What is done so far: a bar that is drawn over, on a terminal alone, and a line for each point.
class ProgressBar {
 public:
  ProgressBar(const Console& console, bool shown, std::string name)
      : err_(console.err), shown_(shown), terminal_(console.terminal), name_(std::move(name)) {}
  ~ProgressBar() {
    if (shown_ && terminal_) err_ << "\r\x1b[K" << std::flush;
  }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  StudyProgress progress() {
    return [this](size_t done, size_t all) {
      if (!shown_ || !terminal_) return;
      constexpr size_t kWidth = 40;
      const size_t filled = all == 0 ? 0 : kWidth * done / all;
      err_ << fmt::format("\r\x1b[K{} [{:<40}] {}/{} runs", name_, std::string(filled, '#'), done, all)
           << std::flush;
    };
  }
  // Above the bar.
  PointSink points() {
    return [this](const std::string& policy, double rate, std::optional<double> percent) {
      if (!shown_) return;
      const std::string at =
          std::isfinite(rate) ? fmt::format("{:.4g} requests/s", rate) : "the arrivals given";
      const std::string what = percent ? fmt::format("{:.1f} % meet all bounds", *percent) : "done";
      err_ << (terminal_ ? "\r\x1b[K" : "") << fmt::format("{} at {}: {}\n", policy, at, what) << std::flush;
    };
  }

 private:
  std::ostream& err_;
  const bool shown_, terminal_;
  const std::string name_;
};

// The result files of several policies lie beside each other.
std::string with_policy(const std::string& filename, const std::string& policy) {
  const std::filesystem::path path(filename);
  std::filesystem::path out = path.parent_path() / path.stem();
  out += "-" + policy;
  out += path.extension();
  return out.string();
}

BenchConfig named(const Study& study, const SimulateOptions& options, const std::string& policy) {
  BenchConfig config = study.config();
  config.backend = "simulation";
  BenchOptions& o = config.options;
  o.label = o.label.empty() ? policy : o.label + ", " + policy;
  config.system = {{"policy", policy},
                   {"device", study.system().device},
                   {"memory", study.system().memory},
                   {"capacity", fmt::format("{:.4g} requests/s", study.capacity())},
                   {"engine_overhead", options.engine_overhead},
                   {"hidden_cache_dtype", options.hidden_cache_dtype},
                   {"length_predictor", options.length_predictor},
                   {"belief_scale", fmt::format("{}", options.belief_scale)},
                   {"belief_learns", options.belief_learns ? "true" : "false"}};
  if (options.collectives != "apart") config.system.push_back({"collectives", options.collectives});
  if (options.recomputed_rows != "together")
    config.system.push_back({"recomputed_rows", options.recomputed_rows});
  if (o.result_filename.empty()) o.result_filename = fmt::format("simulation-{}.json", policy);
  return config;
}

Status save(const Study& study, const SimulateOptions& options, const std::vector<PolicyRuns>& all,
            std::ostream& out) {
  const BenchOptions& o = options.bench;
  if (!o.save_result && o.html.empty() && o.svg.empty()) return {};
  std::vector<ReportSeries> series;
  for (const PolicyRuns& runs : all) {
    BenchConfig config = named(study, options, runs.policy);
    if (all.size() > 1 && !o.result_filename.empty()) {
      config.options.result_filename = with_policy(o.result_filename, runs.policy);
    }
    const std::string json = result_json(runs.runs, config, study.system().model, std::nullopt);
    if (o.save_result) {
      const std::string path = result_path(config, study.system().model, 0);
      KV_RETURN_IF_ERROR(write_text(path, json, "--result-dir"));
      out << fmt::format("Result written to {}\n", path);
    }
    KV_ASSIGN_OR_RETURN(ReportSeries one, read_result(json, runs.policy));
    series.push_back(std::move(one));
  }
  return write_report(o, series, "kvasir simulate: " + study.system().model + " on " + study.system().device,
                      out);
}

// What cannot be asked together, before anything runs.
Status check_questions(const SimulateOptions& o) {
  if (!o.bench.compare.empty()) {
    return error(ErrorCode::kInvalidArgument,
                 "--compare: kvasir bench compares result files, simulated ones too");
  }
  for (const std::string& policy : o.policies) {
    if (std::count(o.policies.begin(), o.policies.end(), policy) > 1) {
      return error(ErrorCode::kInvalidArgument, "--scheduling-policy: '{}' is given twice", policy);
    }
  }
  if (o.bound && o.bench.shared_prefix_len > 0) {
    return error(ErrorCode::kInvalidArgument,
                 "--bound: counts all of each request's prompt; leave --shared-prefix-len out");
  }
  const auto of_percentile = [](const std::string& goal) {
    return goal.find("p99_tbt") != std::string::npos;
  };
  if (o.bound && (std::any_of(o.bench.goodput.begin(), o.bench.goodput.end(), of_percentile) ||
                  std::any_of(o.bench.slo_classes.begin(), o.bench.slo_classes.end(), of_percentile))) {
    return error(ErrorCode::kInvalidArgument, "--bound: knows max_tbt, not p99_tbt");
  }
  if (o.find_effective_throughput == 0) return {};
  if (o.bench.goodput.empty() && o.bench.slo.empty() && o.bench.slo_classes.empty() &&
      o.bench.relative_slo.empty()) {
    return error(ErrorCode::kInvalidArgument,
                 "--find-effective-throughput: --goodput must say which bounds requests have to meet");
  }
  if (!o.bench.relative_slo.empty() && o.bench.slo_reference.empty()) {
    return error(
        ErrorCode::kInvalidArgument,
        "--relative-slo: with --find-effective-throughput there is no first pass; give --slo-reference");
  }
  if (o.bench.save_result || !o.bench.html.empty() || !o.bench.svg.empty() || o.explain >= 0 ||
      !o.runtime.log_plans.empty() || !o.record.empty()) {
    return error(ErrorCode::kInvalidArgument,
                 "--find-effective-throughput: prints rates; --save-result, --html, --explain, --record and "
                 "--log-plans are of runs at a --request-rate");
  }
  return {};
}

// The runs of --explain and --log-plans are one run.
Status check_single_run(const Study& study, const SimulateOptions& options) {
  if (!options.record.empty() && (study.config().rate_specs.size() != 1 || options.bench.seeds != 1)) {
    return error(ErrorCode::kInvalidArgument, "--record: needs one --request-rate and one seed");
  }
  if (options.explain < 0 && options.runtime.log_plans.empty()) return {};
  const char* flag = options.explain >= 0 ? "--explain" : "--log-plans";
  if (options.policies.size() != 1 || study.config().rate_specs.size() != 1 || options.bench.seeds != 1) {
    return error(ErrorCode::kInvalidArgument, "{}: needs one policy, one --request-rate and one seed", flag);
  }
  if (options.explain >= study.dataset().num_prompts()) {
    return error(ErrorCode::kInvalidArgument, "--explain {}: the run has the requests 0 to {}",
                 options.explain, study.dataset().num_prompts() - 1);
  }
  return {};
}

// "run.jsonl" becomes "run-sarathi.jsonl" where several policies are recorded.
std::string record_path(const SimulateOptions& options, const std::string& policy) {
  if (options.policies.size() == 1) return options.record;
  std::string name = policy;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == ':' || c == '=' || c == '/'; }, '-');
  std::filesystem::path path = options.record;
  path.replace_filename(path.stem().string() + "-" + name + path.extension().string());
  return path.string();
}

// Each policy once more, over the same arrivals.
Status record(const Study& study, const SimulateOptions& options, std::ostream& out) {
  if (options.record.empty()) return {};
  std::string files;
  for (const std::string& policy : options.policies) {
    const std::string path = record_path(options, policy);
    const std::string model = std::filesystem::path(options.model).filename().string();
    KV_ASSIGN_OR_RETURN(std::unique_ptr<MapFile> map, MapFile::create(path, {"simulate", model, policy}));
    KV_RETURN_IF_ERROR(
        study.run(policy, {study.rates().front(), options.bench.seed, 0}, std::nullopt, nullptr, map.get())
            .status());
    KV_RETURN_IF_ERROR(map->close());
    files += ' ' + path;
  }
  out << fmt::format("recorded; to see it: kvasir view{}\n", files);
  return {};
}

Status single_run(const Study& study, const SimulateOptions& options, std::ostream& out) {
  if (options.explain < 0 && options.runtime.log_plans.empty()) return {};
  std::unique_ptr<PlanLog> log;
  if (!options.runtime.log_plans.empty()) {
    KV_ASSIGN_OR_RETURN(log, PlanLog::create(options.runtime.log_plans, options.policies.front()));
  }
  const std::optional<size_t> request =
      options.explain >= 0 ? std::optional(static_cast<size_t>(options.explain)) : std::nullopt;
  KV_ASSIGN_OR_RETURN(const SimulationOutcome outcome,
                      study.run(options.policies.front(), {study.rates().front(), options.bench.seed, 0},
                                request, log.get()));
  if (!request) return {};
  out << fmt::format("\nRequest {} under {}:\n", *request, options.policies.front());
  for (const std::string& line : outcome.life) out << line << '\n';
  out << end_of_life(outcome.load.records[*request], outcome.load.start);
  const std::string decisions = decisions_table(outcome);
  if (!decisions.empty()) out << '\n' << decisions;
  return {};
}

std::string bounds(const Study& study) {
  std::string out;
  for (size_t i = 0; i < study.rates().size(); ++i) {
    out += fmt::format("no schedule lets more than {:.1f} % meet all bounds at {:.4g} requests/s\n",
                       study.attainable_percent(i), study.rates()[i]);
  }
  return out;
}

}  // namespace

Result<Answer> answer(const SimulateOptions& given, const Console& console) {
  SimulateOptions options = given;
  const PolicyChoice choice = choose_policies(given);
  options.policies = choice.policies;
  KV_RETURN_IF_ERROR(check_questions(options));
  KV_ASSIGN_OR_RETURN(Study study, Study::make(options));
  KV_RETURN_IF_ERROR(check_single_run(study, options));
  console.out << study.describe();
  for (const LeftOutPolicy& p : choice.left_out) {
    console.out << fmt::format("left out: {} {}\n", p.policy, p.why);
  }
  for (const std::string& policy : options.policies) {
    const std::string lacks = what_policy_lacks(options, policy);
    if (!lacks.empty()) {
      console.out << runs_without({policy, lacks}) << '\n';
    }
  }
  Answer out;
  KV_ASSIGN_OR_RETURN(const Capacity capacity, study.measure_capacity());
  out.capacity = capacity.rate;
  console.out << fmt::format(
      "capacity for this workload: {:.4g} requests/s ({}, {} requests that all arrive at once)\n",
      capacity.rate, capacity.policy, capacity.requests);
  if (capacity.failed > 0) {
    console.out << fmt::format("of those {} failed, and count in nothing, such as: {}\n", capacity.failed,
                               capacity.why);
  }
  console.out << std::flush;
  KV_RETURN_IF_ERROR(study.use_capacity(out.capacity));
  out.config = study.config();
  if (options.find_effective_throughput > 0) {
    ProgressBar bar(console, options.bench.progress, "searching");
    KV_ASSIGN_OR_RETURN(out.effective, study.effective_throughput(options.find_effective_throughput,
                                                                  bar.progress(), bar.points()));
    console.out << effective_table(out.effective, options.find_effective_throughput, out.capacity);
    console.out << short_runs(out.effective, study.config().options.num_prompts, study.at_once(),
                              out.capacity);
    return out;
  }
  {
    ProgressBar bar(console, options.bench.progress, "simulating");
    const bool many = options.policies.size() * study.rates().size() > 1;
    KV_ASSIGN_OR_RETURN(out.policies, study.sweep(bar.progress(), many ? bar.points() : PointSink()));
  }
  if (out.policies.size() == 1 && study.rates().size() == 1) {
    console.out << printed_block(points_of(out.policies.front().runs).front(), study.config());
  }
  console.out << study_table(out.policies, study.config(), out.capacity)
              << best_lines(out.policies, study.config()) << std::flush;
  if (options.bound) console.out << bounds(study);
  KV_RETURN_IF_ERROR(single_run(study, options, console.out));
  KV_RETURN_IF_ERROR(record(study, options, console.out));
  KV_RETURN_IF_ERROR(save(study, options, out.policies, console.out));
  return out;
}

}  // namespace kvasir
