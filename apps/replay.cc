#include "apps/replay.h"

#include <CLI/CLI.hpp>

#include "apps/flags/command_line.h"
#include "apps/flags/runtime_flags.h"
#include "base/units.h"
#include "engine/plan_log.h"
#include "sched/registry.h"

namespace kvasir {
namespace {

void print_reasons(const View& view, const StepPlan& plan) {
  for (const Reason& reason : plan.reasons) {
    fmt::print("{:12.3f} s  step {}: {}\n", to_seconds(view.now), raw(view.next_step), to_string(reason));
  }
}

}  // namespace

void add_replay_flags(CLI::App& app, ReplayOptions& options) {
  app.add_option("log", options.log, "A plan log that serve --log-plans has written")
      ->type_name(kFileType)
      ->required();
  app.add_flag("--reasons", options.reasons, "Print why the policy decided as it did, as the log says");
}

int run_replay(const ReplayOptions& options) {
  PlanVisitor visit;
  if (options.reasons) visit = print_reasons;
  const Result<Replay> replay = replay_plan_log(options.log, make_policy, visit);
  if (!replay.ok()) {
    return report_failure("replay", replay.status().message());
  }
  if (replay->first_difference == 0) {
    fmt::print("{} of policy {}: all the same\n", count_of(replay->steps, "plan"), replay->policy);
    return 0;
  }
  fmt::print("policy {}, line {}: the plan differs\n-- logged\n{}-- now\n{}", replay->policy,
             replay->first_difference, replay->expected, replay->got);
  return 1;
}

}  // namespace kvasir
