// A CostLearner that runs beside the engine's thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "contract/cost_estimator.h"
#include "sched/beliefs/cost_learner.h"

namespace kvasir {

// The engine's thread pushes the times of steps into a queue, and takes the latest model when there is a new
// one. A thread of low priority learns. Observations that do not fit into the queue are dropped and counted.
class CostBeliefs final : public CostEstimator {
 public:
  enum class Learns {
    kOnThread,
    kAtOnce,  // on the engine's thread: for virtual time, in which a plan must not depend on real time
    kNever,   // the model stays as it was
  };

  // cpus: for the thread; empty: any.
  CostBeliefs(CostLearner learner, Learns learns, std::vector<int> cpus = {});
  ~CostBeliefs() override;
  CostBeliefs(const CostBeliefs&) = delete;
  CostBeliefs& operator=(const CostBeliefs&) = delete;

  void observe(const StepWork& work, double seconds) override;
  bool take_latest(CostModel& costs) override;
  bool learning() const override { return learns_ != Learns::kNever; }
  uint64_t observed() const override { return observed_.load(std::memory_order_relaxed); }
  uint64_t dropped() const override { return dropped_.load(std::memory_order_relaxed); }
  double error() const override { return error_.load(std::memory_order_relaxed); }
  // Any thread.
  CostModel latest() const {
    const std::lock_guard lock(mutex_);
    return latest_;
  }

 private:
  struct Observation {
    StepWork work;
    double seconds;
  };
  static constexpr uint32_t kRoom = 1024;  // a power of two
  // The thread is woken once per this many observations; at first for each.
  static constexpr uint32_t kBatch = 16;

  void run();
  void learn(const Observation& observation);
  void publish();

  CostLearner learner_;  // used by the thread that learns
  const Learns learns_;
  std::array<Observation, kRoom> ring_;
  std::atomic<uint32_t> pushed_{0};  // by the engine's thread
  std::atomic<uint32_t> popped_{0};  // by the thread that learns
  std::atomic<uint32_t> wakes_{0};
  std::atomic<bool> stopping_{false};

  mutable std::mutex mutex_;
  CostModel latest_;                  // guarded by mutex_
  std::atomic<uint64_t> version_{1};  // of latest_
  uint64_t taken_ = 0;                // the version that take_latest() gave last

  std::atomic<uint64_t> observed_{0}, dropped_{0};
  std::atomic<double> error_{0};
  std::thread thread_;
};

}  // namespace kvasir
