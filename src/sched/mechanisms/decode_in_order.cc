#include "sched/mechanisms/decode_in_order.h"

namespace kvasir {

void decode_in_order(const std::vector<const SeqView*>& running, PlanBuilder& builder) {
  for (const SeqView* seq : running) {
    if (!seq->decoding() || builder.preempted(seq->id) || !builder.can_run(*seq)) continue;
    if (!builder.decode(*seq)) {
      builder.because({Cause::kNoFreeBlock, seq->id, {}, 1, static_cast<double>(builder.coming_blocks())});
    }
  }
}

}  // namespace kvasir
