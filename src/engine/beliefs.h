// What the engine learns while it runs, for policies to read: what steps cost, and how long outputs become.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "contract/cost_model.h"
#include "contract/length_predictor.h"
#include "contract/link.h"
#include "contract/step.h"
#include "sched/beliefs/cost_learner.h"

namespace kvasir {

// Adds the work of a slice's rows, as PlanBuilder::work() counts it: rows that pass some of the layers count
// by their share.
inline void add_work(const StepSlice& slice, uint32_t layers, StepWork& work) {
  StepWork rows;
  if (slice.kind == RowKind::kDecode) {
    rows.add_decode(slice.tokens.end);
  } else {
    rows.add_prefill(slice.tokens.begin, slice.tokens.size());
  }
  const uint32_t end = std::min(slice.end_layer, layers);
  work += rows.scaled(static_cast<double>(end - slice.first_layer) / layers);
}

// What the link was measured to do takes the place of what was believed of it; what it has not yet moved
// stays.
void set_measured_links(const LinkStats& link, CostModel& costs);

// A CostLearner that the engine's thread feeds and need not wait for. The engine's thread pushes what steps
// took into a queue, and takes the latest model when there is one; a thread of low priority learns. Where
// that cannot follow, observations are dropped and counted.
class CostBeliefs {
 public:
  enum class Learns {
    kOnThread,
    kAtOnce,  // on the engine's thread: for virtual time, in which a plan must not depend on real time
    kNever,   // keeps to what it began with
  };

  // cpus: to which the thread keeps; empty: any.
  CostBeliefs(CostLearner learner, Learns learns, std::vector<int> cpus = {});
  ~CostBeliefs();
  CostBeliefs(const CostBeliefs&) = delete;
  CostBeliefs& operator=(const CostBeliefs&) = delete;

  // These two on one thread, the engine's. Neither ever waits.
  void observe(const StepWork& work, double seconds);
  // The latest model, if there is another one than at the last call that gave one.
  bool take_latest(CostModel& costs);

  // Whether what is seen changes what is believed.
  bool learning() const { return learns_ != Learns::kNever; }

  // Any thread.
  CostModel latest() const {
    const std::lock_guard lock(mutex_);
    return latest_;
  }
  uint64_t observed() const { return observed_.load(std::memory_order_relaxed); }  // learnt so far
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }
  double error() const { return error_.load(std::memory_order_relaxed); }  // CostLearner::error()

 private:
  struct Observation {
    StepWork work;
    double seconds;
  };
  static constexpr uint32_t kRoom = 1024;  // a power of two
  // The thread is woken for so many observations at once; for each of the first ones.
  static constexpr uint32_t kBatch = 16;

  void run();
  void learn(const Observation& observation);
  void publish();

  CostLearner learner_;  // used by whoever learns
  const Learns learns_;
  std::array<Observation, kRoom> ring_;
  std::atomic<uint32_t> pushed_{0};  // by the engine's thread
  std::atomic<uint32_t> popped_{0};  // by the learning one
  std::atomic<uint32_t> wakes_{0};
  std::atomic<bool> stopping_{false};

  mutable std::mutex mutex_;
  CostModel latest_;                  // guarded by mutex_
  std::atomic<uint64_t> version_{1};  // of it
  uint64_t taken_ = 0;                // by the engine's thread

  std::atomic<uint64_t> observed_{0}, dropped_{0};
  std::atomic<double> error_{0};
  std::thread thread_;
};

// What an engine believes with; what is null is not believed. Both outlive it.
struct Beliefs {
  CostBeliefs* costs = nullptr;
  LengthPredictor* lengths = nullptr;
};

}  // namespace kvasir
