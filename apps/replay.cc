#include "apps/replay.h"

#include <CLI/CLI.hpp>

#include "apps/flags/runtime_flags.h"
#include "base/units.h"
#include "engine/plan_log.h"
#include "sched/registry.h"

namespace kvasir {

void add_replay_flags(CLI::App& app, ReplayOptions& options) {
  app.add_option("log", options.log, "A plan log that serve --log-plans has written")->required();
}

int run_replay(const ReplayOptions& options) {
  const Result<Replay> replay = replay_plan_log(options.log, make_policy);
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
