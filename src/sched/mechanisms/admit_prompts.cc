#include "sched/mechanisms/admit_prompts.h"

#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/mechanisms/refused.h"

namespace kvasir {
namespace {

// False: the sequences behind it are not admitted either.
bool admit_prompt(const View& view, const SeqView& seq, uint32_t awaited, PlanBuilder& builder) {
  const uint32_t tokens = seq.known_tokens - seq.cached_tokens;
  const bool first = builder.planned_tokens() == 0;
  if (!first && builder.planned_tokens() + tokens > view.limits.max_num_batched_tokens) return false;
  // Beside nothing else even a sequence that needs every block is admitted.
  const uint32_t watermark = builder.running_seqs() == 0 ? 0 : admission_watermark(view);
  const AdmitOptions options{.spare_blocks = watermark + awaited};
  if (!builder.admit(seq, options)) return refused(view, seq, options, builder);
  builder.prefill(seq, tokens);
  return true;
}

}  // namespace

uint32_t admission_watermark(const View& view) {
  return view.total_cells(Tier::kDevice) / view.geometry.groups() / 100;
}

uint32_t awaited_blocks(const View& view) {
  const bool late = view.steps_in_flight > 0 || view.total_cells(Tier::kHost) > 0;
  return late ? blocks_wanted(view) : 0;
}

bool admit_prompts(const View& view, PlanBuilder& builder) {
  const uint32_t awaited = awaited_blocks(view);
  for (const SeqView& seq : view.waiting) {
    if (!admit_prompt(view, seq, awaited, builder)) break;
  }
  return builder.planned_tokens() > 0;
}

bool admit_prompts(const View& view, const std::vector<const SeqView*>& waiting, PlanBuilder& builder) {
  const uint32_t awaited = awaited_blocks(view);
  for (const SeqView* seq : waiting) {
    if (!admit_prompt(view, *seq, awaited, builder)) break;
  }
  return builder.planned_tokens() > 0;
}

}  // namespace kvasir
