// The plan log: the view and the plan of every step, as JSON lines; and its replay.
//
// A record holds the view, the policy's state before it planned, and the plan with its reasons, which it also
// says in words. Times are in nanoseconds. A
// record contains the classes of predicted lengths only if they have changed. Behind a record stand lines of
// the cache map as the turn left it (map_lines.h), for `kvasir view`; replay leaves them out.
#pragma once

#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "contract/policy.h"
#include "contract/step_plan.h"
#include "contract/view.h"
#include "engine/cache_map.h"
#include "engine/map_lines.h"

namespace kvasir {

// Used by the engine's thread.
class PlanLog final : public MapSink {
 public:
  // Truncates the file. kIo: it cannot be written. The first line names the policy and the format.
  static Result<std::unique_ptr<PlanLog>> create(const std::string& path, const std::string& policy_name);
  ~PlanLog() override;
  PlanLog(const PlanLog&) = delete;
  PlanLog& operator=(const PlanLog&) = delete;

  // A failed write (a full disk) ends the log with a warning; the engine goes on.
  void append(const View& view, const std::string& policy_state, const StepPlan& plan);

  void begin(const MapShape& shape) override;
  bool watched() const override { return file_ != nullptr; }
  bool wants_frame() const override { return appended_; }
  void show(MapFrame frame) override;

 private:
  PlanLog(std::FILE* file, std::string path, std::string policy)
      : file_(file), path_(std::move(path)), policy_(std::move(policy)) {}
  void write_line(const std::string& line);

  std::FILE* file_;
  std::vector<LengthClass> logged_classes_;
  const std::string path_;
  const std::string policy_;
  std::optional<MapWriter> map_;
  bool appended_ = false;  // a plan, since the last frame of the map
};

struct Replay {
  std::string policy;             // its name, from the log's first line
  uint64_t steps = 0;             // plans compared
  uint64_t first_difference = 0;  // the line number of the first plan that differs; 0: none does
  std::string expected;           // that plan as logged, as text
  std::string got;                // and as the policy plans it now
};

// Called with each view and plan as they are logged.
using PlanVisitor = std::function<void(const View& view, const StepPlan& plan)>;

// Makes the policy that the log names with `make`, and lets it plan every logged view from its logged state;
// the reasons of a plan are compared, too.
// kCorrupt names the line that cannot be read.
Result<Replay> replay_plan_log(const std::string& path,
                               Result<std::unique_ptr<Policy>> (*make)(std::string_view policy_name),
                               const PlanVisitor& visit = {});

}  // namespace kvasir
