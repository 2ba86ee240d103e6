#include "apps/simulate/flags.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>

#include "apps/bench/flags.h"
#include "apps/flags/command_line.h"
#include "apps/flags/runtime_flags.h"
#include "apps/simulate/catalog/catalog.h"
#include "apps/simulate/catalog/network.h"
#include "apps/simulate/simulate.h"
#include "sched/registry.h"

namespace kvasir {

void add_system_flags(CLI::App& app, SimulateOptions& o) {
  app.add_option("model,-m,--model", o.model,
                 fmt::format("{}; or a file: a Hugging Face config.json or folder, or a GGUF",
                             fmt::join(model_names(), ", ")))
      ->type_name(kPathType);
  app.add_option(
         "--device", o.device,
         fmt::format("{}; or a file that kvasir profile --full has written", fmt::join(device_names(), ", ")))
      ->type_name(kFileType);
  app.add_option("--tensor-parallel-size", o.tensor_parallel, "Devices that share each layer")
      ->capture_default_str()
      ->check(between(1, 8));
  app.add_option("--pipeline-parallel-size", o.pipeline_parallel, "Groups of devices that share the layers")
      ->capture_default_str()
      ->check(between(1, 64));
  app.add_option("--gpu-memory-utilization", o.memory_utilisation,
                 "Share of a device's memory for weights, KV cache and activations")
      ->capture_default_str()
      ->check(between(0.01, 1.0));
  app.add_option("--hidden-cache-dtype", o.hidden_cache_dtype,
                 "what policies that keep X keep it as, on a device of the catalogue: f16, as the model "
                 "computes, or int8, with a scale for each 32 values")
      ->check(CLI::IsMember({"f16", "int8"}))
      ->capture_default_str();
  app.add_option("--engine-overhead", o.engine_overhead,
                 "What the engine takes beside the device: kvasir, python (as one in Python does), none")
      ->capture_default_str()
      ->check(suggests({"kvasir", "python", "none"}));
  app.add_option(
         "--collectives", o.collectives,
         "Where the cards of --tensor-parallel-size exchange data: apart (a network of their own, or one "
         "that is never full), share (over the link to the host: while both move, each has half), yield "
         "(the same, but transfers give way, in units of 256 KiB)")
      ->check(CLI::IsMember({"apart", "share", "yield"}))
      ->capture_default_str();
  app.add_option(
         "--recomputed-rows", o.recomputed_rows,
         "How rows that recompute dropped K and V share a step with the others: together (one pass over "
         "the weights), beside (at no cost to each other: a bound on what fused kernels could give, which "
         "no device reaches)")
      ->check(CLI::IsMember({"together", "beside"}))
      ->capture_default_str();
  app.add_option("--noise", o.noise,
                 "Deviation of the logarithm of a step's time (default: what the device's truth says, 0 for "
                 "those of the catalogue)")
      ->check(between(0.0, 2.0));
}

void add_cluster_flags(CLI::App& app, SimulateOptions& o) {
  app.add_option("--instances", o.instances,
                 "Instances of the system. A policy that borrows lets them lend each other memory; "
                 "under any other they know nothing of each other")
      ->capture_default_str();
  app.add_flag(
      "--one-queue,!--no-one-queue", o.one_queue,
      "Requests wait in one queue of all instances until there is memory for them, which is reserved "
      "at once; later ones go before one that waits if they do not delay it (default: off, each "
      "goes when it comes to the instance that was sent the fewest prompt tokens)");
  app.add_option(
         "--network", o.network,
         fmt::format("Between the nodes of instances: {}; or a file", fmt::join(network_names(), ", ")))
      ->capture_default_str();
  app.add_option("--node-network", o.node_network, "Between the instances of a node, likewise")
      ->capture_default_str();
  app.add_option("--gpus-per-node", o.gpus_per_node, "Devices of a node, which its instances share")
      ->capture_default_str()
      ->check(between(1, 1024));
  app.add_option("--lend-share", o.lend_share, "Share of its KV memory that an instance lends at the most")
      ->capture_default_str()
      ->check(between(0.0, 1.0));
  app.add_option(
         "--cluster-prefixes", o.runtime.cluster.prefixes,
         "What to do with a prompt's beginning that a peer has: never, fetch, attend, cost, as for serve")
      ->check(CLI::IsMember({"never", "fetch", "attend", "cost"}))
      ->capture_default_str();
  app.add_option("--cluster-prompts", o.runtime.cluster.prompts,
                 "When a peer computes the first rows of a prompt, whose keys and values go to peers in any "
                 "case: never, cost, always, as for serve")
      ->check(CLI::IsMember({"never", "cost", "always"}))
      ->capture_default_str();
  app.add_option("--recall-timeout", o.recall_s,
                 "Seconds that a debtor has to give back what is called back, before it is taken")
      ->capture_default_str()
      ->check(between(0.001, 1e6));
  app.add_flag("--settle-debts,!--no-settle-debts", o.settle_debts,
               "Cycles of debts between instances are settled (default: on)");
  app.add_flag("--lend-to-creditors,!--no-lend-to-creditors", o.lend_to_creditors,
               "An instance lends to those that it borrows from, so that cycles of two debts come about "
               "(default: off)");
}

void add_policy_flag(CLI::App& app, SimulateOptions& o) {
  app.add_option("--scheduling-policy", o.policies,
                 fmt::format("What runs next, one or several, as vllm,sarathi: {}; or all, without those "
                             "that need what is not there. auto: as many requests as possible meet their "
                             "bounds, those without bounds end early on average, and none starves",
                             fmt::join(policy_names(), ", ")))
      ->delimiter(',')
      ->capture_default_str();
}

void add_request_limit_flag(CLI::App& app, SimulateOptions& o) {
  CLI::Option* limit =
      app.add_option(
             "--max-tokens", o.bench.max_tokens,
             "Output tokens that requests ask for at the most, beside their own lengths (default: none, "
             "as far as the model goes)")
          ->check(between(int64_t{0}, int64_t{1} << 30));
  app.add_flag("--own-max-tokens", o.own_max_tokens,
               "Each request asks for as many output tokens at the most as it then gets")
      ->excludes(limit);
}

namespace {

void add_question_flags(CLI::App& app, SimulateOptions& o) {
  add_policy_flag(app, o);
  app.add_option(
         "--find-effective-throughput", o.find_effective_throughput,
         "Instead of rates: the highest one at which so many percent of the requests meet the bounds of "
         "--goodput")
      ->type_name("PERCENT")
      ->check(between(0.1, 100.0));
  app.add_flag(
      "--bound", o.bound,
      "Print, for each rate, the share of requests of which no schedule lets more meet their bounds");
  app.add_flag("--fair-classes", o.fair_classes,
               "Each --slo-class is an API key of its own, and the keys are served fairly, as serve does");
  app.add_option("--explain", o.explain, "Tell the life of the request with this index, from 0")
      ->type_name("REQUEST");
  app.add_option("--record", o.record,
                 "File that gets the cache map of each step, for kvasir view; with several policies "
                 "NAME.EXTENSION becomes NAME-POLICY.EXTENSION")
      ->type_name(kFileType);
  app.add_option("--experiment", o.experiment,
                 "File that describes the runs of a figure. Beside it count --jobs, --num-prompts, and where "
                 "results go")
      ->type_name(kFileType);
  app.add_option("--experiment-runs", o.experiment_runs, "Only these runs of --experiment (default: all)")
      ->type_name("NAME")
      ->delimiter(',')
      ->needs("--experiment");
  app.add_option(
         "--price", o.price,
         "CSV file of steps (columns prefill_rows, history, decode_rows, decode_context, sampled, projected, "
         "remote_queries, remote_tokens): print what each takes, and simulate nothing")
      ->type_name(kFileType);
  app.add_option("-j,--jobs", o.jobs, "Runs at once (default: one for each core)")->check(between(0, 4096));
}

void add_belief_flags(CLI::App& app, SimulateOptions& o) {
  app.add_option("--belief-scale", o.belief_scale,
                 "Policies believe costs of a device that takes so many times as long: a wrong belief")
      ->capture_default_str()
      ->check(between(1e-3, 1e3));
  app.add_flag("--belief-learns,!--no-belief-learns", o.belief_learns,
               "Belief is refined by the steps that run (default: on)");
  add_length_predictor_flag(app, o.length_predictor);
}

}  // namespace

void add_setting_flags(CLI::App& app, SimulateOptions& o) {
  add_cache_flags(app, o.runtime);
  add_batch_flags(app, o.runtime);
  add_belief_flags(app, o);
  add_dataset_flags(app, o.bench);
}

void add_simulate_flags(CLI::App& app, SimulateOptions& o) {
  app.footer(
      "Every run first prints the capacity of the system for the workload; --request-rate takes multiples of "
      "it too, as 0.5x:1.3x:0.1x. The same flags give the same bytes.");
  add_system_flags(app, o);
  add_cluster_flags(app, o);
  add_question_flags(app, o);
  add_setting_flags(app, o);
  add_load_flags(app, o.bench);
  add_result_flags(app, o.bench);
  add_request_limit_flag(app, o);
  app.add_option("--log-plans", o.runtime.log_plans,
                 "File that gets one line of JSON per step, of a single run (default: none)")
      ->type_name(kFileType);
}

}  // namespace kvasir
