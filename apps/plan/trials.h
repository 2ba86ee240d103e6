// Runs of a simulated system that are long beside what a request takes, judged in their middle.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "apps/plan/rate_search.h"
#include "apps/simulate/simulate.h"
#include "apps/simulate/study.h"
#include "base/status.h"

namespace kvasir {

// Shares of time or of a step's means, in percent.
struct RunUsage {
  // Over the whole run, its beginning and end too.
  double limited = 0;    // requests wait, though the step's tokens would allow more: no memory, or no slot
  double memory = 0;     // mean of the KV memory that is allocated
  double busy = 0;       // the device is in a step
  double link_busy = 0;  // of both directions
  // Of the judged part.
  double slots_full = 0;    // --max-num-seqs requests run
  double tokens_full = 0;   // steps have all the tokens that --max-num-batched-tokens allows
  double mean_running = 0;  // requests
  double goodput = 0;       // requests a second that met their bounds
  double p99_ttft_ms = 0;   // of the judged requests that completed; likewise
  double p99_tbt_ms = 0;
  double mean_e2el_s = 0;
};

// How long runs are, in multiples of the time that a request is in the saturated system.
struct RunLength {
  double before = 1, judged = 5, after = 0.5;
  int64_t least = 200, most = 1000;  // requests, whatever the multiples say
};

// By default about two minutes on one core; effort multiplies the work.
RunLength short_runs(double effort);
RunLength whole_runs(double effort);
size_t seeds_of(double effort);

struct JudgedRun {
  Trial trial;
  RunUsage usage;
};

// What a run says between `from` and `to`, seconds after its start. REQUIRES: one record for each request
JudgedRun judge(const SimulationOutcome& outcome, const std::vector<SimulatedRequest>& requests,
                const BenchConfig& config, const PlanLimits& limits, double from, double to);

// What need not be measured, because it is known of a system that is nearly the same. 0: not known.
struct TrialsKnown {
  double capacity = 0;     // requests per second
  double residence_s = 0;  // Trials::residence_s()
};

class Trials {
 public:
  // `options` may have a --request-rate, which does not count here.
  static Result<std::unique_ptr<Trials>> make(SimulateOptions options, double effort, TrialsKnown known = {});

  const std::vector<std::string>& policies() const { return options_.policies; }
  double capacity() const { return capacity_; }                // requests per second
  double residence_s() const { return residence_s_; }          // of a request in the saturated system
  double longest_bound_s() const { return longest_bound_s_; }  // on a first token or a whole request
  std::string describe() const { return study_->describe(); }
  const Study& study() const { return *study_; }
  // Of a whole run at this rate: requests, seconds judged.
  std::pair<int64_t, double> length_at(double rate) const;

  Result<std::vector<Trial>> run(const std::vector<TrialKey>& keys);
  // Of a trial that has run, the mean over the seeds that have. By default whole ones.
  RunUsage usage(size_t policy, double rate, bool whole = true) const;
  uint64_t simulated() const { return simulated_; }  // requests, in all runs

 private:
  Trials(SimulateOptions options, double effort) : options_(std::move(options)), effort_(effort) {}
  struct Shape {
    int64_t requests = 0;
    double from = 0, to = 0, drain = 0;  // seconds
  };
  Shape shape(double rate, bool whole) const;
  Result<JudgedRun> judged_run(const TrialKey& key) const;

  SimulateOptions options_;
  const double effort_;
  std::unique_ptr<Study> study_;
  double capacity_ = 0;
  double residence_s_ = 0;
  double longest_bound_s_ = 0;
  uint64_t simulated_ = 0;
  std::map<TrialKey, JudgedRun> seen_;
};

}  // namespace kvasir
