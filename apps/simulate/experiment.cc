#include "apps/simulate/experiment.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <set>
#include <utility>

#include "apps/bench/figures.h"
#include "apps/bench/stats.h"
#include "base/file.h"

namespace kvasir {
namespace {

using Json = nlohmann::json;

constexpr const char* kEffectiveKey = "effective_throughput";

// The member if it is of the kind that is wanted; `fallback` if there is none.
Result<std::string> text_of(const Json& object, const char* key, const std::string& where, bool needed) {
  const auto found = object.find(key);
  if (found != object.end() && found->is_string()) return found->get<std::string>();
  if (found == object.end() && !needed) return std::string();
  return error(ErrorCode::kInvalidArgument, "{}: '{}' must be a text", where, key);
}

Result<PaperFigure> paper_figure(const Json& entry, const std::string& where) {
  if (!entry.is_object()) return error(ErrorCode::kInvalidArgument, "{}: no object", where);
  PaperFigure out;
  KV_ASSIGN_OR_RETURN(out.policy, text_of(entry, "policy", where, true));
  KV_ASSIGN_OR_RETURN(out.key, text_of(entry, "key", where, true));
  KV_ASSIGN_OR_RETURN(out.over, text_of(entry, "over", where, false));
  KV_ASSIGN_OR_RETURN(out.less, text_of(entry, "less", where, false));
  if (!out.over.empty() && !out.less.empty()) {
    return error(ErrorCode::kInvalidArgument, "{}: 'less' beside 'over'", where);
  }
  for (auto [key, value, needed] :
       {std::tuple{"rate", &out.rate, false}, std::tuple{"value", &out.value, true},
        std::tuple{"to", &out.to, false}}) {
    const auto found = entry.find(key);
    if (found != entry.end() && found->is_number()) {
      *value = found->get<double>();
    } else if (needed || found != entry.end()) {
      return error(ErrorCode::kInvalidArgument, "{}: '{}' must be a number", where, key);
    }
  }
  const auto most = entry.find("most");
  if (most != entry.end() && !most->is_boolean()) {
    return error(ErrorCode::kInvalidArgument, "{}: 'most' must be true or false", where);
  }
  out.most = most != entry.end() && most->get<bool>();
  if (out.to != 0 && out.to < out.value) {
    return error(ErrorCode::kInvalidArgument, "{}: 'to' is below 'value'", where);
  }
  const auto runs = entry.find("over_runs");
  if (runs == entry.end()) return out;
  if (!runs->is_array() || out.over.empty()) {
    return error(ErrorCode::kInvalidArgument, "{}: 'over_runs' must be a list of runs, beside 'over'", where);
  }
  for (const Json& run : *runs) {
    if (!run.is_string()) return error(ErrorCode::kInvalidArgument, "{}: a run that is no text", where);
    out.over_runs.push_back(run.get<std::string>());
  }
  return out;
}

Result<ExperimentRun> run_of(const Json& entry, const std::string& where) {
  if (!entry.is_object()) return error(ErrorCode::kInvalidArgument, "{}: no object", where);
  ExperimentRun out;
  KV_ASSIGN_OR_RETURN(out.name, text_of(entry, "name", where, true));
  const auto args = entry.find("args");
  if (args == entry.end() || !args->is_array()) {
    return error(ErrorCode::kInvalidArgument, "{}: 'args' must be a list of flags", where);
  }
  for (const Json& arg : *args) {
    if (!arg.is_string()) return error(ErrorCode::kInvalidArgument, "{}: a flag that is no text", where);
    out.args.push_back(arg.get<std::string>());
  }
  const auto paper = entry.find("paper");
  if (paper == entry.end()) return out;
  if (!paper->is_array()) return error(ErrorCode::kInvalidArgument, "{}: 'paper' must be a list", where);
  for (size_t i = 0; i < paper->size(); ++i) {
    KV_ASSIGN_OR_RETURN(PaperFigure figure,
                        paper_figure((*paper)[i], fmt::format("{}, paper[{}]", where, i)));
    out.paper.push_back(std::move(figure));
  }
  return out;
}

Result<SimulateOptions> options_of(const ExperimentRun& run, const SimulateOptions& outer) {
  SimulateOptions options;
  CLI::App app("", "kvasir simulate");
  add_simulate_flags(app, options);
  std::vector<std::string> reversed(run.args.rbegin(), run.args.rend());
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& e) {
    return error(ErrorCode::kInvalidArgument, "{}: run '{}': {}", outer.experiment, run.name, e.what());
  }
  options.jobs = outer.jobs;
  BenchOptions& o = options.bench;
  o.progress = outer.bench.progress;
  if (outer.bench.num_prompts > 0) o.num_prompts = outer.bench.num_prompts;
  if (options.find_effective_throughput > 0) return options;  // it writes no results
  o.save_result = outer.bench.save_result;
  o.save_detailed = outer.bench.save_detailed;
  o.result_dir = outer.bench.result_dir;
  if (o.save_result) o.result_filename = run.name + ".json";
  if (!outer.bench.html.empty()) {
    const std::filesystem::path html(outer.bench.html);
    o.html = (html.parent_path() / html.stem()).string() + "-" + run.name + html.extension().string();
  }
  return options;
}

// A policy's under the key of a figure of the paper, at a rate or, if that is 0, at all of them; nothing
// where the run has none such.
std::optional<double> figure_of(const std::string& policy, const std::string& key, double rate,
                                const Answer& answer) {
  if (key == kEffectiveKey) {
    for (const EffectiveThroughput& f : answer.effective) {
      if (f.policy == policy) return f.rate;
    }
    return std::nullopt;
  }
  std::vector<double> values;
  for (const PolicyRuns& runs : answer.policies) {
    if (runs.policy != policy) continue;
    for (const RunResult& run : runs.runs) {
      if (rate > 0 && std::abs(run.key.rate / rate - 1) > 1e-6) continue;
      for (const Figure& f : figures_of(run.summary, answer.config)) {
        if (f.key == key && f.value) values.push_back(*f.value);
      }
    }
  }
  if (values.empty()) return std::nullopt;
  return mean_interval(values).mean;
}

// Of runs that have ended, by their names.
using Answers = std::map<std::string, Answer>;

// What a figure of the paper divides by.
std::optional<double> base_of(const PaperFigure& paper, double rate, const Answer& own, const Answers& all) {
  if (paper.over_runs.empty()) return figure_of(paper.over, paper.key, rate, own);
  double sum = 0;
  for (const std::string& run : paper.over_runs) {
    const auto other = all.find(run);
    if (other == all.end()) return std::nullopt;
    const std::optional<double> one = figure_of(paper.over, paper.key, rate, other->second);
    if (!one) return std::nullopt;
    sum += *one;
  }
  return sum;
}

// Ours, beside a figure of the paper, at a rate.
std::optional<double> ours_at(const PaperFigure& paper, double rate, const Answer& own, const Answers& all) {
  const std::optional<double> value = figure_of(paper.policy, paper.key, rate, own);
  if (!paper.less.empty()) {
    const std::optional<double> other = figure_of(paper.less, paper.key, rate, own);
    return value && other ? std::optional(*value - *other) : std::nullopt;
  }
  if (paper.over.empty()) return value;
  const std::optional<double> base = base_of(paper, rate, own, all);
  if (!value || !base || *base == 0) return std::nullopt;
  return *value / *base;
}

std::optional<double> ours(const PaperFigure& paper, const Answer& own, const Answers& all) {
  if (!paper.most) return ours_at(paper, paper.rate, own, all);
  std::set<double> rates;
  for (const PolicyRuns& runs : own.policies) {
    for (const RunResult& run : runs.runs) rates.insert(run.key.rate);
  }
  std::optional<double> most;
  for (const double rate : rates) {
    const std::optional<double> one = ours_at(paper, rate, own, all);
    if (one && (!most || *one > *most)) most = one;
  }
  return most;
}

// The runs that options.experiment_runs names, all if it names none.
Status keep_named(Experiment& experiment, const SimulateOptions& options) {
  const std::vector<std::string>& wanted = options.experiment_runs;
  if (wanted.empty()) return {};
  std::vector<ExperimentRun> kept;
  for (const std::string& name : wanted) {
    const auto found = std::find_if(experiment.runs.begin(), experiment.runs.end(),
                                    [&](const ExperimentRun& run) { return run.name == name; });
    if (found == experiment.runs.end()) {
      std::vector<std::string> names;
      for (const ExperimentRun& run : experiment.runs) names.push_back(run.name);
      return error(ErrorCode::kInvalidArgument, "--experiment-runs: {} has no run '{}'; it has {}",
                   options.experiment, name, fmt::join(names, ", "));
    }
    kept.push_back(*found);
  }
  experiment.runs = std::move(kept);
  return {};
}

// A line of the table of the paper's figures beside ours.
std::string table_row(const ExperimentRun& run, const PaperFigure& paper, const Answers& all) {
  const std::optional<double> value = ours(paper, all.at(run.name), all);
  std::string policy = paper.policy;
  if (!paper.over.empty()) policy += " / " + paper.over;
  if (!paper.less.empty()) policy += " - " + paper.less;
  if (!paper.over_runs.empty()) policy += fmt::format(" ({})", fmt::join(paper.over_runs, " + "));
  std::string stated = fmt::format("{:.4g}", paper.value);
  if (paper.to != 0) stated += fmt::format(" to {:.4g}", paper.to);
  return fmt::format("| {} | {} | {} | {} | {} | {} |\n", run.name, policy,
                     paper.most       ? "most"
                     : paper.rate > 0 ? fmt::format("{:g}", paper.rate)
                                      : "-",
                     paper.key, stated, value ? fmt::format("{:.4g}", *value) : "-");
}

Status save_figures(const Experiment& experiment, const ExperimentRun& run, const Answers& all,
                    const BenchOptions& o) {
  const Answer& got = all.at(run.name);
  Json json = {{"title", experiment.title}, {"source", experiment.source},
               {"note", experiment.note},   {"run", run.name},
               {"args", run.args},          {"capacity", got.capacity}};
  json["effective"] = Json::array();
  for (const EffectiveThroughput& f : got.effective) {
    json["effective"].push_back(
        {{"policy", f.policy}, {"rate", f.rate}, {"more", f.more}, {"attained", f.attained}});
  }
  json["paper"] = Json::array();
  for (const PaperFigure& paper : run.paper) {
    Json entry = {{"policy", paper.policy}, {"key", paper.key}, {"value", paper.value}};
    if (paper.to != 0) entry["to"] = paper.to;
    if (!paper.over.empty()) entry["over"] = paper.over;
    if (!paper.less.empty()) entry["less"] = paper.less;
    if (!paper.over_runs.empty()) entry["over_runs"] = paper.over_runs;
    if (paper.rate > 0) entry["rate"] = paper.rate;
    if (paper.most) entry["most"] = true;
    const std::optional<double> value = ours(paper, got, all);
    entry["ours"] = value ? Json(*value) : Json();
    json["paper"].push_back(std::move(entry));
  }
  const std::filesystem::path folder = o.result_dir.empty() ? "." : o.result_dir;
  return write_text((folder / (run.name + ".figures.json")).string(), json.dump(1) + "\n", "--result-dir");
}

}  // namespace

