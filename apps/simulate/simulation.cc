#include "apps/simulate/simulation.h"

#include <algorithm>
#include <utility>

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

// The instances of a run, and the order of their turns.
class Run {
 public:
  Run(const SimulationSetup& setup, const std::vector<SimulatedRequest>& requests)
      : setup_(setup), goes_to_(distribute(setup.instances, requests)) {}

  Status start(const std::vector<SimulatedRequest>& requests);
  SimulationOutcome run();

 private:
  size_t left() const;
  bool take_next_turn(Nanos until);
  SimulationOutcome::Peers peers_outcome() const;

  const SimulationSetup& setup_;
  const std::vector<uint32_t> goes_to_;  // by request
  std::vector<std::unique_ptr<VirtualClock>> clocks_;
  std::unique_ptr<SimCluster> cluster_;
  std::vector<std::unique_ptr<LengthPredictor>> lengths_;
  std::vector<std::unique_ptr<SimulatedInstance>> instances_;
};

Status Run::start(const std::vector<SimulatedRequest>& requests) {
  std::vector<InstanceSetup> own(setup_.instances);
  for (size_t i = 0; i < requests.size(); ++i) {
    InstanceSetup& to = own[goes_to_[i]];
    if (setup_.explain == i) to.explain = to.requests.size();
    to.requests.push_back(requests[i]);
  }
  std::vector<VirtualClock*> clocks;
  for (uint32_t i = 0; i < setup_.instances; ++i) {
    clocks.push_back(clocks_.emplace_back(std::make_unique<VirtualClock>()).get());
  }
  if (setup_.cluster) cluster_ = std::make_unique<SimCluster>(*setup_.cluster, setup_.times, clocks);
  for (uint32_t i = 0; i < setup_.instances; ++i) {
    own[i].number = i;
    own[i].last_arrival = requests.empty() ? 0 : requests.back().arrival;
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
  return left;
}

// Takes the earliest turn; of equal ones the leader's, and then the lowest number. False: none is due by
// then.
bool Run::take_next_turn(Nanos until) {
  Nanos at = cluster_ ? cluster_->next_turn() : INT64_MAX;
  SimulatedInstance* next = nullptr;
  for (const auto& instance : instances_) {
    const Nanos turn = instance->next_turn();
    if (turn >= at) continue;
    at = turn;
    next = instance.get();
  }
  if (at > until) return false;
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
  std::vector<SimulationOutcome> each;
  for (const auto& instance : instances_) {
    if (peers) peers->copied_bytes += instance->copied_bytes();
    each.push_back(instance->finish());
  }
  SimulationOutcome out = merge_outcomes(std::move(each), goes_to_);
  out.peers = std::move(peers);
  return out;
}

}  // namespace

Result<SimulationOutcome> simulate(const SimulationSetup& setup,
                                   const std::vector<SimulatedRequest>& requests) {
  Run run(setup, requests);
  KV_RETURN_IF_ERROR(run.start(requests));
  return run.run();
}

}  // namespace kvasir
