#include "apps/bench/result_reader.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/file.h"

namespace kvasir {
namespace {

using Json = nlohmann::json;

constexpr const char* kSettings[] = {"date",
                                     "model_id",
                                     "backend",
                                     "dataset_name",
                                     "dataset_path",
                                     "random_input_len",
                                     "random_output_len",
                                     "random_range_ratio",
                                     "length_scale",
                                     "shared_prefix_len",
                                     "num_shared_prefixes",
                                     "num_prompts",
                                     "seed",
                                     "seeds",
                                     "burstiness",
                                     "max_concurrency",
                                     "drain_timeout",
                                     "trim",
                                     "ignore_eos",
                                     "force_output_lengths",
                                     "tell_output_lengths",
                                     "temperature",
                                     "goodput_bounds_ms",
                                     "attainment_bounds_ms",
                                     "slo_classes",
                                     "relative_slo",
                                     "slo_reference",
                                     "slo_ms",
                                     "system"};

std::vector<double> numbers(const Json& object, const char* key) {
  std::vector<double> out;
  const auto list = object.find(key);
  if (list == object.end() || !list->is_array()) return out;
  for (const Json& value : *list) {
    if (value.is_number()) out.push_back(value.get<double>());
  }
  return out;
}

std::string text_of(const Json& object, const char* key) {
  const auto value = object.find(key);
  return value != object.end() && value->is_string() ? value->get<std::string>() : "";
}

// A setting as people write it: no braces, no quotes.
std::string in_words(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (!value.is_structured()) return value.dump();
  std::string out;
  for (const auto& [key, entry] : value.items()) {
    if (!out.empty()) out += value.is_object() ? ", " : "; ";
    if (value.is_object()) out += key + ": ";
    out += in_words(entry);
  }
  return out;
}

std::string spaced(std::string key) {
  std::replace(key.begin(), key.end(), '_', ' ');
  return key;
}

void add_settings(const Json& json, ReportSeries& series) {
  for (const char* key : kSettings) {
    const auto value = json.find(key);
    if (value == json.end() || value->is_null() || (value->is_structured() && value->empty())) continue;
    if (std::string_view(key) == "system" && value->is_object()) {
      for (const auto& [name, entry] : value->items())
        series.settings.emplace_back(spaced(name), in_words(entry));
      continue;
    }
    series.settings.emplace_back(spaced(key), in_words(*value));
  }
  for (const char* key : {"attainment_bounds_ms", "goodput_bounds_ms"}) {
    const auto bounds = json.find(key);
    if (bounds == json.end() || !bounds->is_object()) continue;
    for (const auto& [name, bound] : bounds->items()) {
      if (bound.is_number()) series.bounds_ms[name] = bound.get<double>();
    }
  }
}

double rate_of(const Json& object) {
  const auto rate = object.find("request_rate");
  return rate != object.end() && rate->is_number() ? rate->get<double>()
                                                   : std::numeric_limits<double>::infinity();
}

ReportRun run_of(const Json& object) {
  ReportRun run;
  run.rate = rate_of(object);
  for (const auto& [key, value] : object.items()) {
    if (value.is_number()) run.figures[key] = value.get<double>();
  }
  if (const auto q = object.find("quantiles_ms"); q != object.end() && q->is_object()) {
    run.curves.ttft_ms = numbers(*q, "ttft");
    run.curves.tbt_ms = numbers(*q, "tbt");
    run.curves.e2el_ms = numbers(*q, "e2el");
  }
  if (const auto t = object.find("timeline"); t != object.end() && t->is_object()) {
    const auto bin = t->find("bin_s");
    if (bin != t->end() && bin->is_number()) run.curves.bin_s = bin->get<double>();
    run.curves.running = numbers(*t, "running");
    run.curves.waiting = numbers(*t, "waiting");
    run.curves.output_per_s = numbers(*t, "output_tokens_per_s");
    if (const auto lines = t->find("engine"); lines != t->end() && lines->is_array()) {
      for (const Json& line : *lines) {
        if (!line.is_object()) continue;
        run.curves.engine.push_back({text_of(line, "chart"), text_of(line, "name"), numbers(line, "values")});
      }
    }
  }
  return run;
}

}  // namespace

Result<ReportSeries> read_result(const std::string& text, const std::string& name) {
  const Json json = Json::parse(text, nullptr, false);
  const bool object = json.is_object();
  const bool several = object && json.contains("runs") && json["runs"].is_array();
  if (!several && (!object || !json.contains("completed") || !json["completed"].is_number())) {
    return error(ErrorCode::kInvalidArgument, "{}: no result of kvasir bench --save-result", name);
  }
  ReportSeries series;
  series.label = name;
  if (const auto label = json.find("label"); label != json.end() && label->is_string()) {
    const auto named = label->get<std::string>();
    if (!named.empty()) series.label = named;
  }
  add_settings(json, series);
  if (!several) {
    series.runs.push_back(run_of(json));
    return series;
  }
  for (const Json& run : json["runs"]) {
    if (!run.is_object()) return error(ErrorCode::kInvalidArgument, "{}: a run that is no object", name);
    series.runs.push_back(run_of(run));
  }
  if (series.runs.empty()) return error(ErrorCode::kInvalidArgument, "{}: no runs in it", name);
  return series;
}

Result<ReportSeries> load_result(const std::string& path) {
  const Result<std::string> text = read_file(path);
  if (!text.ok()) return error(text.status().code(), "--compare {}", text.status().message());
  Result<ReportSeries> series = read_result(*text, std::filesystem::path(path).stem().string());
  if (series.ok()) return series;
  return error(series.status().code(), "--compare {}: no result of kvasir bench --save-result", path);
}

}  // namespace kvasir
