#include "sched/mechanisms/swap_or_recompute.h"

#include <cmath>
#include <limits>

namespace kvasir {

double swap_seconds(const View& view, const SeqView& seq) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const Tier to = view.slower_tier();
  if (view.total_cells(to) == 0) return kNever;
  const LinkCost& out = view.costs.links[index_of(Tier::kDevice)][index_of(to)];
  const LinkCost& in = view.costs.links[index_of(to)][index_of(Tier::kDevice)];
  if (out.seconds_per_byte <= 0 || in.seconds_per_byte <= 0) return kNever;
  const auto bytes =
      static_cast<double>(uint64_t{seq.own_kv_cells(Tier::kDevice)} * view.geometry.kv_cell_bytes());
  return out.seconds(bytes) + in.seconds(bytes);
}

double recompute_seconds(const View& view, const SeqView& seq) {
  return view.costs.known() ? view.costs.prefill_seconds(seq.ready_tokens) : 0;
}

void preempt_by(PreemptionStrategy strategy, const View& view, const SeqView& seq, PlanBuilder& builder) {
  bool swap = strategy == PreemptionStrategy::kSwap;
  Reason why{Cause::kSwaps, seq.id};
  if (strategy == PreemptionStrategy::kCheaper) {
    why.a = swap_seconds(view, seq);
    why.b = recompute_seconds(view, seq);
    swap = why.a < why.b;
  }
  const bool was_compared = std::isfinite(why.a) && why.a > 0 && view.costs.known();
  if (!swap) {
    why.cause = Cause::kRecomputes;
    builder.preempt_and_drop(seq);
  } else if (!builder.preempt_and_offload(seq)) {
    return builder.preempt_and_drop(seq);  // there is no room
  }
  if (was_compared) builder.because(why);
}

}  // namespace kvasir
