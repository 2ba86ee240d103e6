#include "sched/mechanisms/swap_in.h"

#include <algorithm>

#include "sched/mechanisms/refused.h"

namespace kvasir {
namespace {

// A history that comes back to the device is not staged: only a sequence that streams depends on the ring.
bool can_come_back(const SeqView& seq, const PlanBuilder& builder) {
  return builder.kv_placement(seq).streams ? builder.can_run(seq) : !seq.stalled && !seq.tail_busy;
}

bool plan_rows(const View& view, const SeqView& seq, const RowOptions& options, PlanBuilder& builder) {
  if (seq.decoding()) return builder.decode(seq, options);
  const uint32_t budget = view.limits.max_num_batched_tokens;
  return builder.prefill(seq, std::max(1u, budget - std::min(budget - 1, builder.planned_tokens())),
                         options) > 0;
}

}  // namespace

bool any_swapped_out(const View& view) {
  return std::any_of(view.waiting.begin(), view.waiting.end(), [](const SeqView& s) { return s.blocks > 0; });
}

uint32_t swap_in(const View& view, uint32_t watermark, PlanBuilder& builder) {
  std::vector<const SeqView*> all;
  for (const SeqView& seq : view.waiting) all.push_back(&seq);
  return swap_in(view, all, watermark, builder);
}

uint32_t swap_in(const View& view, const std::vector<const SeqView*>& waiting, uint32_t watermark,
                 PlanBuilder& builder, const std::function<RowOptions(const SeqView&)>& rows) {
  uint32_t admitted = 0;
  for (const SeqView* seq : waiting) {
    if (seq->blocks == 0 || !can_come_back(*seq, builder)) continue;
    const RowOptions options = rows ? rows(*seq) : RowOptions{};
    const AdmitOptions into{.spare_blocks = builder.running_seqs() == 0 ? 0 : watermark};
    if (!builder.admit(*seq, into)) {
      refused(view, *seq, into, builder);
      break;
    }
    ++admitted;
    if (!plan_rows(view, *seq, options, builder) && rows) plan_rows(view, *seq, {}, builder);
  }
  return admitted;
}

}  // namespace kvasir
