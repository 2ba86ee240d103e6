#include "sched/mechanisms/decode_in_order.h"

#include "sched/mechanisms/refused.h"

namespace kvasir {

void decode_in_order(const std::vector<const SeqView*>& running, PlanBuilder& builder) {
  for (const SeqView* seq : running) {
    if (!seq->decoding() || builder.preempted(seq->id) || !builder.can_run(*seq)) continue;
    if (!builder.decode(*seq)) say_no_free_block(*seq, builder);
  }
}

}  // namespace kvasir
