#include "sched/mechanisms/chunk_prefills.h"

#include <algorithm>

#include "sched/mechanisms/refused.h"

namespace kvasir {

uint32_t chunk_room(const View& view, const PlanBuilder& builder, uint32_t threshold) {
  const uint32_t budget = view.limits.max_num_batched_tokens;
  const uint32_t left = budget - std::min(budget, builder.planned_tokens());
  return threshold == 0 ? left : std::min(left, threshold);
}

void continue_chunks(const View& view, const std::vector<const SeqView*>& running, uint32_t threshold,
                     PlanBuilder& builder) {
  for (const SeqView* seq : running) {
    if (seq->decoding() || builder.preempted(seq->id)) continue;
    const uint32_t room = chunk_room(view, builder, threshold);
    if (room == 0) break;
    builder.prefill(*seq, room);
  }
}

bool admit_chunk(const View& view, const SeqView& seq, uint32_t threshold, uint32_t spare_blocks,
                 PlanBuilder& builder) {
  const uint32_t room = chunk_room(view, builder, threshold);
  if (room == 0) return false;
  // Beside nothing else even a sequence that needs every block is admitted.
  const AdmitOptions options{.spare_blocks = builder.running_seqs() == 0 ? 0 : spare_blocks};
  if (!builder.admit(seq, options)) return refused(view, seq, options, builder);
  builder.prefill(seq, room);
  return true;
}

}  // namespace kvasir
