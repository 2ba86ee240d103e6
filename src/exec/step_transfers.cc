#include "exec/step_transfers.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/mutant.h"

namespace kvasir {
void StepTransfers::begin(Step& step, bool submitted_early) {
  KV_CHECK(step_ == nullptr, "step {} has not ended", raw(step_->id));
  KV_CHECK(step.is_indexed(), "step {}: its lists are not indexed by layer", raw(step.id));
  KV_CHECK(link_ || (step.transfers.empty() && step.waits.empty()),
           "step {} has transfers, but there is no link", raw(step.id));
  came_on_at_ = clock_.now();
  started_ = 0;
  deferred_.assign(step.slices.size(), 0);
  deferred_count_ = 0;
  stalled_ = 0;
  lost_.clear();
  const std::vector<SeqId> before = std::exchange(deferred_here_, {});
  step_ = &step;
  try {
    if (submitted_early) std::for_each(before.begin(), before.end(), [&](SeqId seq) { defer(seq); });
    pass(kStepBegins);
  } catch (const std::bad_alloc&) {
    step_ = nullptr;
    throw;
  }
}

void StepTransfers::pass(StepPoint point) {
  came_on_at_ = clock_.now();
  // The fault: what waits for the end of a layer's attention starts when the layer is written.
  start_first(step_->transfers_until(mutant(Mutant::kRingReusedEarly) ? point + point % 2 : point));
}

void StepTransfers::start_first(size_t count) {
  for (; started_ < count; ++started_) {
    StepTransfer& t = step_->transfers[started_];
    const TransferId id = t.transfer.id;
    link_->start(std::move(t.transfer));
    if (t.only_for != StepTransfer::kAnySlice && deferred(t.only_for)) link_->cancel(id);
  }
}

bool StepTransfers::wait_before(uint32_t layer) {
  if (mutant(Mutant::kSkippedTransferWait)) return false;
  const size_t deferred_before = deferred_count_;
  for (const TransferWait& wait : step_->waits_before(layer)) {
    if (deferred(wait.slice)) continue;
    const bool there = wait_for([&](Nanos patience) {
      const TransferState state = link_->wait(wait.transfer, patience);
      return state == TransferState::kDone || (wait.any_end && state == TransferState::kFailed);
    });
    if (!there) leave(wait.slice, /*lost=*/false);
  }
  return deferred_count_ > deferred_before;
}

Nanos StepTransfers::patience() const {
  if (!patient_) return 0;
  return step_->max_stall == INT64_MAX ? INT64_MAX : std::max<Nanos>(0, step_->max_stall - stalled_);
}

bool StepTransfers::wait_for(const std::function<bool(Nanos patience)>& wait) {
  const Nanos start = clock_.now();
  const bool there = wait(patience());
  stalled_ += clock_.now() - start;
  return there;
}

void StepTransfers::leave(uint32_t slice, bool lost) {
  const SeqId seq = step_->slices[slice].seq;
  defer(seq);
  deferred_here_.push_back(seq);
  if (lost) lost_.push_back(seq);
}

void StepTransfers::defer(SeqId seq) {
  for (size_t s = 0; s < deferred_.size(); ++s) {
    if (step_->slices[s].seq != seq || deferred(s)) continue;
    deferred_[s] = 1;
    ++deferred_count_;
    for (size_t i = 0; i < started_; ++i) {
      if (step_->transfers[i].only_for == s) link_->cancel(step_->transfers[i].transfer.id);
    }
  }
}

void StepTransfers::end(StepResult& result) {
  struct Forget {
    Step*& step;
    ~Forget() { step = nullptr; }
  } forget{step_};
  start_first(step_->transfers.size());
  for (size_t s = 0; s < deferred_.size(); ++s) {
    const SeqId seq = step_->slices[s].seq;
    const bool named =
        std::find(result.deferred.begin(), result.deferred.end(), seq) != result.deferred.end();
    if (deferred(s) && !named) result.deferred.push_back(seq);
  }
  result.lost_remote = lost_;
  result.stalled = stalled_;
}

}  // namespace kvasir