Result<Experiment> parse_experiment(const std::string& text, const std::string& name) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("runs") || !json["runs"].is_array() || json["runs"].empty()) {
    return error(ErrorCode::kInvalidArgument, "{}: no JSON object with a list of 'runs'", name);
  }
  Experiment out;
  KV_ASSIGN_OR_RETURN(out.title, text_of(json, "title", name, true));
  KV_ASSIGN_OR_RETURN(out.source, text_of(json, "source", name, false));
  KV_ASSIGN_OR_RETURN(out.note, text_of(json, "note", name, false));
  for (size_t i = 0; i < json["runs"].size(); ++i) {
    KV_ASSIGN_OR_RETURN(ExperimentRun run, run_of(json["runs"][i], fmt::format("{}: runs[{}]", name, i)));
    const auto comes_before = [&](const std::string& wanted) {
      return std::any_of(out.runs.begin(), out.runs.end(),
                         [&](const ExperimentRun& before) { return before.name == wanted; });
    };
    if (comes_before(run.name)) {
      return error(ErrorCode::kInvalidArgument, "{}: two runs are called '{}'", name, run.name);
    }
    for (const PaperFigure& paper : run.paper) {
      for (const std::string& other : paper.over_runs) {
        if (comes_before(other)) continue;
        return error(ErrorCode::kInvalidArgument, "{}: run '{}': no run '{}' comes before it", name, run.name,
                     other);
      }
    }
    out.runs.push_back(std::move(run));
  }
  return out;
}

Status run_experiment(const SimulateOptions& options, const Console& console) {
  KV_ASSIGN_OR_RETURN(const std::string text, read_file(options.experiment));
  KV_ASSIGN_OR_RETURN(Experiment experiment, parse_experiment(text, options.experiment));
  KV_RETURN_IF_ERROR(keep_named(experiment, options));
  console.out << experiment.title << '\n';
  if (!experiment.source.empty()) console.out << experiment.source << '\n';
  if (!experiment.note.empty()) console.out << experiment.note << '\n';
  std::string table;
  Answers all;
  for (const ExperimentRun& run : experiment.runs) {
    KV_ASSIGN_OR_RETURN(const SimulateOptions own, options_of(run, options));
    console.out << "\n== " << run.name << '\n';
    KV_ASSIGN_OR_RETURN(all[run.name], answer(own, console));
    for (const PaperFigure& paper : run.paper) table += table_row(run, paper, all);
    if (options.bench.save_result) {
      KV_RETURN_IF_ERROR(save_figures(experiment, run, all, options.bench));
    }
  }
  if (table.empty()) return {};
  console.out << "\n| run | policy | rate | figure | paper | ours |\n|---|---|---|---|---|---|\n" << table;
  return {};
}

}  // namespace kvasir
