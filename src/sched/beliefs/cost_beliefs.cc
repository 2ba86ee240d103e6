#include "sched/beliefs/cost_beliefs.h"

#include <sys/resource.h>

#include <new>
#include <utility>

#include "base/affinity.h"

namespace kvasir {

CostBeliefs::CostBeliefs(CostLearner learner, Learns learns, std::vector<int> cpus)
    : learner_(std::move(learner)), learns_(learns), latest_(learner_.model()) {
  if (learns != Learns::kOnThread) return;
  thread_ = std::thread([this, cpus = std::move(cpus)] {
    if (!cpus.empty()) keep_on_cpus(cpus);
    // On Linux this is the priority of the calling thread alone. Nothing depends on its being granted.
    (void)setpriority(PRIO_PROCESS, 0, 19);
    run();
  });
}

CostBeliefs::~CostBeliefs() {
  if (!thread_.joinable()) return;
  stopping_ = true;
  ++wakes_;
  wakes_.notify_one();
  thread_.join();
}

void CostBeliefs::observe(const StepWork& work, double seconds) {
  if (learns_ == Learns::kNever) return;
  if (learns_ == Learns::kAtOnce) {
    learn({work, seconds});
    return;
  }
  const uint32_t at = pushed_.load(std::memory_order_relaxed);
  if (at - popped_.load(std::memory_order_acquire) == kRoom) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  ring_[at % kRoom] = {work, seconds};
  pushed_.store(at + 1, std::memory_order_release);
  if (at >= kBatch && at % kBatch != 0) return;
  wakes_.fetch_add(1, std::memory_order_release);
  wakes_.notify_one();
}

bool CostBeliefs::take_latest(CostModel& costs) {
  const uint64_t version = version_.load(std::memory_order_acquire);
  if (version == taken_) return false;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  costs = latest_;
  taken_ = version;
  return true;
}

void CostBeliefs::run() {
  for (;;) {
    const uint32_t woken = wakes_.load(std::memory_order_acquire);
    const uint32_t end = pushed_.load(std::memory_order_acquire);
    for (uint32_t at = popped_.load(std::memory_order_relaxed); at != end; ++at) {
      const Observation observation = ring_[at % kRoom];
      popped_.store(at + 1, std::memory_order_release);
      try {
        learn(observation);
      } catch (const std::bad_alloc&) {
        dropped_.fetch_add(1, std::memory_order_relaxed);
      }
    }
    if (stopping_) return;
    wakes_.wait(woken, std::memory_order_acquire);
  }
}

void CostBeliefs::learn(const Observation& observation) {
  const bool changed = learner_.observe(observation.work, observation.seconds);
  observed_.store(learner_.observed(), std::memory_order_relaxed);
  error_.store(learner_.error(), std::memory_order_relaxed);
  if (changed) publish();
}

void CostBeliefs::publish() {
  const std::lock_guard lock(mutex_);
  latest_ = learner_.model();
  version_.fetch_add(1, std::memory_order_release);
}

}  // namespace kvasir
