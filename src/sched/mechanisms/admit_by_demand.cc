#include "sched/mechanisms/admit_by_demand.h"

#include <algorithm>

#include "sched/mechanisms/continue_running.h"
#include "sched/mechanisms/decode_in_order.h"
#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/mechanisms/refused.h"

namespace kvasir {
namespace {

bool admit_one(const View& view, const SeqView& seq, uint32_t total_tokens, PlanBuilder& builder) {
  const uint32_t rows = seq.decoding() ? 1 : seq.tokens_to_compute() - seq.cached_tokens;
  const bool first = builder.planned_tokens() == 0;
  if (!first && builder.planned_tokens() + rows > view.limits.max_num_batched_tokens) return false;
  if (!builder.admit(seq, {.total_tokens = total_tokens})) return false;
  return seq.decoding() ? builder.decode(seq) : builder.prefill(seq, rows) > 0;
}

}  // namespace

void admit_or_go_on(const View& view, const AdmissionByDemand& admission, PlanBuilder& builder) {
  if (!any_prefilling(view)) {
    for (const SeqView* seq : admission.order) {
      if (admit_one(view, *seq, admission.total_tokens(*seq), builder)) continue;
      if (seq == admission.order.front()) {
        refused(view, *seq, {.total_tokens = admission.total_tokens(*seq)}, builder);
      }
      if (!admission.first_fit) break;
    }
    if (builder.work().prefill_rows > 0) return;
  }
  const std::vector<const SeqView*> running = by_arrival(view.running);
  decode_in_order(running, builder);
  for (const SeqView* seq : running) {
    if (!seq->decoding() && !builder.preempted(seq->id)) builder.prefill(*seq, seq->tokens_to_compute());
  }
}

std::vector<const SeqView*> overrun(const View& view, const PlanBuilder& builder) {
  std::vector<const SeqView*> out;
  for (const SeqView& seq : view.running) {
    // Rows that were deferred are planned again without what they had drawn of the promise.
    const bool deferred = seq.stalled || seq.deferrals > 0;
    if (wants_block(view, seq) && !deferred && !builder.kv_placement(seq).streams && builder.can_stop(seq)) {
      out.push_back(&seq);
    }
  }
  return out;
}

Reason outgrew(const View& view, const SeqView& seq) {
  const uint32_t has = seq.blocks + seq.promised(Tier::kDevice) / view.geometry.groups();
  const uint32_t needs = view.geometry.blocks_for(seq.known_tokens);
  return {Cause::kOutgrew,
          seq.id,
          {},
          static_cast<double>(needs - std::min(needs, has)),
          static_cast<double>(has)};
}

}  // namespace kvasir
