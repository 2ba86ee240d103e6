// The transfers of a step on its passage through the layers: fires what is due, waits for what a layer needs,
// and knows which slices have left the step because theirs did not end in time. What runs steps, on whatever
// device, goes through these calls in the order of the moments.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "contract/link.h"
#include "contract/step.h"

namespace kvasir {

// One step at a time, by one thread. Others of its team may ask what is const while that thread changes
// nothing, such as between two barriers.
class StepTransfers {
 public:
  // Both outlive this object. link: null where there is none; steps then fire and wait for nothing.
  StepTransfers(Link* link, const Clock& clock) : link_(link), clock_(clock) {}

  // A step begins: takes its firings and starts those of kStepBegins. The step stays where it is until end().
  // submitted_early: it was submitted before the result of the step before it was known. What that one
  // deferred is then deferred here too, since its history is not there.
  void begin(Step& step, bool submitted_early = false);

  // The step has come to a moment: fires what is due.
  void pass(StepMoment moment);

  // True if rows wait for transfers before this layer.
  bool waits_before(uint32_t layer) const;
  // Waits for them. Slices whose transfers do not end in time, or fail, leave the step, and with them all
  // others of their sequences. True: some did.
  bool wait_before(uint32_t layer);

  // Waits for what is no transfer, within the bounds of the step and counted like one: `wait` blocks no
  // longer than it is told, and says whether the thing has come. Returns that.
  bool wait_for(const std::function<bool(Nanos patience)>& wait);
  // The slice leaves the step in the middle of a layer, and with it all others of its sequence. lost: see
  // StepResult::lost_remote.
  void leave(uint32_t slice, bool lost);

  // From now on nothing is waited for: see Executor::give_up_waiting(). Any thread.
  void give_up_waiting() { patient_ = false; }

  bool any_deferred() const { return deferred_count_ > 0; }
  bool all_deferred() const { return any_deferred() && deferred_count_ == deferred_.size(); }
  bool deferred(size_t slice) const { return deferred_[slice] != 0; }

  // So long it has waited.
  Nanos stalled() const { return stalled_; }

  // The step has ended, in whatever way: fires what is left, since the map counts on the end of each, and
  // reports.
  void end(StepResult& result);

 private:
  void fire(StepMoment moment);
  std::span<const TransferWait> waits_of(uint32_t layer) const;
  // What is left of the time that the step may wait.
  Nanos patience() const;
  // All slices of a sequence.
  void defer(SeqId seq);

  Link* const link_;
  const Clock& clock_;
  std::atomic<bool> patient_{true};

  // Of the step at hand.
  const Step* step_ = nullptr;
  std::vector<Firing> firings_;
  size_t next_firing_ = 0;
  std::vector<uint8_t> deferred_;  // by slice
  size_t deferred_count_ = 0;
  Nanos stalled_ = 0;
  std::vector<SeqId> lost_;
  // Sequences that the step at hand deferred of its own accord, and begin() reads for the next step.
  std::vector<SeqId> deferred_here_;
};

}  // namespace kvasir
