#include "apps/simulate/simulation.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "apps/simulate/deployment_queue.h"
#include "apps/simulate/instance.h"
#include "apps/simulate/merge_outcomes.h"
#include "base/check.h"
#include "sched/beliefs/length_predictors.h"

namespace kvasir {
namespace {

// After the last request, for what is still on its way: heartbeats go on for ever.
constexpr Nanos kQuiet = 20 * kNanosPerSecond;

// Where each request goes, by its index: to the instance that was sent the fewest prompt tokens so far.
std::vector<uint32_t> distribute(uint32_t instances, const std::vector<SimulatedRequest>& requests) {
  std::vector<uint64_t> sent(instances, 0);
  std::vector<uint32_t> out;
  for (const SimulatedRequest& r : requests) {
    const auto least = std::min_element(sent.begin(), sent.end());
    *least += r.prompt_tokens;
    out.push_back(static_cast<uint32_t>(least - sent.begin()));
  }
  return out;
}

DeploymentQueue::Options queue_options(const SimulationSetup& setup) {
  const CacheOptions& cache = setup.engine.cache;
  DeploymentQueue::Options out;
  out.instances = setup.instances;
  out.blocks = cache.cells(Tier::kDevice) / cache.geometry.groups();
  out.block_tokens = cache.geometry.block_tokens;
  out.leaf_blocks = cache.geometry.blocks_per_leaf();
  out.most_requests = setup.engine.limits.max_num_seqs;
  out.lends = setup.cluster.has_value();
  if (out.lends) out.lent_blocks = setup.cluster->protocol.lend_cap / cache.geometry.groups();
  out.costs = setup.costs;
  return out;
}

// The instances of a run, and the order of their turns.
class Run {
 public:
  Run(const SimulationSetup& setup, const std::vector<SimulatedRequest>& requests)
      : setup_(setup), requests_(requests), bound_(setup.instances) {
    if (setup.one_queue) {
      goes_to_.resize(requests.size(), 0);
      queue_.emplace(queue_options(setup));
    } else {
      goes_to_ = distribute(setup.instances, requests);
    }
  }

  Status start();
  SimulationOutcome run();

 private:
  // A request of the queue that has ended.
  struct Ended {
    size_t index = 0;
    std::optional<uint32_t> output_tokens;  // nothing: it failed
  };

  size_t left() const;
  bool gave_up() const;
  Nanos next_queue_turn() const;
  void take_queue_turn(Nanos at);
  bool take_next_turn(Nanos until);
  void finish_queue(std::vector<SimulationOutcome>& each);
  SimulationOutcome::Peers peers_outcome() const;

  const SimulationSetup& setup_;
  const std::vector<SimulatedRequest>& requests_;
  std::vector<uint32_t> goes_to_;  // by request
  std::vector<std::unique_ptr<VirtualClock>> clocks_;
  std::unique_ptr<SimCluster> cluster_;
  std::vector<std::unique_ptr<LengthPredictor>> lengths_;
  std::vector<std::unique_ptr<SimulatedInstance>> instances_;

