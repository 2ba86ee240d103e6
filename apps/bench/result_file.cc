#include "apps/bench/result_file.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/bench/figures.h"
#include "apps/report/chart.h"

namespace kvasir {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string date_text(std::time_t date) {
  std::tm parts{};
  localtime_r(&date, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y%m%d-%H%M%S", &parts);
  return text.data();
}

std::string rate_text(const std::vector<double>& rates) {
  std::string text;
  for (double rate : rates) {
    if (!text.empty()) text += '-';
    text += std::isinf(rate) ? "inf" : fmt::format("{}", rate);
  }
  return text;
}

OrderedJson rate_json(double rate) {
  return std::isinf(rate) ? OrderedJson("inf") : OrderedJson(rate);
}

void add_bound(OrderedJson* json, const Goal& goal) {
  (*json)[std::string(goal_key(goal.key))] =
      goal.millis == kOwnBound ? OrderedJson("own") : OrderedJson(goal.millis);
}

// Only where requests have bounds of their own.
void add_own_bounds(OrderedJson* json, const BenchConfig& config) {
  OrderedJson& j = *json;
  if (!config.classes.empty()) j["slo_classes"] = OrderedJson::array();
  for (const SloClass& one : config.classes) {
    OrderedJson bounds = OrderedJson::object();
    for (const Goal& goal : one.goals) add_bound(&bounds, goal);
    j["slo_classes"].push_back(
        {{"name", one.name},
         {"share", one.share.has_value() ? OrderedJson(*one.share) : OrderedJson(nullptr)},
         {"bounds_ms", std::move(bounds)}});
    if (one.priority != 0) j["slo_classes"].back()["priority"] = one.priority;
  }
  if (config.relative.has_value()) j["relative_slo"] = {config.relative->low, config.relative->high};
  if (config.reference.has_value()) {
    j["slo_reference"] = {{"ttft_ms", config.reference->ttft_ms},
                          {"tbt_ms", config.reference->tbt_ms},
                          {"chunk_tokens", config.reference->chunk_tokens}};
  }
}

void add_configuration(OrderedJson* json, const BenchConfig& config, const std::string& model,
                       std::optional<std::time_t> date) {
  const BenchOptions& o = config.options;
  OrderedJson& j = *json;
  if (date) j["date"] = date_text(*date);
  j["label"] = o.label;
  j["backend"] = config.chat ? "openai-chat" : config.backend;
  j["model_id"] = model;
  j["dataset_name"] = o.dataset_name;
  if (!o.dataset_path.empty()) j["dataset_path"] = o.dataset_path;
  if (o.dataset_name == "random") {
    j["random_input_len"] = o.random_input_len;
    j["random_output_len"] = o.random_output_len;
    j["random_range_ratio"] = o.random_range_ratio;
  } else {
    j["length_scale"] = o.length_scale;
  }
  if (o.shared_prefix_len > 0) {
    j["shared_prefix_len"] = o.shared_prefix_len;
    j["num_shared_prefixes"] = o.num_shared_prefixes;
  }
  j["num_prompts"] = o.num_prompts;
  j["seed"] = o.seed;
  j["seeds"] = o.seeds;
  j["request_rate"] = rate_json(config.rates.front());
  j["burstiness"] = arrival_shape(o);
  j["max_concurrency"] = o.max_concurrency > 0 ? OrderedJson(o.max_concurrency) : OrderedJson(nullptr);
  j["drain_timeout"] = std::isinf(o.drain_timeout_s) ? OrderedJson(nullptr) : OrderedJson(o.drain_timeout_s);
  if (o.trim > 0) j["trim"] = o.trim;
  j["ignore_eos"] = o.ignore_eos;
  j["force_output_lengths"] = o.force_output_lengths;
  j["tell_output_lengths"] = o.tell_output_lengths;
  j["temperature"] = o.temperature;
  j["goodput_bounds_ms"] = OrderedJson::object();
  for (const Goal& goal : config.goals) add_bound(&j["goodput_bounds_ms"], goal);
  j["attainment_bounds_ms"] = OrderedJson::object();
  for (const Goal& bound : config.bounds) add_bound(&j["attainment_bounds_ms"], bound);
  add_own_bounds(json, config);
  j["slo_ms"] = OrderedJson::object();
  for (const auto& [key, millis] : config.slo_ms) j["slo_ms"][key] = millis;
  for (const auto& [key, value] : config.system) j["system"][key] = value;
}

OrderedJson value_json(const Figure& figure) {
  if (!figure.value.has_value()) return nullptr;
  const double value = *figure.value;
  if (figure.whole && value == std::floor(value)) return static_cast<int64_t>(value);
  return value;
}

OrderedJson rounded(const std::vector<double>& values) {
  OrderedJson list = OrderedJson::array();
  for (double v : values) list.push_back(std::round(v * 1000) / 1000);
  return list;
}

void add_curves(OrderedJson* json, const Curves& c) {
  OrderedJson& j = *json;
  j["quantiles_ms"] = {
      {"ttft", rounded(c.ttft_ms)}, {"tbt", rounded(c.tbt_ms)}, {"e2el", rounded(c.e2el_ms)}};
  j["timeline"] = {{"bin_s", c.bin_s},
                   {"running", rounded(c.running)},
                   {"waiting", rounded(c.waiting)},
                   {"output_tokens_per_s", rounded(c.output_per_s)}};
  for (const EngineLine& line : c.engine) {
    j["timeline"]["engine"].push_back(
        {{"chart", line.chart}, {"name", line.name}, {"values", rounded(line.values)}});
  }
}

void add_details(OrderedJson* json, const LoadOutcome& outcome) {
  OrderedJson ttfts = OrderedJson::array(), itls = OrderedJson::array(), latencies = OrderedJson::array(),
              starts = OrderedJson::array();
  OrderedJson inputs = OrderedJson::array(), outputs = OrderedJson::array(), texts = OrderedJson::array(),
              errors = OrderedJson::array();
  for (const RequestRecord& r : outcome.records) {
    const bool completed = r.state == RequestRecord::State::kCompleted;
    const bool sent = r.state != RequestRecord::State::kWaiting && r.state != RequestRecord::State::kHeld;
    ttfts.push_back(completed ? to_seconds(r.first - r.start) : 0.0);
    latencies.push_back(completed ? to_seconds(r.last - r.start) : 0.0);
    starts.push_back(sent ? to_seconds(r.start - outcome.start) : -1.0);
    OrderedJson gaps = OrderedJson::array();
    for (Nanos gap : r.gaps) gaps.push_back(to_seconds(gap));
    itls.push_back(std::move(gaps));
    inputs.push_back(completed ? r.prompt_tokens : 0);
    outputs.push_back(completed ? r.output_tokens : 0);
    texts.push_back(r.text);
    const bool ended = completed || r.state == RequestRecord::State::kFailed;
    errors.push_back(ended                 ? r.error
                     : outcome.drained_out ? "not ended at the drain timeout"
                                           : "interrupted");
  }
  OrderedJson& j = *json;
  j["input_lens"] = std::move(inputs);
  j["output_lens"] = std::move(outputs);
  j["ttfts"] = std::move(ttfts);
  j["itls"] = std::move(itls);
  j["latencies"] = std::move(latencies);
  j["start_times"] = std::move(starts);
  j["generated_texts"] = std::move(texts);
  j["errors"] = std::move(errors);
}

void add_run(OrderedJson* json, const RunResult& run, const BenchConfig& config) {
  for (const Figure& figure : figures_of(run.summary, config)) (*json)[figure.key] = value_json(figure);
  for (const auto& [reason, count] : run.summary.decisions) (*json)["decisions"][reason] = count;
  (*json)["interrupted"] = run.summary.interrupted;
  (*json)["drained_out"] = run.summary.drained_out;
  add_curves(json, run.curves);
  if (config.options.save_detailed) add_details(json, run.outcome);
}

// The means of a rate, and their intervals.
void add_point(OrderedJson* json, const PointResult& point, const BenchConfig& config) {
  std::vector<Figures> runs;
  for (const Summary& s : point.runs) runs.push_back(figures_of(s, config));
  OrderedJson intervals = OrderedJson::object();
  for (const MeanFigure& mean : mean_figures(runs)) {
    (*json)[mean.figure.key] = value_json(mean.figure);
    if (!mean.figure.value.has_value() || point.runs.size() < 2) continue;
    intervals[mean.figure.key] = {{"mean", mean.interval.mean}, {"half_width", mean.interval.half_width}};
  }
  (*json)["intervals"] = std::move(intervals);
}

}  // namespace

std::vector<PointResult> points_of(const std::vector<RunResult>& runs) {
  std::vector<PointResult> points;
  int64_t point = -1;
  for (const RunResult& run : runs) {
    if (run.key.point != point) points.push_back({run.key.rate, {}});
    point = run.key.point;
    points.back().runs.push_back(run.summary);
  }
  return points;
}

std::string result_json(const std::vector<RunResult>& runs, const BenchConfig& config,
                        const std::string& model, std::optional<std::time_t> date) {
  OrderedJson json;
  add_configuration(&json, config, model, date);
  if (runs.size() == 1) {
    add_run(&json, runs.front(), config);
  } else {
    const std::vector<PointResult> points = points_of(runs);
    if (points.size() == 1) add_point(&json, points.front(), config);
    json["points"] = OrderedJson::array();
    for (const PointResult& point : points) {
      OrderedJson entry = {{"request_rate", rate_json(point.rate)}};
      add_point(&entry, point, config);
      json["points"].push_back(std::move(entry));
    }
    json["runs"] = OrderedJson::array();
    for (const RunResult& run : runs) {
      OrderedJson entry = {{"request_rate", rate_json(run.key.rate)}, {"seed", run.key.seed}};
      add_run(&entry, run, config);
      json["runs"].push_back(std::move(entry));
    }
  }
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
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
                       rate_text(config.rates), concurrency, base, date_text(date));
  }
  return o.result_dir.empty() ? name : (std::filesystem::path(o.result_dir) / name).string();
}

Status write_text(const std::string& path, const std::string& text, const char* flag) {
  const std::filesystem::path directory = std::filesystem::path(path).parent_path();
  std::error_code problem;
  if (!directory.empty()) std::filesystem::create_directories(directory, problem);
  if (problem) {
    return error(ErrorCode::kIo, "{} {}: cannot be made ({})", flag, directory.string(), problem.message());
  }
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) return error(ErrorCode::kIo, "{}: the result cannot be written; see {}", path, flag);
  return Status();
}

Status write_charts(const std::string& folder,
                    const std::vector<std::pair<std::string, DrawnChart>>& charts) {
  for (const auto& [name, chart] : charts) {
    KV_RETURN_IF_ERROR(write_text(fmt::format("{}/{}.svg", folder, name), svg_file(chart.wide), "--svg"));
  }
  return Status();
}

}  // namespace kvasir
