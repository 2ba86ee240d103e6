#include "apps/simulate/study.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <utility>

#include "apps/bench/attainment.h"
#include "apps/bench/goals.h"
#include "apps/bench/report.h"
#include "apps/bench/stats.h"
#include "apps/simulate/cluster_system.h"
#include "apps/simulate/goodput_bound.h"
#include "apps/simulate/outcome.h"
#include "base/parallel.h"
#include "sched/beliefs/length_predictors.h"

namespace kvasir {
namespace {

constexpr double kLeastOfCapacity = 0.02, kMostOfCapacity = 8;
constexpr double kRateTolerance = 0.01;
// Of the requests whose end tells the capacity: as many as these times those that run at once.
constexpr double kTurns = 10;
constexpr size_t kMostInCrowd = 20'000;
constexpr double kEndsOfCrowd = 0.2;  // that tell nothing, of all ends
// Of the arrivals of a run, and of all its outputs' tokens, of which each keeps a time in memory.
constexpr double kMostSeconds = 1e9;
constexpr double kMostTokens = 2e8;
// Longer than any model or memory takes.
constexpr int64_t kMostLength = int64_t{1} << 30;

double percent_attained(const Summary& s) {
  return 100 * s.share(s.good);
}

// Whichever thread met it.
Status first_failure(const std::vector<Status>& statuses) {
  for (const Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace

Result<Study> Study::make(const SimulateOptions& options) {
  KV_ASSIGN_OR_RETURN(BenchConfig config, check_load_options(options.bench));
  KV_RETURN_IF_ERROR(check_cluster(options));
  KV_ASSIGN_OR_RETURN(SimulatedSystem system, make_system(options));
  for (const std::string& policy : options.policies) {
    KV_RETURN_IF_ERROR(engine_of(options, system, policy).status());
  }
  KV_ASSIGN_OR_RETURN(const auto predictor, make_length_predictor(options.length_predictor));
  if (predictor->reads_hidden()) {
    return error(ErrorCode::kInvalidArgument,
                 "--length-predictor {}: a simulated model has no hidden rows; take online, or one of a "
                 "stated quality, such as laplace:58",
                 options.length_predictor);
  }
  KV_ASSIGN_OR_RETURN(Dataset dataset, Dataset::open(options.bench, Dataset::Use::kLengths));
  config.options.num_prompts = dataset.num_prompts();
  Study study(options, std::move(config), std::move(system), std::move(dataset));
  study.measure_lengths();
  const double tokens = study.mean_output_ * static_cast<double>(study.config_.options.num_prompts);
  if (tokens > kMostTokens) {
    return error(ErrorCode::kInvalidArgument,
                 "--num-prompts {}: their outputs have {:g} tokens, and a run takes at most {:g}",
                 study.config_.options.num_prompts, tokens, kMostTokens);
  }
  KV_RETURN_IF_ERROR(study.check_rates());
  return study;
}

// Of the first seed, at whatever rate.
void Study::measure_lengths() {
  const std::vector<RequestSpec> specs =
      dataset_.requests({std::numeric_limits<double>::infinity(), config_.options.seed, 0});
  for (const RequestSpec& r : specs) {
    mean_prompt_ += static_cast<double>(r.lengths.prompt) / static_cast<double>(specs.size());
    mean_output_ += static_cast<double>(r.lengths.output) / static_cast<double>(specs.size());
  }
}

std::vector<SimulatedRequest> Study::requests(const RunKey& key) const {
  const BenchOptions& o = config_.options;
  Slo common = slo_of(config_.goals);
  if (!config_.slo_ms.empty()) {
    common = {};
    for (const SloKey& known : kSloKeys) {
      for (const auto& [name, millis] : config_.slo_ms) {
        if (name == known.name) common.*known.millis = static_cast<uint32_t>(millis);
      }
    }
  }
  std::vector<SimulatedRequest> out;
  for (RequestSpec& spec : dataset_.requests(key)) {
    SimulatedRequest r;
    r.arrival = spec.arrival;
    r.prompt_tokens = static_cast<uint32_t>(std::min(spec.lengths.prompt, kMostLength));
    r.output_tokens = static_cast<uint32_t>(std::min(spec.lengths.output, kMostLength));
    r.prefix_tokens = static_cast<uint32_t>(std::min(spec.prefix_len, kMostLength));
    r.prefix = spec.prefix;
    r.max_tokens = options_.own_max_tokens ? r.output_tokens : static_cast<uint32_t>(o.max_tokens);
    r.told_output_tokens = r.output_tokens;
    r.slo = spec.own.empty() ? common : slo_of(spec.own);
    r.own = std::move(spec.own);
    r.priority = spec.priority;
    if (options_.fair_classes) r.tenant = 1 + spec.slo_class;
    out.push_back(std::move(r));
  }
  return out;
}

Result<SimulationSetup> Study::setup_of(const SimulateOptions& options, const std::string& policy,
                                        uint64_t seed) const {
  SimulationSetup setup;
  KV_ASSIGN_OR_RETURN(setup.engine, engine_of(options, system_, policy));
  setup.policy = policy;
  setup.instances = options.instances;
  setup.one_queue = options.one_queue;
  KV_ASSIGN_OR_RETURN(setup.cluster, cluster_of(options, system_, setup.engine, policy));
  setup.times = system_.times;
  setup.noise = system_.noise;
  setup.collectives_on_link = options.collectives != "apart";
  setup.transfers_yield = options.collectives == "yield";
  setup.restores_beside = options.recomputed_rows == "beside";
  setup.link = system_.link;
  setup.request_overhead = system_.request_overhead;
  setup.seed = seed;
  setup.costs = system_.costs;
  setup.costs_learn = options.belief_learns;
  setup.length_predictor = options.length_predictor;
  setup.max_concurrency = config_.options.max_concurrency;
  if (std::isfinite(config_.options.drain_timeout_s)) {
    setup.drain_timeout = from_seconds(std::min(config_.options.drain_timeout_s, 1e8));
  }
  return setup;
}

Result<SimulationOutcome> Study::run(const std::string& policy, const RunKey& key,
                                     std::optional<size_t> explain, PlanLog* log, MapSink* map) const {
  KV_ASSIGN_OR_RETURN(SimulationSetup setup, setup_of(options_, policy, key.seed));
  setup.explain = explain;
  setup.log = log;
  setup.engine.map = map;
  return simulate(setup, requests(key));
}

Result<SimulationOutcome> Study::run(const std::string& policy, uint64_t seed,
                                     const std::vector<SimulatedRequest>& requests, double drain_s) const {
  KV_ASSIGN_OR_RETURN(SimulationSetup setup, setup_of(options_, policy, seed));
  setup.drain_timeout = from_seconds(std::min(drain_s, 1e8));
  return simulate(setup, requests);
}

std::vector<SimulatedRequest> Study::once() const {
  return requests({std::numeric_limits<double>::infinity(), config_.options.seed, 0});
}

// The first seed's requests over and over, all there from the start: so many that those which run at once are
// a small part of them.
std::vector<SimulatedRequest> Study::crowd() const {
  const std::vector<SimulatedRequest> once = this->once();
  const size_t count = std::min(kMostInCrowd, std::max(once.size(), static_cast<size_t>(kTurns * at_once())));
  std::vector<SimulatedRequest> out;
  for (size_t i = 0; i < count; ++i) {
    out.push_back(once[i % once.size()]);
    out.back().arrival = 0;
  }
  return out;
}

Result<Capacity> Study::measure_capacity() const {
  Result<Capacity> out = measure_capacity(kCapacityPolicy);
  for (const std::string& policy : options_.policies) {
    // Instances on their own hold none of the requests.
    if (!out.ok() && lends(options_, policy)) return measure_capacity(policy);
  }
  return out;
}

Result<Capacity> Study::measure_capacity(const std::string& policy) const {
  SimulateOptions options = options_;
  options.runtime.max_num_queued_reqs = UINT32_MAX;
  options.runtime.max_num_queued_tokens = 0;
  options.runtime.refuse_late = false;
  KV_ASSIGN_OR_RETURN(SimulationSetup setup, setup_of(options, policy, config_.options.seed));
  setup.max_concurrency = 0;
  setup.drain_timeout.reset();
  KV_ASSIGN_OR_RETURN(const SimulationOutcome outcome,
                      simulate(setup, policy == kCapacityPolicy ? crowd() : once()));
  Capacity out;
  out.policy = policy;
  out.requests = outcome.load.records.size();
  std::vector<Nanos> ends;
  for (const RequestRecord& r : outcome.load.records) {
    if (r.state == RequestRecord::State::kCompleted) {
      ends.push_back(r.end);
    } else if (out.failed++ == 0) {
      out.why = r.error;
    }
  }
  if (ends.empty()) return error(ErrorCode::kExhausted, "no request can be served: {}", out.why);
  out.rate = steady_rate(std::move(ends), kEndsOfCrowd);
  if (out.rate == 0)
    return error(ErrorCode::kInvalidArgument, "--device {}: its steps take no time", options_.device);
  return out;
}

Status Study::use_capacity(double capacity) {
  capacity_ = capacity;
  KV_ASSIGN_OR_RETURN(config_.rates, resolve_rates("--request-rate", config_.rate_specs, capacity));
  return check_rates();
}

// Of those that are known.
Status Study::check_rates() const {
  for (size_t i = 0; i < config_.rates.size(); ++i) {
    const double rate = config_.rates[i];
    const double seconds = static_cast<double>(config_.options.num_prompts) / rate;
    if (seconds > kMostSeconds) {
      return error(ErrorCode::kInvalidArgument,
                   "--request-rate {:g}: {} requests would take {:g} s to arrive; at most {:g}", rate,
                   config_.options.num_prompts, seconds, kMostSeconds);
    }
    if (std::find(config_.rates.begin(), config_.rates.begin() + static_cast<ptrdiff_t>(i), rate) !=
        config_.rates.begin() + static_cast<ptrdiff_t>(i)) {
      return error(ErrorCode::kInvalidArgument, "--request-rate: {:g} is given twice", rate);
    }
  }
  return {};
}

// Each job's outcome goes to `take`, on some thread; those of different jobs at once.
Status Study::run_all(const std::vector<Job>& jobs, const StudyProgress& progress,
                      const std::function<void(size_t, SimulationOutcome)>& take) const {
  std::vector<Status> statuses(jobs.size());
  std::mutex mutex;  // guards `done`
  size_t done = 0;
  run_parallel(jobs.size(), options_.jobs, [&](size_t i) {
    Result<SimulationOutcome> outcome = run(jobs[i].policy, jobs[i].key, std::nullopt, nullptr);
    statuses[i] = outcome.status();
    if (outcome.ok()) take(i, *std::move(outcome));
    const std::lock_guard lock(mutex);
    if (progress) progress(++done, jobs.size());
  });
  return first_failure(statuses);
}

// CacheOpt's way: the means over all requests of all methods that are compared.
Status Study::find_reference(const std::vector<Job>& jobs, const StudyProgress& progress) {
  struct Sums {
    double ttft = 0, tbt = 0;
    size_t requests = 0, gaps = 0;
  };
  std::vector<Sums> sums(jobs.size());
  KV_RETURN_IF_ERROR(run_all(jobs, progress, [&](size_t i, const SimulationOutcome& outcome) {
    for (const RequestRecord& r : outcome.load.records) {
      if (r.state != RequestRecord::State::kCompleted) continue;
      sums[i].ttft += ttft_ms(r);
      ++sums[i].requests;
      for (Nanos gap : r.gaps) sums[i].tbt += to_millis(gap);
      sums[i].gaps += r.gaps.size();
    }
  }));
  Sums all;
  for (const Sums& s : sums) {
    all.ttft += s.ttft;
    all.tbt += s.tbt;
    all.requests += s.requests;
    all.gaps += s.gaps;
  }
  if (all.requests == 0 || all.gaps == 0) {
    return error(ErrorCode::kInvalidArgument,
                 "--relative-slo: no request of the first pass has two tokens, so there is no mean TBT");
  }
  SloReference reference;
  reference.ttft_ms = all.ttft / static_cast<double>(all.requests);
  reference.tbt_ms = all.tbt / static_cast<double>(all.gaps);
  if (options_.runtime.max_num_batched_tokens > 0) {
    reference.chunk_tokens = options_.runtime.max_num_batched_tokens;
  }
  dataset_.use_reference(reference);
  config_.reference = reference;
  return {};
}

Result<std::vector<PolicyRuns>> Study::sweep(const StudyProgress& progress, const PointSink& on_point) {
  std::vector<Job> jobs;
  for (const std::string& policy : options_.policies) {
    for (size_t point = 0; point < config_.rates.size(); ++point) {
      for (int64_t i = 0; i < config_.options.seeds; ++i) {
        jobs.push_back({policy,
                        {config_.rates[point], config_.options.seed + static_cast<uint64_t>(i),
                         static_cast<int64_t>(point)}});
      }
    }
  }
  if (config_.relative && !config_.reference) KV_RETURN_IF_ERROR(find_reference(jobs, progress));
  std::vector<RunResult> runs(jobs.size());
  const auto seeds = static_cast<size_t>(config_.options.seeds);
  struct Point {
    size_t runs = 0;
    double percent = 0;
  };
  std::vector<Point> points(jobs.size() / seeds);
  std::mutex mutex;  // guards `points`
  KV_RETURN_IF_ERROR(run_all(jobs, progress, [&](size_t i, SimulationOutcome outcome) {
    runs[i] = run_result(jobs[i].key, std::move(outcome), config_);
    if (!on_point) return;
    const std::lock_guard lock(mutex);
    Point& p = points[i / seeds];
    p.percent += percent_attained(runs[i].summary) / static_cast<double>(seeds);
    if (++p.runs < seeds) return;
    on_point(jobs[i].policy, jobs[i].key.rate,
             config_.goals.empty() ? std::nullopt : std::optional(p.percent));
  }));
  std::vector<PolicyRuns> out;
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (out.empty() || out.back().policy != jobs[i].policy) out.push_back({jobs[i].policy, {}});
    out.back().runs.push_back(std::move(runs[i]));
  }
  return out;
}

Result<double> Study::attained(const std::string& policy, double rate) const {
  double sum = 0;
  for (int64_t i = 0; i < config_.options.seeds; ++i) {
    const RunKey key{rate, config_.options.seed + static_cast<uint64_t>(i), 0};
    KV_ASSIGN_OR_RETURN(const SimulationOutcome outcome, run(policy, key, std::nullopt, nullptr));
    sum += percent_attained(summarise(outcome.load, config_));
  }
  return sum / static_cast<double>(config_.options.seeds);
}

// By halving, as if attainment only fell with the rate.
Result<EffectiveThroughput> Study::search(const std::string& policy, double percent) const {
  EffectiveThroughput out{policy};
  double low = 0, high = kLeastOfCapacity * capacity_;
  for (;; high = std::min(2 * high, kMostOfCapacity * capacity_)) {
    KV_ASSIGN_OR_RETURN(const double share, attained(policy, high));
    if (share < percent) break;
    low = high;
    out.attained = share;
    if (high < kMostOfCapacity * capacity_) continue;
    out.rate = high;
    out.more = true;
    return out;
  }
  while (low > 0 && high - low > kRateTolerance * low) {
    const double middle = (low + high) / 2;
    KV_ASSIGN_OR_RETURN(const double share, attained(policy, middle));
    (share >= percent ? low : high) = middle;
    if (share >= percent) out.attained = share;
  }
  out.rate = low;
  return out;
}

Result<std::vector<EffectiveThroughput>> Study::effective_throughput(double percent,
                                                                     const StudyProgress& progress,
                                                                     const PointSink& on_found) {
  const std::vector<std::string>& policies = options_.policies;
  std::vector<EffectiveThroughput> out(policies.size());
  std::vector<Status> statuses(policies.size());
  std::mutex mutex;  // guards `done`
  size_t done = 0;
  run_parallel(policies.size(), options_.jobs, [&](size_t i) {
    Result<EffectiveThroughput> found = search(policies[i], percent);
    statuses[i] = found.status();
    const std::lock_guard lock(mutex);
    if (found.ok()) {
      out[i] = *std::move(found);
      if (on_found) on_found(policies[i], out[i].rate, out[i].attained);
    }
    if (progress) progress(++done, policies.size());
  });
  KV_RETURN_IF_ERROR(first_failure(statuses));
  return out;
}

double Study::attainable_percent(size_t rate) const {
  BoundedDevice device;
  device.instances = options_.instances;
  device.tokens = kv_tokens() / options_.instances;
  device.max_num_seqs = options_.runtime.max_num_seqs;
  if (options_.runtime.kv_offloading_bytes > 0) {
    const LinkCost& link = system_.costs.links[index_of(Tier::kHost)][index_of(Tier::kDevice)];
    const auto token_bytes = static_cast<double>(system_.kv_bytes_per_token());
    device.staged_per_s = link.seconds_per_byte > 0 ? 1 / (link.seconds_per_byte * token_bytes) : 0;
  }
  device.costs = least_costs(*system_.times, system_.costs, device.tokens);
  double sum = 0;
  for (int64_t i = 0; i < config_.options.seeds; ++i) {
    std::vector<SimulatedRequest> judged = requests(
        {config_.rates[rate], config_.options.seed + static_cast<uint64_t>(i), static_cast<int64_t>(rate)});
    const auto trimmed = static_cast<ptrdiff_t>(trimmed_requests(config_.options.trim, judged.size()));
    judged.erase(judged.end() - trimmed, judged.end());
    judged.erase(judged.begin(), judged.begin() + trimmed);
    sum += attainable_share(judged, device);
  }
  return 100 * sum / static_cast<double>(config_.options.seeds);
}

double Study::kv_tokens() const {
  return options_.instances * static_cast<double>(system_.kv_cache_bytes) /
         static_cast<double>(system_.kv_bytes_per_token());
}

double Study::at_once() const {
  const uint64_t most = uint64_t{options_.instances} * options_.runtime.max_num_seqs;
  return std::min(static_cast<double>(most), kv_tokens() / mean_tokens());
}

double Study::mean_tokens() const {
  return mean_prompt_ + mean_output_;
}

std::string Study::describe() const {
  return fmt::format(
      "{} on {}\n{}{}\n{} requests of {}: mean prompt {:.1f}, mean output {:.1f} tokens; the KV cache of "
      "{:.0f} tokens holds {:.1f} whole mean requests\n",
      system_.model, system_.device, describe_cluster(options_), system_.memory, config_.options.num_prompts,
      config_.options.dataset_name, mean_prompt_, mean_output_, kv_tokens(), kv_tokens() / mean_tokens());
}

}  // namespace kvasir
