#include "apps/simulate/merge_outcomes.h"

#include <algorithm>
#include <utility>

namespace kvasir {
namespace {

void add_sums(const EngineSums& one, EngineSums& all) {
  all.seconds += one.seconds;
  all.seconds_at_limit += one.seconds_at_limit;
  all.running_seconds += one.running_seconds;
  all.plans += one.plans;
  all.rows += one.rows;
  all.decodes += one.decodes;
  all.allocated += one.allocated;
  all.promised += one.promised;
}

void add_link(const LinkStats& one, LinkStats& all) {
  for (int from = 0; from < kTiers; ++from) {
    for (int to = 0; to < kTiers; ++to) all.bytes[from][to] += one.bytes[from][to];
  }
  all.transfers += one.transfers;
  all.failed += one.failed;
  all.busy_s += one.busy_s;
}

void add_to(EngineSample& all, const EngineSample& one, bool plus) {
  const auto add = [plus](auto& to, auto value) { plus ? to += value : to -= value; };
  add(all.running, one.running);
  add(all.waiting, one.waiting);
  add(all.rows, one.rows);
  add(all.decodes, one.decodes);
  add(all.link_queue_bytes, one.link_queue_bytes);
  for (int form = 0; form < kForms; ++form) {
    for (int tier = 0; tier < kTiers; ++tier) add(all.bytes[form][tier], one.bytes[form][tier]);
  }
}

// Of all instances together, at each moment at which there is one of one of them.
std::vector<EngineSample> sum_of_samples(const std::vector<SimulationOutcome>& each) {
  std::vector<std::pair<Nanos, std::pair<size_t, size_t>>> order;  // when; whose, which
  for (size_t i = 0; i < each.size(); ++i) {
    for (size_t k = 0; k < each[i].samples.size(); ++k) order.push_back({each[i].samples[k].at, {i, k}});
  }
  std::sort(order.begin(), order.end());
  std::vector<EngineSample> out;
  EngineSample sum;
  for (const auto& [at, which] : order) {
    const auto& [i, k] = which;
    if (k > 0) add_to(sum, each[i].samples[k - 1], false);
    add_to(sum, each[i].samples[k], true);
    sum.at = at;
    out.push_back(sum);
  }
  return out;
}

}  // namespace

SimulationOutcome merge_outcomes(std::vector<SimulationOutcome> each, const std::vector<uint32_t>& goes_to) {
  if (each.size() == 1) return std::move(each.front());
  SimulationOutcome out;
  out.instances = static_cast<uint32_t>(each.size());
  double cost_error = 0;
  size_t that_learn = 0;
  const auto count = static_cast<double>(std::max<size_t>(1, goes_to.size()));
  for (const SimulationOutcome& one : each) {
    const double share = static_cast<double>(one.load.records.size()) / count;
    out.load.duration = std::max(out.load.duration, one.load.duration);
    out.load.drained_out = out.load.drained_out || one.load.drained_out;
    out.load.max_concurrent += one.load.max_concurrent;
    add_sums(one.sums, out.sums);
    add_link(one.link, out.link);
    out.has_link = out.has_link || one.has_link;
    out.steps += one.steps;
    out.busy_s += one.busy_s;
    out.preemptions += one.preemptions;
    out.preemptions_swapped += one.preemptions_swapped;
    out.tokens_projected += one.tokens_projected;
    out.tokens_computed_again += one.tokens_computed_again;
    out.rows_deferred += one.rows_deferred;
    out.seconds_stalled += one.seconds_stalled;
    out.mean_queue_s += share * one.mean_queue_s;
    out.mean_prefill_s += share * one.mean_prefill_s;
    for (size_t i = 0; i < kCauses; ++i) out.decisions[i] += one.decisions[i];
    out.preempted_s.insert(out.preempted_s.end(), one.preempted_s.begin(), one.preempted_s.end());
    out.life.insert(out.life.end(), one.life.begin(), one.life.end());
    if (one.cost_error) cost_error += *one.cost_error;
    if (one.cost_error) ++that_learn;
  }
  if (that_learn > 0) out.cost_error = cost_error / static_cast<double>(that_learn);
  out.samples = sum_of_samples(each);
  std::vector<size_t> next(each.size(), 0);
  for (const uint32_t instance : goes_to) {
    out.load.records.push_back(std::move(each[instance].load.records[next[instance]++]));
  }
  return out;
}

}  // namespace kvasir
