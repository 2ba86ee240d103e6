#include "engine/plan_log.h"

#include <cerrno>
#include <cstring>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/log.h"
#include "engine/plan_json.h"

namespace kvasir {
namespace {

constexpr int kFormat = 8;

std::string with_reasons(const StepPlan& plan) {
  std::string out = to_string(plan);
  for (const Reason& reason : plan.reasons) out += to_string(reason) + '\n';
  return out;
}

}  // namespace

Result<std::unique_ptr<PlanLog>> PlanLog::create(const std::string& path, const std::string& policy_name) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (!file) return error(ErrorCode::kIo, "plan log {}: {}", path, std::strerror(errno));
  std::unique_ptr<PlanLog> log(new PlanLog(file, path, policy_name));
  log->write_line(nlohmann::json{{"kvasir_plan_log", kFormat}, {"policy", policy_name}}.dump());
  if (!log->file_) return error(ErrorCode::kIo, "plan log {}: cannot be written; is the disk full?", path);
  return log;
}

PlanLog::~PlanLog() {
  if (file_) std::fclose(file_);
}

void PlanLog::append(const View& view, const std::string& policy_state, const StepPlan& plan) {
  if (!file_) return;
  nlohmann::json seen = view_to_json(view);
  // The classes change only when an output ends, and are longer than all the rest.
  if (view.length_classes == logged_classes_) {
    seen.erase("length_classes");
  } else {
    logged_classes_ = view.length_classes;
  }
  write_line(
      nlohmann::json{{"view", std::move(seen)}, {"policy_state", policy_state}, {"plan", plan_to_json(plan)}}
          .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  appended_ = true;
}

void PlanLog::begin(const MapShape& shape) {
  if (!file_) return;
  map_.emplace(shape.geometry.groups());
  write_line(map_head({"plan log", "", policy_}, shape));
}

void PlanLog::show(MapFrame frame) {
  appended_ = false;
  if (file_) write_line(map_->next(frame));
}

void PlanLog::write_line(const std::string& line) {
  // Flushed line by line: a log is needed most after a crash.
  if (std::fwrite(line.data(), 1, line.size(), file_) == line.size() && std::fputc('\n', file_) != EOF &&
      std::fflush(file_) == 0) {
    return;
  }
  log_warning("plan log {}: {}; the log ends here", path_, std::strerror(errno));
  std::fclose(file_);
  file_ = nullptr;
}

Result<Replay> replay_plan_log(const std::string& path,
                               Result<std::unique_ptr<Policy>> (*make)(std::string_view policy_name),
                               const PlanVisitor& visit) {
  std::ifstream in(path);
  if (!in) return error(ErrorCode::kIo, "plan log {}: {}", path, std::strerror(errno));
  Replay replay;
  std::string line;
  uint64_t number = 1;
  try {
    std::getline(in, line);
    const auto head = nlohmann::json::parse(line);
    if (head.at("kvasir_plan_log").get<int>() != kFormat) {
      return error(ErrorCode::kUnsupported, "plan log {}: of another format than {}", path, kFormat);
    }
    replay.policy = head.at("policy").get<std::string>();
    KV_ASSIGN_OR_RETURN(std::unique_ptr<Policy> policy, make(replay.policy));
    nlohmann::json classes = nlohmann::json::array();
    while (std::getline(in, line)) {
      ++number;
      if (is_map_line(line)) continue;
      auto record = nlohmann::json::parse(line);
      nlohmann::json& seen = record.at("view");
      if (seen.contains("length_classes")) classes = seen["length_classes"];
      seen["length_classes"] = classes;
      const View view = view_from_json(record.at("view"));
      const StepPlan expected = plan_from_json(record.at("plan"));
      if (Status s = policy->restore_state(record.at("policy_state").get<std::string>()); !s.ok()) {
        return error(ErrorCode::kCorrupt, "plan log {}, line {}: {}", path, number, s.message());
      }
      if (visit) visit(view, expected);
      const StepPlan got = policy->plan(view);
      ++replay.steps;
      if (got == expected) continue;
      replay.first_difference = number;
      replay.expected = with_reasons(expected);
      replay.got = with_reasons(got);
      break;
    }
  } catch (const std::exception& e) {
    return error(ErrorCode::kCorrupt, "plan log {}, line {}: {}", path, number, e.what());
  }
  return replay;
}

}  // namespace kvasir
