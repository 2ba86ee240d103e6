#include "apps/plan/trials.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "apps/bench/attainment.h"
#include "apps/bench/stats.h"
#include "base/parallel.h"
#include "base/units.h"

namespace kvasir {
namespace {

// The requests by which the capacity is measured, at the least.
constexpr int64_t kCapacityPrompts = 300;
// A run's judged part, in multiples of the longest bound on a first token or on a whole request: a queue that
// grows shows only in a run that is longer than what the bounds forgive.
constexpr double kBoundsJudged = 3;
constexpr double kNearBudget = 0.95;
constexpr double kMostDrainSeconds = 1e8;

double percent(double part, double whole) {
  return whole > 0 ? 100 * part / whole : 0;
}

// Requests in the system, averaged from `from` to `to`.
double mean_in_system(const std::vector<SimulatedRequest>& requests, const SimulationOutcome& o, double from,
                      double to) {
  double sum = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const RequestRecord& r = o.load.records[i];
    const double came = to_seconds(requests[i].arrival);
    const bool ended =
        r.state == RequestRecord::State::kCompleted || r.state == RequestRecord::State::kFailed;
    const double left = ended ? to_seconds(r.end - o.load.start) : to;
    sum += std::max(0.0, std::min(left, to) - std::max(came, from));
  }
  return sum / (to - from);
}

// Shares of the time in which the samples say so.
void add_sampled(const SimulationOutcome& o, const PlanLimits& limits, double from, double to, RunUsage& u) {
  double all = 0, slots = 0, tokens = 0, running = 0;
  for (size_t i = 0; i < o.samples.size(); ++i) {
    const EngineSample& s = o.samples[i];
    const double begin = std::max(from, to_seconds(s.at));
    const double end = std::min(
        to, i + 1 < o.samples.size() ? to_seconds(o.samples[i + 1].at) : to_seconds(o.load.duration));
    if (end <= begin) continue;
    const double span = end - begin;
    all += span;
    running += span * s.running;
    if (s.running >= o.instances * limits.max_num_seqs) slots += span;
    if (s.rows >= kNearBudget * o.instances * limits.max_num_batched_tokens) tokens += span;
  }
  u.slots_full = percent(slots, all);
  u.tokens_full = percent(tokens, all);
  u.mean_running = all > 0 ? running / all : 0;
}

RunUsage mean_of(const std::vector<const RunUsage*>& all) {
  RunUsage out;
  const auto count = static_cast<double>(std::max<size_t>(1, all.size()));
  for (double RunUsage::*field :
       {&RunUsage::limited, &RunUsage::slots_full, &RunUsage::memory, &RunUsage::busy, &RunUsage::link_busy,
        &RunUsage::tokens_full, &RunUsage::mean_running, &RunUsage::goodput, &RunUsage::p99_ttft_ms,
        &RunUsage::p99_tbt_ms, &RunUsage::mean_e2el_s}) {
    for (const RunUsage* one : all) out.*field += one->*field / count;
  }
  return out;
}

// Of those that a queue may use up.
double longest_bound_of(const BenchConfig& config) {
  double longest = 0;
  const auto take = [&](const std::vector<Goal>& goals) {
    for (const Goal& goal : goals) {
      const bool waits = goal.key == Goal::Key::kTtft || goal.key == Goal::Key::kE2el;
      if (waits && std::isfinite(goal.millis)) longest = std::max(longest, goal.millis / 1e3);
    }
  };
  take(config.goals);
  for (const SloClass& one : config.classes) take(one.goals);
  return longest;
}

}  // namespace

RunLength short_runs(double effort) {
  const double more = std::sqrt(effort);
  return {1, 10, 0.5, 200, static_cast<int64_t>(1500 * more)};
}

RunLength whole_runs(double effort) {
  return {2, 50, 1, 600, std::max<int64_t>(900, static_cast<int64_t>(4000 * effort))};
}

size_t seeds_of(double effort) {
  return std::clamp<size_t>(static_cast<size_t>(2 + std::lround(effort)), 3, 10);
}

JudgedRun judge(const SimulationOutcome& o, const std::vector<SimulatedRequest>& requests,
                const BenchConfig& config, const PlanLimits& limits, double from, double to) {
  JudgedRun out;
  RunUsage& u = out.usage;
  double judged = 0, good = 0;
  std::vector<double> ttfts, gaps;
  for (size_t i = 0; i < requests.size(); ++i) {
    const double came = to_seconds(requests[i].arrival);
    if (came < from || came >= to) continue;
    const RequestRecord& r = o.load.records[i];
    ++judged;
    if (attains_all(r, config.goals)) ++good;
    if (r.state != RequestRecord::State::kCompleted) continue;
    ttfts.push_back(ttft_ms(r));
    u.mean_e2el_s += e2el_ms(r) / 1e3;
    for (Nanos gap : r.gaps) gaps.push_back(to_millis(gap));
  }
  if (!ttfts.empty()) u.mean_e2el_s /= static_cast<double>(ttfts.size());
  std::sort(ttfts.begin(), ttfts.end());
  std::sort(gaps.begin(), gaps.end());
  u.p99_ttft_ms = percentile_of_sorted(ttfts, 99);
  u.p99_tbt_ms = percentile_of_sorted(gaps, 99);
  u.goodput = good / (to - from);
  out.trial.attained = percent(good, judged);
  const double third = (to - from) / 3;
  const double grown =
      mean_in_system(requests, o, to - third, to) - mean_in_system(requests, o, from, from + third);
  out.trial.growth = percent(grown, 2.0 / 3 * judged);
  const double duration = to_seconds(o.load.duration);
  u.limited = percent(o.sums.seconds_at_limit, o.sums.seconds);
  u.memory = percent(o.sums.allocated, static_cast<double>(o.sums.plans));
  u.busy = percent(o.busy_s, o.instances * duration);
  u.link_busy = percent(o.link.busy_s, 2 * o.instances * duration);
  add_sampled(o, limits, from, to, u);
  return out;
}

