#include "sched/mechanisms/admit_prompts.h"

#include "sched/mechanisms/decode_or_preempt.h"

namespace kvasir {

uint32_t admission_watermark(const View& view) {
  return view.total_cells(Tier::kDevice) / view.geometry.groups() / 100;
}

bool admit_prompts(const View& view, PlanBuilder& builder) {
  // With a step in flight, or transfers, the blocks of a preempted sequence come later than the decode that
  // they are for: without this, the sequence would be admitted into them again.
  const bool late = view.steps_in_flight > 0 || view.total_cells(Tier::kHost) > 0;
  const uint32_t awaited = late ? blocks_wanted(view) : 0;
  for (const SeqView& seq : view.waiting) {
    const uint32_t tokens = seq.known_tokens - seq.cached_tokens;
    const bool first = builder.planned_tokens() == 0;
    if (!first && builder.planned_tokens() + tokens > view.limits.max_num_batched_tokens) break;
    // Beside nothing else even a sequence that needs every block is admitted.
    const uint32_t watermark = builder.running_seqs() == 0 ? 0 : admission_watermark(view);
    if (!builder.admit(seq, {watermark + awaited})) break;
    builder.prefill(seq, tokens);
  }
  return builder.planned_tokens() > 0;
}

}  // namespace kvasir