  std::optional<DeploymentQueue> queue_;
  size_t arrived_ = 0;                      // in the queue
  std::multimap<Nanos, Ended> ended_;       // of which the queue has not heard
  std::vector<std::vector<size_t>> bound_;  // to each instance, in the order in which they were
  double queued_s_ = 0;                     // of all that were bound
};

Status Run::start() {
  std::vector<InstanceSetup> own(setup_.instances);
  for (size_t i = 0; !queue_ && i < requests_.size(); ++i) {
    InstanceSetup& to = own[goes_to_[i]];
    if (setup_.explain == i) to.explain = to.requests.size();
    to.requests.push_back(requests_[i]);
  }
  std::vector<VirtualClock*> clocks;
  for (uint32_t i = 0; i < setup_.instances; ++i) {
    clocks.push_back(clocks_.emplace_back(std::make_unique<VirtualClock>()).get());
  }
  if (setup_.cluster) cluster_ = std::make_unique<SimCluster>(*setup_.cluster, setup_.times, clocks);
  for (uint32_t i = 0; i < setup_.instances; ++i) {
    own[i].number = i;
    own[i].last_arrival = requests_.empty() ? 0 : requests_.back().arrival;
    if (queue_) {
      own[i].ended = [this, i](size_t index, Nanos at, std::optional<uint32_t> output_tokens) {
        ended_.emplace(at, Ended{bound_[i][index], output_tokens});
      };
    }
    KV_ASSIGN_OR_RETURN(std::unique_ptr<Policy> policy, setup_.policies(setup_.policy));
    KV_ASSIGN_OR_RETURN(lengths_.emplace_back(), make_length_predictor(setup_.length_predictor));
    instances_.push_back(std::make_unique<SimulatedInstance>(setup_, std::move(own[i]), std::move(policy),
                                                             lengths_.back().get(), *clocks_[i],
                                                             cluster_ ? &cluster_->peer(i) : nullptr));
  }
  return {};
}

size_t Run::left() const {
  size_t left = 0;
  for (const auto& instance : instances_) left += instance->left();
  // Where the clients have given up, no instance has any left, and none begins.
  if (queue_ && !gave_up()) left += queue_->waiting() + (requests_.size() - arrived_);
  return left;
}

// ---------------------------------------------------------------- the queue of all

bool Run::gave_up() const {
  return std::any_of(instances_.begin(), instances_.end(),
                     [](const auto& instance) { return instance->gave_up(); });
}

Nanos Run::next_queue_turn() const {
  if (!queue_ || gave_up()) return INT64_MAX;
  const Nanos arrival = arrived_ < requests_.size() ? requests_[arrived_].arrival : INT64_MAX;
  return std::min(arrival, ended_.empty() ? INT64_MAX : ended_.begin()->first);
}

void Run::take_queue_turn(Nanos at) {
  while (!ended_.empty() && ended_.begin()->first <= at) {
    const Ended& ended = ended_.begin()->second;
    queue_->ended(ended.index, ended.output_tokens);
    ended_.erase(ended_.begin());
  }
  for (; arrived_ < requests_.size() && requests_[arrived_].arrival <= at; ++arrived_) {
    const SimulatedRequest& r = requests_[arrived_];
    queue_->push({arrived_, r.prompt_tokens, r.max_tokens});
  }
  for (const DeploymentQueue::Binding& binding : queue_->bind(at)) {
    const SimulatedRequest& r = requests_[binding.index];
    goes_to_[binding.index] = binding.instance;
    bound_[binding.instance].push_back(binding.index);
    queued_s_ += to_seconds(at - r.arrival);
    instances_[binding.instance]->bind(r, at, setup_.explain == binding.index);
  }
}

// Each instance's records in the order of the requests, those that were never bound among the first one's.
void Run::finish_queue(std::vector<SimulationOutcome>& each) {
  for (size_t i = 0; i < each.size(); ++i) {
    std::vector<RequestRecord>& records = each[i].load.records;
    KV_CHECK(records.size() == bound_[i].size(), "{} of {} records", records.size(), bound_[i].size());
    std::vector<size_t> order(records.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return bound_[i][a] < bound_[i][b]; });
    std::vector<RequestRecord> sorted;
    for (const size_t at : order) sorted.push_back(std::move(records[at]));
    records = std::move(sorted);
  }
}

// Takes the earliest turn; of equal ones the queue's, the leader's, and then the lowest number. False: none
// is due by then.
bool Run::take_next_turn(Nanos until) {
  const Nanos of_queue = next_queue_turn();
  Nanos at = cluster_ ? cluster_->next_turn() : INT64_MAX;
  SimulatedInstance* next = nullptr;
  for (const auto& instance : instances_) {
    const Nanos turn = instance->next_turn();
    if (turn >= at) continue;
    at = turn;
    next = instance.get();
  }
  if (std::min(at, of_queue) > until) return false;
  if (of_queue <= at && of_queue < INT64_MAX) {
    take_queue_turn(of_queue);
    return true;
  }
  if (next) {
    next->take_turn(at);
  } else if (at < INT64_MAX) {
    cluster_->take_turn(at);
  } else {
    // Time passes no more: another turn finds something to do, or says that none does.
    for (uint32_t i = 0; i < setup_.instances; ++i) {
      if (instances_[i]->left() > 0) instances_[i]->take_turn(clocks_[i]->now());
    }
  }
  return true;
}

SimulationOutcome::Peers Run::peers_outcome() const {
  SimulationOutcome::Peers out;
  out.sums = cluster_->sums();
  out.cell_bytes = setup_.cluster->shape.geometry.kv_cell_bytes();
  out.messages = cluster_->messages();
  out.settlements = cluster_->gmanager().counts().settlements;
  out.ledgers = cluster_->check_ledgers();
  return out;
}

SimulationOutcome Run::run() {
  while (left() > 0) take_next_turn(INT64_MAX);
  if (cluster_) {
    Nanos end = 0;
    for (const auto& clock : clocks_) end = std::max(end, clock->now());
    while (take_next_turn(end + kQuiet)) {
    }
  }
  std::optional<SimulationOutcome::Peers> peers;
  if (cluster_) peers = peers_outcome();
  if (queue_) {
    std::vector<bool> was_bound(requests_.size(), false);
    size_t count = 0;
    for (const auto& of_instance : bound_) {
      for (const size_t index : of_instance) was_bound[index] = true;
      count += of_instance.size();
    }
    queued_s_ /= static_cast<double>(std::max<size_t>(1, count));
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (was_bound[i]) continue;
      bound_.front().push_back(i);
      instances_.front()->never_bound();
    }
  }
  std::vector<SimulationOutcome> each;
  for (const auto& instance : instances_) {
    if (peers) peers->copied_bytes += instance->copied_bytes();
    each.push_back(instance->finish());
  }
  if (queue_) finish_queue(each);
  SimulationOutcome out = merge_outcomes(std::move(each), goes_to_);
  for (size_t i = 0; i < requests_.size(); ++i) out.load.records[i].arrival = requests_[i].arrival;
  out.mean_queue_s += queued_s_;
  out.peers = std::move(peers);
  return out;
}

}  // namespace

Result<SimulationOutcome> simulate(const SimulationSetup& setup,
                                   const std::vector<SimulatedRequest>& requests) {
  Run run(setup, requests);
  KV_RETURN_IF_ERROR(run.start());
  return run.run();
}

}  // namespace kvasir
