#include "apps/replay.h"

#include <CLI/CLI.hpp>

#include "engine/plan_log.h"
#include "sched/registry.h"

namespace kvasir {

void add_replay_flags(CLI::App& app, ReplayOptions& options) {
  app.add_option("log", options.log, "a plan log, as serve --log-plans writes it")->required();
}

int run_replay(const ReplayOptions& options) {
  const Result<Replay> replay = replay_plan_log(options.log, make_policy);
  if (!replay.ok()) {
    fmt::print(stderr, "kvasir replay: {}\n", replay.status().message());
    return 1;
  }
  if (replay->first_difference == 0) {
    fmt::print("{} plans of policy {}: all the same\n", replay->steps, replay->policy);
    return 0;
  }
  fmt::print("policy {}, line {}: the plan differs\n-- logged\n{}-- now\n{}", replay->policy,
             replay->first_difference, replay->expected, replay->got);
  return 1;
}

}  // namespace kvasir
