#include "sched/policies/auto_reasons.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sched/mechanisms/token_due.h"

namespace kvasir {
namespace {

constexpr double kNobodysGap = std::numeric_limits<double>::infinity();

double finite(double seconds) {
  return std::isfinite(seconds) ? seconds : 0;
}

}  // namespace

Reason why_preempted(const AutoRequest& victim, SeqId other) {
  const SeqId seq = victim.seq->id;
  if (victim.keeps == Keeps::kLate) return {Cause::kIsLate, seq, other};
  if (victim.keeps == Keeps::kCanWait && std::isfinite(victim.left_s)) {
    return {Cause::kCanWait, seq, other, victim.left_s};
  }
  return {Cause::kCostliest, seq, other, victim.finish_s};
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
  const uint32_t all = view.geometry.blocks_for(seq.known_tokens);
  const uint32_t has = seq.resident_blocks + seq.cached_resident_cells / view.geometry.groups();
  const auto room = static_cast<double>(std::max<int64_t>(0, builder.available_blocks() - spare));
  return {Cause::kNoMemory, seq.id, {}, static_cast<double>(all - std::min(all, has)), room};
}

Reason why_no_time(const AutoRequest& r, const AutoRequests& requests, double otherwise_s,
                   const PlanBuilder& builder) {
  Reason why{.cause = Cause::kNoTimeForAll, .seq = r.seq->id, .a = kNobodysGap};
  const auto count = [&](const AutoRequest& member) {
    const double allowed_s = member.late ? kNobodysGap : allowed_gap(member.seq->slo);
    const double gap_s = std::isinf(allowed_s) ? otherwise_s : allowed_s;
    if (gap_s >= why.a) return;
    why.a = gap_s;
    why.other = std::isinf(allowed_s) ? SeqId{} : member.seq->id;
  };
  for (const AutoRequest& member : requests.running) {
    if (!builder.preempted(member.seq->id)) count(member);
  }
  count(r);
  if (why.other != SeqId{}) why.cause = Cause::kNoTime;
  return why;
}

}  // namespace kvasir
