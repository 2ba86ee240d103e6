#include "sched/mechanisms/swap_in.h"

#include <algorithm>

namespace kvasir {
namespace {

// What comes back is not staged: only one that streams depends on the ring.
bool can_come_back(const SeqView& seq, const PlanBuilder& builder) {
  return builder.residence(seq).streams ? builder.can_run(seq) : !seq.stalled && !seq.tail_busy;
}

}  // namespace

bool anyone_swapped_out(const View& view) {
  return std::any_of(view.waiting.begin(), view.waiting.end(), [](const SeqView& s) { return s.blocks > 0; });
}

uint32_t swap_in(const View& view, uint32_t watermark, PlanBuilder& builder) {
  uint32_t admitted = 0;
  for (const SeqView& seq : view.waiting) {
    if (seq.blocks == 0 || !can_come_back(seq, builder)) continue;
    if (!builder.admit(seq, {builder.running_seqs() == 0 ? 0 : watermark})) break;
    ++admitted;
    if (seq.decoding()) {
      builder.decode(seq);
    } else {
      builder.prefill(
          seq, std::max(1u, view.limits.max_num_batched_tokens -
                                std::min(view.limits.max_num_batched_tokens - 1, builder.planned_tokens())));
    }
  }
  return admitted;
}

}  // namespace kvasir
