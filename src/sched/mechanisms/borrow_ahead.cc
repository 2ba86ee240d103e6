#include "sched/mechanisms/borrow_ahead.h"

#include <algorithm>

namespace kvasir {

uint32_t cells_needed_soon(const View& view, const BorrowAhead& rule) {
  const CacheGeometry& g = view.geometry;
  uint32_t blocks = 0;
  for (const SeqView& seq : view.running) {
    const uint32_t end = std::min(seq.max_total_tokens, seq.known_tokens + rule.ahead_tokens);
    const uint32_t covered = seq.blocks + seq.promised(Tier::kDevice) / g.groups();
    const uint32_t needed = g.blocks_for(end);
    blocks += needed - std::min(needed, covered);
  }
  return blocks * g.groups();
}

void borrow_ahead(const View& view, const BorrowAhead& rule, PlanBuilder& builder) {
  if (view.peers.most_borrowed == 0) return;
  const int64_t here = view.device.available_cells();
  const int64_t there = std::max<int64_t>(0, view.host.available_cells());
  int64_t wanted = std::max<int64_t>(0, cells_needed_soon(view, rule) - std::max<int64_t>(0, here));
  if (!view.waiting.empty()) wanted += builder.slower_cells_to_come(view.waiting.front());
  const int64_t missing = wanted - there - view.peers.asked;
  if (missing > 0) {
    builder.borrow(static_cast<uint32_t>(std::min<int64_t>(missing, view.peers.most_borrowed)));
    return;
  }
  // As much again as is wanted soon stays, so that nothing is given back only to be asked for in the next
  // step.
  const int64_t spare = there - 2 * std::max<int64_t>(wanted, cells_needed_soon(view, rule));
  if (spare > 0 && view.peers.asked == 0) {
    builder.give_back(static_cast<uint32_t>(std::min<int64_t>(spare, view.peers.borrowed)));
  }
}

}  // namespace kvasir
