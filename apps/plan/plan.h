// `kvasir plan`: how much load a model on a device takes within its bounds, under which policy, what binds,
// what would help, and what it costs.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "apps/plan/rate_search.h"
#include "apps/plan/trials.h"
#include "apps/simulate/policy_choice.h"
#include "apps/simulate/simulate.h"
#include "base/status.h"

namespace CLI {
class App;
}

namespace kvasir {

// As written on the command line; run_plan checks it.
struct PlanOptions {
  SimulateOptions simulate;          // its --request-rate is the load that has to be carried
  double percent = 90;               // of the requests that must meet all of their bounds
  double effort = 1;                 // 1: about two minutes on one core
  bool what_if = true;               // ask what would help
  std::vector<std::string> devices;  // others to plan for
  std::string prices;                // a file; its devices are planned for, too
  std::string html;                  // files, or empty
  std::string svg;                   // a folder, or empty
  std::string json;

  PlanOptions() {
    simulate.policies = {"all"};
    simulate.bench.seeds = 0;  // as many as the effort has
  }
};

struct PlannedPolicy {
  std::string name;
  FoundRate found;
  RunUsage usage;  // at found.low
};

// A change of the system, and what it does to the highest rate.
struct WhatIf {
  enum class Of {
    kMemory,
    kHostTier,
    kSlots,
    kArithmetic,
    kBandwidth,
    kSpeed,
    kLink,
    kFewerTokens,
    kMoreTokens
  };
  Of of = Of::kMemory;
  std::string what;  // "twice the KV memory (38 GiB)"
  std::string policy;
  double rate = 0;     // requests per second
  double gain = 0;     // relative to the unchanged system under the same kind of runs: 0.2 is 20 % more
  std::string failed;  // why it could not be tried
};

struct PlannedDevice {
  std::string name;
  std::string policy;
  double rate = 0;  // of the system as asked, all of its instances together; requests per second
  double half_width = 0;
  uint32_t cards = 1;           // of that system
  std::optional<double> price;  // an hour of one card
  std::string failed;           // why it cannot: then no more is known

  // The rate that it takes by the lower end of the interval; 0 or less: the interval says nothing.
  double sure_rate() const { return rate - half_width; }
  // For this load: systems, each of which takes sure_rate(). 0: that is not known.
  int64_t systems(double load) const;
  int64_t cards_for(double load) const { return systems(load) * cards; }
};

struct PlanAnswer {
  std::string model, device, workload;
  std::vector<std::string> bounds;  // "TTFT <= 1 s"
  double percent = 90;
  double capacity = 0;  // requests per second
  double residence_s = 0;
  double longest_bound_s = 0;  // on a first token or a whole request
  double load = 0;             // that has to be carried; 0: none is given
  std::string failed;          // why the device cannot serve the model at all: only others were tried
  uint32_t cards = 1;
  std::vector<PlannedPolicy> policies;  // the best first
  std::vector<LeftOutPolicy> left_out;
  std::vector<LeftOutPolicy> lacking;  // named, and run without what they need
  std::vector<WhatIf> what_ifs;        // what helps most first
  std::vector<PlannedDevice> devices;
  size_t seeds = 0;
  int64_t run_requests = 0;  // of a run at the best rate; seconds judged of it
  double run_seconds = 0;
  size_t runs = 0;
  uint64_t simulated = 0;                                     // requests, in all runs
  std::vector<std::pair<std::string, std::string>> settings;  // for people

  const PlannedPolicy* best() const;  // null: none meets any rate
};

void add_plan_flags(CLI::App& app, PlanOptions& options);

// An error is one line.
Result<PlanAnswer> plan(const PlanOptions& options, std::ostream& out, std::ostream& err, bool terminal);

// Returns the process's exit code: 0, or 1 when something is wrong (one line on `err` says what). What is
// printed on `out` and written depends on the options alone, not on time or the number of cores.
int run_plan(const PlanOptions& options);
int run_plan(const PlanOptions& options, std::ostream& out, std::ostream& err, bool terminal = false);

}  // namespace kvasir
