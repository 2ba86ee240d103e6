// The one binary: `kvasir SUBCOMMAND`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <functional>

#include "apps/cluster.h"
#include "apps/cluster_status.h"
#include "apps/eval.h"
#include "apps/flags.h"
#include "apps/generate.h"
#include "apps/inspect.h"
#include "apps/profile.h"
#include "apps/replay.h"
#include "apps/serve.h"
#include "apps/train_predictor.h"
#include "bench/bench.h"
#include "simulate/simulate.h"

namespace kvasir {
namespace {

constexpr int kExitUsage = 2;

int run(int argc, char** argv) {
  CLI::App app("Kvasir serves large language models, and makes the most of the memory that attention needs.",
               "kvasir");
  app.set_version_flag("--version", std::string("kvasir ") + KVASIR_VERSION);
  app.require_subcommand(1);
  std::function<int()> chosen;

  ServeOptions serve;
  CLI::App* serve_app = app.add_subcommand("serve", "Serve a model over HTTP, as OpenAI's interface does");
  add_serve_flags(*serve_app, serve);
  serve_app->callback([&] { chosen = [&] { return run_serve(serve); }; });

  ClusterFlags gmanager;
  CLI::App* gmanager_app = app.add_subcommand(
      "gmanager", "Manage a cluster's memory, without a model; an instance of serve can, too");
  add_member_flags(*gmanager_app, gmanager, /*required=*/true);
  gmanager_app->callback([&] { chosen = [&] { return run_gmanager(gmanager); }; });

  ClusterStatusOptions cluster_status;
  CLI::App* cluster_app = app.add_subcommand("cluster", "Look at a cluster from the outside");
  cluster_app->require_subcommand(1);
  CLI::App* cluster_status_app = cluster_app->add_subcommand(
      "status", "Who is in a cluster, who leads it, and who has how much of whose memory");
  add_cluster_status_flags(*cluster_status_app, cluster_status);
  cluster_status_app->callback([&] { chosen = [&] { return run_cluster_status(cluster_status); }; });

  GenerateOptions generate;
  CLI::App* generate_app = app.add_subcommand("generate", "Generate from one prompt, to standard output");
  add_generate_flags(*generate_app, generate);
  generate_app->callback([&] { chosen = [&] { return run_generate(generate); }; });

  BenchOptions bench;
  CLI::App* bench_app = app.add_subcommand("bench", "Put load on any OpenAI-compatible server, and measure");
  add_bench_flags(*bench_app, bench);
  bench_app->callback([&] { chosen = [&] { return run_bench(bench); }; });

  EvalOptions eval;
  CLI::App* eval_app =
      app.add_subcommand("eval", "Compare a configuration with f32 arithmetic on text, or measure its speed");
  add_eval_flags(*eval_app, eval);
  eval_app->callback([&] { chosen = [&] { return run_eval(eval); }; });

  ReplayOptions replay;
  CLI::App* replay_app = app.add_subcommand("replay", "Let a policy plan again what a plan log recorded");
  add_replay_flags(*replay_app, replay);
  replay_app->callback([&] { chosen = [&] { return run_replay(replay); }; });

  ProfileOptions profile;
  CLI::App* profile_app = app.add_subcommand(
      "profile", "Measure what steps and transfers cost here, for the scheduling policies of serve");
  add_profile_flags(*profile_app, profile);
  profile_app->callback([&] { chosen = [&] { return run_profile(profile); }; });

  SimulateOptions simulate;
  CLI::App* simulate_app = app.add_subcommand(
      "simulate", "The same scheduler in virtual time, on devices and models of a catalogue");
  add_simulate_flags(*simulate_app, simulate);
  simulate_app->callback([&] { chosen = [&] { return run_simulate(simulate); }; });

  TrainPredictorOptions train;
  CLI::App* train_app = app.add_subcommand(
      "train-predictor", "Train --length-predictor hidden on requests and the lengths of their answers");
  add_train_predictor_flags(*train_app, train);
  train_app->callback([&] { chosen = [&] { return run_train_predictor(train); }; });

  std::string inspected;
  CLI::App* inspect_app = app.add_subcommand("inspect", "Describe a model file");
  add_model_flag(*inspect_app, inspected);
  inspect_app->callback([&] { chosen = [&] { return run_inspect(inspected); }; });

  for (CLI::App* subcommand :
       {serve_app, gmanager_app, cluster_status_app, generate_app, profile_app, train_app}) {
    add_environment(*subcommand);
    subcommand->footer(
        "Each flag may also be given by the environment: --max-num-seqs as KVASIR_MAX_NUM_SEQS.");
  }

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : kExitUsage;
  }
  return chosen();
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