Result<std::unique_ptr<Trials>> Trials::make(SimulateOptions options, double effort, TrialsKnown known) {
  options.bench.request_rate.clear();
  const int64_t asked = options.bench.num_prompts;
  std::unique_ptr<Trials> out(new Trials(std::move(options), effort));
  SimulateOptions& o = out->options_;
  o.bench.num_prompts = asked > 0 ? asked : kCapacityPrompts;
  if (o.bench.dataset_name == "trace" && asked == 0) o.bench.num_prompts = 0;
  out->capacity_ = known.capacity;
  out->residence_s_ = known.residence_s;
  if (known.capacity == 0) {
    KV_ASSIGN_OR_RETURN(const Study study, Study::make(o));
    KV_ASSIGN_OR_RETURN(const Capacity capacity, study.measure_capacity());
    out->capacity_ = capacity.rate;
    out->residence_s_ = study.at_once() / capacity.rate;
  }
  if (asked == 0 && o.bench.dataset_name != "trace") {
    o.bench.num_prompts = std::max(whole_runs(effort).most, whole_runs(effort).least);
  }
  KV_ASSIGN_OR_RETURN(Study study, Study::make(o));
  out->study_ = std::make_unique<Study>(std::move(study));
  out->longest_bound_s_ = longest_bound_of(out->study_->config());
  return out;
}

Trials::Shape Trials::shape(double rate, bool whole) const {
  const RunLength length = whole ? whole_runs(effort_) : short_runs(effort_);
  const double judged_s = std::max(length.judged * residence_s_, kBoundsJudged * longest_bound_s_);
  const double all_s = (length.before + length.after) * residence_s_ + judged_s;
  const int64_t most = std::min(length.most, study_->config().options.num_prompts);
  Shape out;
  // A bound may be as long as one likes.
  out.requests = static_cast<int64_t>(std::clamp(
      std::ceil(all_s * rate), static_cast<double>(std::min(length.least, most)), static_cast<double>(most)));
  const double seconds = static_cast<double>(out.requests) / rate;
  // Where the number of requests bounds the run, its parts shrink alike, but what fills the system first.
  const double before = std::min(length.before * residence_s_, seconds / 3);
  out.from = before;
  out.to = std::max(before + 1e-3, seconds - std::min(length.after * residence_s_, seconds / 10));
  out.drain = std::min(2 * residence_s_ + longest_bound_s_, kMostDrainSeconds);
  return out;
}

std::pair<int64_t, double> Trials::length_at(double rate) const {
  const Shape s = shape(rate, true);
  return {s.requests, s.to - s.from};
}

Result<JudgedRun> Trials::judged_run(const TrialKey& key) const {
  const Shape s = shape(key.rate, key.whole);
  std::vector<SimulatedRequest> requests = study_->requests({key.rate, key.seed, 0});
  requests.resize(std::min(requests.size(), static_cast<size_t>(s.requests)));
  if (requests.empty()) return error(ErrorCode::kInvalidArgument, "the workload has no requests");
  // So many requests arrive in exactly the time that the rate says, as those of whole runs do.
  const double wanted = static_cast<double>(requests.size()) / key.rate;
  const double span = to_seconds(requests.back().arrival);
  for (SimulatedRequest& r : requests) {
    if (span > 0) r.arrival = from_seconds(to_seconds(r.arrival) * wanted / span);
  }
  const std::string& policy = options_.policies[key.policy];
  KV_ASSIGN_OR_RETURN(const EngineOptions engine, study_->engine(policy));
  KV_ASSIGN_OR_RETURN(const SimulationOutcome outcome, study_->run(policy, key.seed, requests, s.drain));
  return judge(outcome, requests, study_->config(), engine.limits, s.from, s.to);
}

Result<std::vector<Trial>> Trials::run(const std::vector<TrialKey>& keys) {
  std::vector<Status> statuses(keys.size());
  std::vector<JudgedRun> got(keys.size());
  run_parallel(keys.size(), options_.jobs, [&](size_t i) {
    if (const auto known = seen_.find(keys[i]); known != seen_.end()) {
      got[i] = known->second;
      return;
    }
    Result<JudgedRun> one = judged_run(keys[i]);
    statuses[i] = one.status();
    if (one.ok()) got[i] = *std::move(one);
  });
  std::vector<Trial> out;
  for (size_t i = 0; i < keys.size(); ++i) {
    KV_RETURN_IF_ERROR(statuses[i]);
    if (seen_.emplace(keys[i], got[i]).second) {
      simulated_ += static_cast<uint64_t>(shape(keys[i].rate, keys[i].whole).requests);
    }
    out.push_back(got[i].trial);
  }
  return out;
}

RunUsage Trials::usage(size_t policy, double rate, bool whole) const {
  std::vector<const RunUsage*> all;
  for (const auto& [key, run] : seen_) {
    if (key.policy == policy && key.whole == whole && std::abs(key.rate / rate - 1) < 1e-9) {
      all.push_back(&run.usage);
    }
  }
  return mean_of(all);
}

}  // namespace kvasir
