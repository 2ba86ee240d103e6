// The one binary: `kvasir SUBCOMMAND`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <utility>

#include "apps/bench/bench.h"
#include "apps/cluster/gmanager.h"
#include "apps/cluster/status.h"
#include "apps/convert.h"
#include "apps/eval.h"
#include "apps/flags/cluster_flags.h"
#include "apps/flags/command_line.h"
#include "apps/flags/completion.h"
#include "apps/flags/config_file.h"
#include "apps/flags/man_page.h"
#include "apps/flags/runtime_flags.h"
#include "apps/generate.h"
#include "apps/health.h"
#include "apps/inspect.h"
#include "apps/plan/plan.h"
#include "apps/predictor/train_predictor.h"
#include "apps/profile/profile.h"
#include "apps/replay.h"
#include "apps/serve/check_config.h"
#include "apps/serve/serve.h"
#include "apps/simulate/simulate.h"
#include "apps/view.h"

namespace kvasir {
namespace {

// Adds a command to `parent`: its options and what runs it. If the command line names it, `chosen` runs it.
template <typename Options>
CLI::App* add_command(CLI::App& parent, const char* name, const char* what,
                      void (*add_flags)(CLI::App&, Options&), std::function<int(const Options&)> run,
                      std::function<int()>& chosen) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = parent.add_subcommand(name, what);
  add_flags(*command, *options);
  command->callback(
      [options, run = std::move(run), &chosen] { chosen = [options, run] { return run(*options); }; });
  return command;
}

struct NoOptions {};

int print(const std::string& text) {
  fmt::print("{}", text);
  return 0;
}

// The commands that print something about the command line itself.
void add_about_commands(CLI::App& app, std::function<int()>& chosen) {
  add_command<std::string>(
      app, "completion", "Print the completion of this command line for a shell, as a script",
      [](CLI::App& command, std::string& shell) {
        command.add_option("shell", shell, "The shell")
            ->required()
            ->check(CLI::IsMember(completion_shells()));
      },
      [&app](const std::string& shell) { return print(completion_script(app, shell)); }, chosen);
  add_command<NoOptions>(
      app, "man", "Print the manual page, kvasir.1, as roff", [](CLI::App&, NoOptions&) {},
      [&app](const NoOptions&) { return print(man_page(app, KVASIR_VERSION)); }, chosen);
}

int run(int argc, char** argv) {
  CLI::App app("Kvasir serves large language models and manages the KV cache by exchangeable policies.",
               "kvasir");
  app.set_version_flag("--version", std::string("kvasir ") + KVASIR_VERSION);
  app.require_subcommand(1);
  std::function<int()> chosen;
  SettingPlaces places;
  CLI::App* serve = nullptr;
  serve = add_command<ServeOptions>(
      app, "serve", "Serve a model over HTTP with OpenAI's interface", add_serve_flags,
      [&serve, &places](const ServeOptions& options) {
        return options.check_config ? check_config(*serve, places, options) : run_serve(options);
      },
      chosen);
  CLI::App* gmanager = add_command<GManagerOptions>(
      app, "gmanager", "Manage a cluster's memory, without a model; an instance of serve can, too",
      add_gmanager_flags, run_gmanager, chosen);
  CLI::App* cluster = app.add_subcommand("cluster", "Look at a cluster from the outside");
  cluster->require_subcommand(1);
  CLI::App* status = add_command<ClusterStatusOptions>(
      *cluster, "status",
      "Show a cluster's members, its leader, and which member has how much memory of which other",
      add_cluster_status_flags, run_cluster_status, chosen);
  CLI::App* generate =
      add_command<GenerateOptions>(app, "generate", "Generate from one prompt, to standard output",
                                   add_generate_flags, run_generate, chosen);
  CLI::App* health =
      add_command<HealthOptions>(app, "health", "Ask a server on this machine whether it can serve",
                                 add_health_flags, run_health, chosen);
  add_command<BenchOptions>(
      app, "bench", "Put load on any OpenAI-compatible server, and measure", add_bench_flags,
      [](const BenchOptions& options) { return run_bench(options); }, chosen);
  add_command<EvalOptions>(app, "eval",
                           "Compare a configuration with f32 arithmetic on text, or measure its speed",
                           add_eval_flags, run_eval, chosen);
  add_command<ReplayOptions>(app, "replay", "Let a policy plan again what a plan log recorded",
                             add_replay_flags, run_replay, chosen);
  add_command<ViewOptions>(app, "view", "Show a record of the cache map in a browser, or two side by side",
                           add_view_flags, run_view, chosen);
  CLI::App* profile = add_command<ProfileOptions>(
      app, "profile", "Measure what steps and transfers cost here, for the scheduling policies of serve",
      add_profile_flags, run_profile, chosen);
  add_command<SimulateOptions>(
      app, "simulate", "Run the same scheduler in virtual time, on devices and models of a catalogue",
      add_simulate_flags, [](const SimulateOptions& options) { return run_simulate(options); }, chosen);
  add_command<PlanOptions>(
      app, "plan",
      "Say how much load a model on a device takes within its bounds, under which policy, and what would "
      "help",
      add_plan_flags, [](const PlanOptions& options) { return run_plan(options); }, chosen);
  CLI::App* train = add_command<TrainPredictorOptions>(
      app, "train-predictor", "Train --length-predictor hidden on requests and the lengths of their answers",
      add_train_predictor_flags, run_train_predictor, chosen);
  add_command<std::string>(app, "key", "Make an API key, and its entry for the file of serve's --api-keys",
                           add_key_name, run_key, chosen);
  add_command<std::string>(app, "inspect", "Describe a model file", add_model_flag, run_inspect, chosen);
  add_command<ConvertOptions>(app, "convert", "Write a model as a GGUF file of another type",
                              add_convert_flags, run_convert, chosen);

  add_about_commands(app, chosen);

  for (CLI::App* command : {serve, gmanager, status, generate, health, profile, train}) {
    add_config_file(*command, places, command == serve ? nullptr : serve);
    add_environment(*command);
    command->footer(
        "Each flag may also be given by the environment, as KVASIR_MAX_NUM_SEQS for --max-num-seqs, or in a "
        "YAML file that --config names.");
  }
  const std::optional<int> done = parse_command_line(app, argc, argv, std::cout, std::cerr);
  return done ? *done : chosen();
}

}  // namespace
}  // namespace kvasir

int main(int argc, char** argv) {
  try {
    return kvasir::run(argc, argv);
  } catch (const std::exception& e) {
    // Out of memory, most likely: everything else is a Status.
    fmt::print(stderr, "kvasir: {}\n", e.what());
    return 1;
  }
}
