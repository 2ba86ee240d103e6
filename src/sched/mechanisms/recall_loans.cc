#include "sched/mechanisms/recall_loans.h"

#include <algorithm>

namespace kvasir {

uint32_t recall_loans(const View& view, PlanBuilder& builder) {
  uint32_t preempted = 0;
  const auto running = [&](SeqId id) {
    return std::find_if(view.running.begin(), view.running.end(),
                        [&](const SeqView& s) { return s.id == id; });
  };
  for (const Claim& claim : view.claims) {
    if (claim.due_tokens == 0 || claim.called || builder.preempted(claim.debtor)) continue;
    const auto guest = running(claim.debtor);
    const auto host = running(claim.creditor);
    if (guest == view.running.end() || host == view.running.end()) continue;
    if (host->known_tokens < claim.due_tokens) continue;
    builder.preempt_and_drop(*guest);
    ++preempted;
  }
  return preempted;
}

}  // namespace kvasir
