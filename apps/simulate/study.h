// What one command simulates: a system under a load, for some policies, rates and seeds.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/bench/config.h"
#include "apps/bench/dataset.h"
#include "apps/bench/result_file.h"
#include "apps/simulate/simulate.h"
#include "apps/simulate/simulation.h"
#include "apps/simulate/system.h"
#include "base/status.h"

namespace kvasir {

// Of one policy, the runs by rate and then by seed.
struct PolicyRuns {
  std::string policy;
  std::vector<RunResult> runs;
};

// Requests per second.
struct EffectiveThroughput {
  std::string policy;
  double rate = 0;      // the highest that was found to attain what is asked; 0: none does
  bool more = false;    // it still does at the highest rate that is tried
  double attained = 0;  // percent, at that rate
};

struct Capacity {
  std::string policy;
  double rate = 0;      // requests per second
  size_t requests = 0;  // of the crowd that it was measured by
  size_t failed = 0;    // of those, such as what is too long for the model
  std::string why;      // one of them did
};

// Called with the number of runs done and of all runs, by one thread at a time.
using StudyProgress = std::function<void(size_t done, size_t all)>;

// Called when all seeds of a policy at a rate are done, with the percentage of the requests that met all of
// their bounds, if there are bounds; by one thread at a time.
using PointSink = std::function<void(const std::string& policy, double rate, std::optional<double> percent)>;

class Study {
 public:
  // An error is one line.
  static Result<Study> make(const SimulateOptions& options);

  const SimulatedSystem& system() const { return system_; }
  const BenchConfig& config() const { return config_; }
  const Dataset& dataset() const { return dataset_; }
  // For people: the memory, and how many mean requests it holds.
  std::string describe() const;

  // The capacity: requests per second of this workload that the system serves while requests are always
  // waiting. The first seed's requests, repeated, all arrive at the start and run under kCapacityPolicy (or,
  // if no instance alone can hold a request, under the policy by which instances lend each other memory). It
  // counts those that end after the first fifth and before the last, and the time between.
  Result<Capacity> measure_capacity() const;
  static constexpr const char* kCapacityPolicy = "vllm";
  // Once, before the calls below. kInvalidArgument: two rates are one, or too low.
  Status use_capacity(double capacity);
  double capacity() const { return capacity_; }
  const std::vector<double>& rates() const { return config_.rates; }

  // Every policy at every rate with every seed. With relative bounds this goes over them twice, the first
  // time for the means to which they are relative.
  Result<std::vector<PolicyRuns>> sweep(const StudyProgress& progress, const PointSink& on_point = {});

  // The highest rate at which `percent` of the requests attain all bounds, between a fiftieth and eight times
  // the capacity, to within 1 %.
  Result<std::vector<EffectiveThroughput>> effective_throughput(double percent, const StudyProgress& progress,
                                                                const PointSink& on_found = {});

  // Of the requests at one rate, over the seeds: the mean percentage of which no schedule lets more meet all
  // of their bounds (goodput_bound.h).
  double attainable_percent(size_t rate) const;

  // Of one run, in the order of their arrivals.
  std::vector<SimulatedRequest> requests(const RunKey& key) const;
  // Mean requests that can be in the system at once, as the memory and --max-num-seqs have it.
  double at_once() const;

  // One run of these requests, that ends so many seconds after the last arrival at the latest.
  Result<SimulationOutcome> run(const std::string& policy, uint64_t seed,
                                const std::vector<SimulatedRequest>& requests, double drain_s) const;
  // What the engine of that policy is given.
  Result<EngineOptions> engine(const std::string& policy) const {
    return engine_of(options_, system_, policy);
  }
  double kv_tokens() const;  // that one device's memory holds, of its share of the model; of all instances

  // One run. `log` and `map` may be null.
  Result<SimulationOutcome> run(const std::string& policy, const RunKey& key, std::optional<size_t> explain,
                                PlanLog* log, MapSink* map = nullptr) const;

 private:
  Study(const SimulateOptions& options, BenchConfig config, SimulatedSystem system, Dataset dataset)
      : options_(options),
        config_(std::move(config)),
        system_(std::move(system)),
        dataset_(std::move(dataset)) {}
  struct Job {
    std::string policy;
    RunKey key;
  };
  void measure_lengths();
  Result<Capacity> measure_capacity(const std::string& policy) const;
  Status check_rates() const;
  double mean_tokens() const;  // of a request, prompt and output
  Result<SimulationSetup> setup_of(const SimulateOptions& options, const std::string& policy,
                                   uint64_t seed) const;
  std::vector<SimulatedRequest> once() const;  // the first seed's, all there at the start
  std::vector<SimulatedRequest> crowd() const;
  Status run_all(const std::vector<Job>& jobs, const StudyProgress& progress,
                 const std::function<void(size_t, SimulationOutcome)>& take) const;
  Status find_reference(const std::vector<Job>& jobs, const StudyProgress& progress);
  // Mean percent of the requests that attain all bounds, over the seeds.
  Result<double> attained(const std::string& policy, double rate) const;
  Result<EffectiveThroughput> search(const std::string& policy, double percent) const;

  SimulateOptions options_;
  BenchConfig config_;
  SimulatedSystem system_;
  Dataset dataset_;
  double mean_prompt_ = 0, mean_output_ = 0;  // tokens
  double capacity_ = 0;
};

}  // namespace kvasir
