// The transfers of a step on its way through the layers: starts them when the step comes to their points,
// waits for those that a layer needs, and knows which slices have left the step because theirs did not end in
// time. Every executor makes these calls, in the order of the points.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/clock.h"
#include "contract/link.h"
#include "contract/step.h"

namespace kvasir {

// One step at a time, by one thread. Other threads may call const functions while that thread changes
// nothing, such as in a job that it gives to them.
class StepTransfers {
 public:
  // Both outlive this object. link: null where there is none; steps then have no transfers and no waits.
  StepTransfers(Link* link, const Clock& clock) : link_(link), clock_(clock) {}

  // A step begins: starts its transfers of kStepBegins. Until end() the step stays where it is, and its
  // transfers are moved out of it as they start. submitted_early: it was submitted before the result of the
  // step before it was known. Sequences that that step deferred are deferred here too, since their history is
  // incomplete. REQUIRES: the step is indexed.
  void begin(Step& step, bool submitted_early = false);

  // The step has come to a point: starts the transfers that are due.
  void pass(StepPoint point);

  // True if rows wait for transfers before this layer.
  bool waits_before(uint32_t layer) const { return !step_->waits_before(layer).empty(); }
  // Waits for them. Slices whose transfers do not end in time, or fail, leave the step, and with them all
  // other slices of their sequences. True: some did.
  bool wait_before(uint32_t layer);

  // Waits for something other than a transfer, within the step's patience and counted like one: `wait` blocks
  // no longer than it is told, and returns whether the thing has come. Returns that.
  bool wait_for(const std::function<bool(Nanos patience)>& wait);
  // The slice leaves the step in the middle of a layer, and with it all other slices of its sequence. lost:
  // see StepResult::lost_remote.
  void leave(uint32_t slice, bool lost);

  // From now on nothing is waited for: see Executor::give_up_waiting(). Any thread.
  void give_up_waiting() { patient_ = false; }

  bool any_deferred() const { return deferred_count_ > 0; }
  bool all_deferred() const { return any_deferred() && deferred_count_ == deferred_.size(); }
  bool deferred(size_t slice) const { return deferred_[slice] != 0; }

  // See Executor. Any thread.
  Nanos came_on_at() const { return came_on_at_; }

  // The time that the step has waited so far.
  Nanos stalled() const { return stalled_; }

  // The step has ended, well or not, also if this throws: starts what is left, since the cache counts on the
  // end of each transfer, and fills in the result.
  void end(StepResult& result);

 private:
  // Starts those of the first `count` transfers that have not been started.
  void start_first(size_t count);
  // What is left of the time that the step may wait.
  Nanos patience() const;
  // All slices of a sequence.
  void defer(SeqId seq);

  Link* const link_;
  const Clock& clock_;
  std::atomic<bool> patient_{true};
  std::atomic<Nanos> came_on_at_{0};

  // Of the step at hand.
  Step* step_ = nullptr;
  size_t started_ = 0;             // of its transfers, the first so many
  std::vector<uint8_t> deferred_;  // by slice
  size_t deferred_count_ = 0;
  Nanos stalled_ = 0;
  std::vector<SeqId> lost_;
  // Sequences that the step at hand deferred of its own accord; begin() reads them for the next step.
  std::vector<SeqId> deferred_here_;
};

}  // namespace kvasir
