// `kvasir simulate`: the engine of `serve` in virtual time, on devices that need not be there.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <limits>
#include <string>
#include <vector>

#include "apps/bench/bench.h"
#include "runtime/runtime.h"

namespace CLI {
class App;
}

namespace kvasir {

// A system that differs from what the flags describe: by how many times it has more, or is faster. No flag
// says them.
struct SystemChanges {
  double memory = 1;      // of the KV cache
  double arithmetic = 1;  // rates of the kernels of a device of the catalogue where arithmetic bounds them
  double bandwidth = 1;   // and where the device's memory does
  double speed = 1;       // of every step, the engine's own time included
  double link = 1;        // bytes per second between the tiers
};

// As written on the command line; run_simulate checks it.
struct SimulateOptions {
  // What is simulated.
  std::string model;   // a name of the catalogue, a config.json or a GGUF file
  std::string device;  // likewise, or a truth that `kvasir profile --full` has written
  uint32_t tensor_parallel = 1;
  uint32_t pipeline_parallel = 1;
  double memory_utilisation = 0.9;  // share of a device's memory for weights, KV cache and activations
  std::string engine_overhead = "kvasir";
  std::string collectives = "apart";         // from the link between device and host; or "share", "yield"
  std::string recomputed_rows = "together";  // in one pass with the others, or "beside"
  // Of X, on the catalogue's devices: "f16" or "int8" (a policy's hidden cache).
  std::string hidden_cache_dtype = "f16";
  double noise = -1;  // deviation of the logarithm of a step's time; below 0: the device's own

  // Instances of that system.
  uint32_t instances = 1;
  bool one_queue = false;               // of all instances
  std::string network = "infiniband";   // between nodes: a name of the catalogue or a file
  std::string node_network = "nvlink";  // inside a node
  uint32_t gpus_per_node = 8;
  double lend_share = 1;     // of an instance's KV memory, that it lends at the most
  double recall_s = 120;     // what is called back is given back by then, or lost
  bool settle_debts = true;  // cycles of them
  bool lend_to_creditors = false;

  SystemChanges changes;

  std::vector<std::string> policies = {"auto"};  // or "all"
  RuntimeOptions runtime;                        // tiers, blocks, batches and queues; see the flags

  // What policies believe.
  double belief_scale = 1;  // costs as of a device that takes so many times as long
  bool belief_learns = true;
  std::string length_predictor = "online";

  BenchOptions bench;           // load, bounds and results
  bool own_max_tokens = false;  // the output of each request is its limit, in place of bench.max_tokens

  // What is asked.
  double find_effective_throughput = 0;      // percent of the requests; 0: not asked
  bool fair_classes = false;                 // each --slo-class is a tenant
  bool bound = false;                        // what no schedule can beat, at each rate
  int64_t explain = -1;                      // the index of a request; below 0: none
  std::string record;                        // a file of the cache map; of several policies one each
  std::string experiment;                    // a file
  std::vector<std::string> experiment_runs;  // of it; empty: all
  std::string price;                         // a file of steps to price
  int jobs = 0;                              // runs at once; 0: one for each core

  SimulateOptions() {
    runtime.block_size = 16;
    runtime.max_decode_stall_ms = 0;
    bench.force_output_lengths = true;  // always: there are no other ends
    bench.dataset_name = "sharegpt";
  }
};

void add_simulate_flags(CLI::App& app, SimulateOptions& options);

// Returns the process's exit code: 0, or 1 when something is wrong (one line on `err` says what). What is
// printed and written depends on the options alone, not on time or the number of cores.
int run_simulate(const SimulateOptions& options);
int run_simulate(const SimulateOptions& options, std::ostream& out, std::ostream& err, bool terminal = false);

}  // namespace kvasir
