#include "sched/mechanisms/swap_in.h"

#include <algorithm>

namespace kvasir {
namespace {

// What comes back is not staged: only one that streams depends on the ring.
bool can_come_back(const SeqView& seq, const PlanBuilder& builder) {
  return builder.residence(seq).streams ? builder.can_run(seq) : !seq.stalled && !seq.tail_busy;
}

// The first does not fit though nothing runs and nothing is on its way: others hold what it needs.
void make_room(const View& view, const SeqView& first, PlanBuilder& builder) {
  for (size_t i = view.waiting.size(); i-- > 0;) {
    const SeqView& seq = view.waiting[i];
    if (seq.blocks == 0 || seq.id == first.id) continue;
    builder.drop_waiting(seq);
    return;
  }
  // Alone, and with its cells scattered over the tiers: from the start it fits, or it would not be here.
  builder.drop_waiting(first);
}

}  // namespace

bool anyone_swapped_out(const View& view) {
  return std::any_of(view.waiting.begin(), view.waiting.end(), [](const SeqView& s) { return s.blocks > 0; });
}

uint32_t swap_in(const View& view, uint32_t watermark, PlanBuilder& builder) {
  uint32_t admitted = 0;
  for (const SeqView& seq : view.waiting) {
    if (seq.blocks == 0 || !can_come_back(seq, builder)) continue;
    const bool alone = builder.running_seqs() == 0;
    if (!builder.admit(seq, alone ? 0 : watermark)) {
      if (alone && view.steps_in_flight == 0 && view.transfers_in_flight == 0) make_room(view, seq, builder);
      break;
    }
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
