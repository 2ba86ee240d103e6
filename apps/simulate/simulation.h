// One run in virtual time: the engine of `serve`, over the simulated executor and link; or several of them,
// on instances that lend each other memory, or know nothing of each other.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/bench/load_runner.h"
#include "apps/simulate/observed_policy.h"
#include "apps/simulate/sim_cluster.h"
#include "contract/cost_model.h"
#include "contract/reason.h"
#include "contract/slo.h"
#include "engine/engine.h"
#include "exec/sim/sim_link.h"
#include "exec/sim/step_load.h"
#include "sched/registry.h"

namespace kvasir {

struct SimulatedRequest {
  Nanos arrival = 0;
  uint32_t prompt_tokens = 1;
  uint32_t prefix_tokens = 0;  // of those, the first ones, which all requests of this
  uint64_t prefix = 0;         // prefix have
  uint32_t output_tokens = 1;  // exactly; no policy sees it
  // Beside it, as a client would send; 0: the model's length.
  uint32_t max_tokens = 0;
  uint32_t told_output_tokens = 0;  // what predictors are told that the output will have; 0: nothing
  Slo slo;
  std::vector<Goal> own;  // see RequestRecord
  int32_t priority = 0;
  uint32_t tenant = 0;  // Tenant::id
};

struct SimulationSetup {
  EngineOptions engine;
  std::string policy;
  std::function<Result<std::unique_ptr<Policy>>(std::string_view name)> policies = make_policy;
  // Truth.
  std::shared_ptr<const StepTimes> times;
  double noise = 0;  // SimExecutor::Options::noise
  bool collectives_on_link = false;
  bool transfers_yield = false;  // then
  bool restores_beside = false;  // SimExecutor::Options
  SimLink::Costs link{};
  Nanos request_overhead = 0;  // from sending a request to the engine's queue
  uint64_t seed = 0;           // of the noise, and of the prompts' tokens
  // Belief.
  CostModel costs;
  bool costs_learn = true;
  std::string length_predictor = "online";
  // Instances of that engine. A request goes to the one that was sent the fewest prompt tokens so far; or it
  // waits in one queue of them all until there is memory for it (DeploymentQueue).
  uint32_t instances = 1;
  bool one_queue = false;
  std::optional<ClusterSetup> cluster;  // where they lend each other memory
  // Load.
  int64_t max_concurrency = 0;         // of each instance; 0: no bound
  std::optional<Nanos> drain_timeout;  // after the last arrival
  std::optional<size_t> explain;       // the index of a request whose life is told
  PlanLog* log = nullptr;              // outlives the run; of one instance, as engine.map
};

// Over all instances: what is a mean or a share is that of one of them.
struct SimulationOutcome {
  LoadOutcome load;
  EngineSums sums;
  std::vector<EngineSample> samples;
  LinkStats link;
  bool has_link = false;
  uint64_t steps = 0;
  double busy_s = 0;  // in steps
  uint64_t preemptions = 0;
  uint64_t preemptions_swapped = 0;
  uint64_t tokens_projected = 0;
  uint64_t tokens_computed_again = 0;
  uint64_t rows_deferred = 0;
  double seconds_stalled = 0;
  double mean_queue_s = 0;          // of the requests that began to run, from their arrival until then
  double mean_prefill_s = 0;        // from there to their first token
  std::vector<double> preempted_s;  // ObservedPolicy::preempted_seconds
  // Of belief, as EngineMetrics::cost_error; nothing where it does not learn.
  std::optional<double> cost_error;
  std::array<uint64_t, kCauses> decisions{};  // reasons that plans gave, by Cause
  std::vector<std::string> life;
  uint32_t instances = 1;
  // Where they lend each other memory.
  struct Peers {
    PeerSums sums;
    uint64_t cell_bytes = 0;
    uint64_t messages = 0;
    uint64_t copied_bytes = 0;  // K and V, to peers and back
    uint64_t settlements = 0;   // of cycles of debts
    Status ledgers;             // SimCluster::check_ledgers(), when all is quiet
  };
  std::optional<Peers> peers;
};

// REQUIRES: arrivals ascend; engine.max_model_len fits (Engine). A request that cannot fit fails, and its
// record says why. kNotFound, kInvalidArgument: the policy or the predictor.
Result<SimulationOutcome> simulate(const SimulationSetup& setup,
                                   const std::vector<SimulatedRequest>& requests);

}  // namespace kvasir
