#include "apps/bench/flags.h"

#include <CLI/CLI.hpp>

#include "apps/flags/command_line.h"
#include "apps/plan/plan.h"
#include "apps/simulate/flags.h"

namespace kvasir {

void add_plan_flags(CLI::App& app, PlanOptions& o) {
  SimulateOptions& s = o.simulate;
  app.footer(
      "The runs are simulated, long beside what a request takes, and judged in their middle. The same flags "
      "give the same answer.");
  add_system_flags(app, s);
  app.add_option("--attainment", o.percent, "Percent of the requests that must meet all of their bounds")
      ->capture_default_str()
      ->type_name("PERCENT")
      ->check(between(1.0, 100.0));
  app.add_option("--request-rate", s.bench.request_rate,
                 "Requests per second that have to be carried: how many devices that takes is then said "
                 "(default: not asked)");
  add_goal_flags(app, s.bench);
  add_policy_flag(app, s);
  app.add_option(
         "--prices", o.prices,
         "File of what devices cost an hour, as YAML or JSON: {h100: 2.5, l40s: 0.9}. Each of them is "
         "planned for")
      ->type_name(kFileType);
  app.add_option("--devices", o.devices, "Other devices to plan for, as h100,l40s")->delimiter(',');
  app.add_option("--effort", o.effort,
                 "Length and number of runs, relative: 1 takes about two minutes on one core, 0.3 a third, "
                 "with wider intervals, 4 has six seeds")
      ->capture_default_str()
      ->check(between(0.05, 100.0));
  app.add_flag("--what-if,!--no-what-if", o.what_if,
               "Measure what would help: more memory, a host tier, a faster device, other batches (default: "
               "on)");
  app.add_option("--html", o.html, "Write a report in one file that needs nothing else")
      ->type_name(kFileType);
  app.add_option("--svg", o.svg, "Write each chart of the report as an SVG file into this folder")
      ->type_name(kFolderType);
  app.add_option("--json", o.json, "Write the answer as JSON")->type_name(kFileType);
  app.add_flag("--progress,!--no-progress", s.bench.progress,
               "Say what is being done, on standard error (default: on)");
  app.add_option("-j,--jobs", s.jobs, "Runs at once (default: one for each core)")->check(between(0, 4096));
  add_cluster_flags(app, s);
  add_setting_flags(app, s);
  app.get_option("--seeds")->default_str("of --effort")->check(between(int64_t{1}, int64_t{1000}));
  add_arrival_flags(app, s.bench);
  add_request_limit_flag(app, s);
}

}  // namespace kvasir
