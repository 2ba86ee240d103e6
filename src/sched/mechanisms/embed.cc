#include "sched/mechanisms/embed.h"

namespace kvasir {

namespace {

// Of one that is a guest itself: its own loan is not due before the other has ended.
bool may_host(const View& view, const SeqView& host, uint32_t steps) {
  for (const Claim& claim : view.claims) {
    if (claim.debtor != host.id || claim.due_tokens == 0 || claim.called) continue;
    for (const SeqView& creditor : view.running) {
      if (creditor.id == claim.creditor && creditor.known_tokens + steps > claim.due_tokens) return false;
    }
  }
  return true;
}

}  // namespace

Host find_host(const View& view, const PlanBuilder& builder, const SeqView& guest, uint32_t cells,
               uint32_t rest_tokens, uint32_t buffer_tokens) {
  const uint32_t groups = view.geometry.groups();
  Host best;
  uint32_t least = UINT32_MAX;
  for (const SeqView& host : view.running) {
    // What this plan itself promises is not lent at once.
    if (host.promised(Tier::kDevice) < cells || host.id == guest.id || builder.preempted(host.id)) continue;
    const uint32_t promised = builder.promised(host);
    if (promised < cells || promised >= least) continue;
    const uint32_t left = (builder.blocks(host) + (promised - cells) / groups) * view.geometry.block_tokens;
    if (left <= host.known_tokens || left - host.known_tokens < rest_tokens + buffer_tokens) continue;
    if (!may_host(view, host, rest_tokens + buffer_tokens)) continue;
    least = promised;
    best = {&host, left};
  }
  return best;
}

}  // namespace kvasir
