#include "exec/step_transfers.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/mutant.h"

namespace kvasir {
namespace {

struct ByLayer {
  bool operator()(const TransferWait& wait, uint32_t layer) const { return wait.layer < layer; }
  bool operator()(uint32_t layer, const TransferWait& wait) const { return layer < wait.layer; }
};

}  // namespace

void StepTransfers::begin(Step& step, bool submitted_early) {
  KV_CHECK(step_ == nullptr, "step {} has not ended", raw(step_->id));
  KV_CHECK(link_ || (step.firings.empty() && step.waits.empty()),
           "step {} has transfers, but there is no link", raw(step.id));
  KV_CHECK(std::is_sorted(step.firings.begin(), step.firings.end(),
                          [](const Firing& a, const Firing& b) { return a.moment < b.moment; }),
           "step {}: firings are not in the order of their moments", raw(step.id));
  KV_CHECK(std::is_sorted(step.waits.begin(), step.waits.end(),
                          [](const TransferWait& a, const TransferWait& b) { return a.layer < b.layer; }),
           "step {}: waits are not in the order of their layers", raw(step.id));
  step_ = &step;
  firings_ = std::move(step.firings);
  next_firing_ = 0;
  deferred_.assign(step.slices.size(), 0);
  deferred_count_ = 0;
  stalled_ = 0;
  lost_.clear();
  const std::vector<SeqId> before = std::exchange(deferred_here_, {});
  if (submitted_early) std::for_each(before.begin(), before.end(), [&](SeqId seq) { defer(seq); });
  pass(kStepBegins);
}

void StepTransfers::pass(StepMoment moment) {
  // What waits for the end of a layer's attention is fired when the layer is written.
  fire(mutant(Mutant::kRingReusedEarly) ? moment + moment % 2 : moment);
}

void StepTransfers::fire(StepMoment moment) {
  for (; next_firing_ < firings_.size() && firings_[next_firing_].moment <= moment; ++next_firing_) {
    const uint32_t slice = firings_[next_firing_].only_for;
    const TransferId id = firings_[next_firing_].transfer.id;
    link_->start(std::move(firings_[next_firing_].transfer));
    if (slice != Firing::kAnySlice && deferred(slice)) link_->cancel(id);
  }
}

std::span<const TransferWait> StepTransfers::waits_of(uint32_t layer) const {
  const auto [begin, end] = std::equal_range(step_->waits.begin(), step_->waits.end(), layer, ByLayer());
  return {begin, end};
}

bool StepTransfers::waits_before(uint32_t layer) const {
  return !step_->waits.empty() && !waits_of(layer).empty();
}

bool StepTransfers::wait_before(uint32_t layer) {
  if (mutant(Mutant::kSkippedTransferWait)) return false;
  const size_t deferred_before = deferred_count_;
  for (const TransferWait& wait : waits_of(layer)) {
    if (deferred(wait.slice)) continue;
    const bool there = wait_for([&](Nanos patience) {
      const TransferState state = link_->wait(wait.transfer, patience);
      return state == TransferState::kDone || (wait.over && state == TransferState::kFailed);
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
    for (size_t i = 0; i < next_firing_; ++i) {
      if (firings_[i].only_for == s) link_->cancel(firings_[i].transfer.id);
    }
  }
}

void StepTransfers::end(StepResult& result) {
  fire(UINT32_MAX);
  firings_.clear();
  for (size_t s = 0; s < deferred_.size(); ++s) {
    const SeqId seq = step_->slices[s].seq;
    const bool named =
        std::find(result.deferred.begin(), result.deferred.end(), seq) != result.deferred.end();
    if (deferred(s) && !named) result.deferred.push_back(seq);
  }
  result.lost_remote = lost_;
  result.stalled = stalled_;
  step_ = nullptr;
}

}  // namespace kvasir
