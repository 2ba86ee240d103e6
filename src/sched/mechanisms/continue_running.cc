#include "sched/mechanisms/continue_running.h"

#include <algorithm>

namespace kvasir {

bool any_prefilling(const View& view) {
  return std::any_of(view.running.begin(), view.running.end(),
                     [](const SeqView& s) { return !s.decoding() && !s.stalled; });
}

uint32_t continue_running(const View& view, PlanBuilder& builder, PreemptBy by) {
  return continue_running(by_arrival(view.running), builder, by);
}

uint32_t continue_running(const std::vector<const SeqView*>& running, PlanBuilder& builder, PreemptBy by,
                          const VictimRule& rule) {
  const uint32_t preempted = decode_or_preempt(running, builder, by, rule);
  for (const SeqView* seq : running) {
    if (seq->decoding() || builder.has_rows(seq->id) || builder.preempted(seq->id)) continue;
    builder.prefill(*seq, seq->tokens_to_compute());
  }
  return preempted;
}

}  // namespace kvasir
