#include "sched/policies/auto_reasons.h"

#include <algorithm>
#include <cmath>

#include "sched/mechanisms/refused.h"

namespace kvasir {
namespace {

double finite(double seconds) {
  return std::isfinite(seconds) ? seconds : 0;
}

}  // namespace

Reason why_preempted(const AutoRequest& victim, SeqId other) {
  const SeqId seq = victim.seq->id;
  constexpr double kBlocks = 1;
  if (victim.keeps == Keeps::kLate) return {Cause::kIsLate, seq, other, kBlocks};
  if (victim.keeps == Keeps::kCanWait && std::isfinite(victim.left_s)) {
    return {Cause::kCanWait, seq, other, victim.left_s, kBlocks};
  }
  return {Cause::kCostliest, seq, other, victim.finish_s, kBlocks};
}

Reason why_admitted(const AutoRequest& r, bool paid) {
  const SeqId seq = r.seq->id;
  if (paid) return {Cause::kAdmittedOnCredit, seq, {}, r.busy_s};
  if (r.late) return {Cause::kAdmittedLate, seq, {}, r.finish_s};
  if (!r.bounded) return {Cause::kAdmittedWithoutBounds, seq, {}, r.finish_s};
  return {Cause::kAdmitted, seq, {}, r.finish_s, finite(r.left_s)};
}

Reason why_refused(Refusal refusal, const AutoRequest& r, uint32_t spare, const View& view,
                   const PlanBuilder& builder) {
  const SeqView& seq = *r.seq;
  if (refusal == Refusal::kSlots) {
    return {Cause::kNoPlace, seq.id, {}, static_cast<double>(builder.running_seqs())};
  }
  const auto room = static_cast<double>(std::max<int64_t>(0, builder.available_blocks() - spare));
  return {
      Cause::kNoMemory, seq.id, {}, static_cast<double>(blocks_missing(view, seq, seq.known_tokens)), room};
}

Reason why_no_time(SeqId seq, const GapBound& exceeded) {
  const Cause cause = exceeded.seq == SeqId{} ? Cause::kNoTimeForAll : Cause::kNoTime;
  return {cause, seq, exceeded.seq, exceeded.gap_s};
}

}  // namespace kvasir
