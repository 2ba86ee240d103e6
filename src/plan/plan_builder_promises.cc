// PlanBuilder: promises of cells, their owners and their lenders.
#include <algorithm>

#include "base/check.h"
#include "plan/plan_builder.h"
#include "plan/plan_trial.h"

namespace kvasir {

uint32_t PlanBuilder::promised(const SeqView& seq, Tier tier) const {
  const PlanState::Seq* s = state_.find(seq.id);
  return (s ? s->promised : seq.promised_cells)[index_of(tier)];
}

uint32_t PlanBuilder::blocks(const SeqView& seq) const {
  const PlanState::Seq* s = state_.find(seq.id);
  return s ? s->blocks + s->new_blocks : seq.blocks;
}

bool PlanBuilder::can_stop(const SeqView& seq) const {
  const PlanState::Seq* s = state_.find(seq.id);
  // Cells that it gives up once they have been copied would be given up twice.
  return !s || (!s->bound && !s->has_rows && !s->stopped && !s->releases);
}

void PlanBuilder::promise(const SeqView& seq, uint32_t cells, Tier tier) {
  if (cells > 0) add(Promise{seq.id, cells, tier});
}

bool PlanBuilder::promise_own(const SeqView& seq, uint32_t cells, Tier tier) {
  if (ledger(tier).available() < cells) return false;
  KV_CHECK(!state_.seq(seq).stopped, "seq={}", raw(seq.id));
  promise(seq, cells, tier);
  return true;
}

uint32_t PlanBuilder::set_reserve(uint32_t cells, Tier tier) {
  const uint32_t now = reserve(tier);
  const auto room = static_cast<uint32_t>(std::clamp<int64_t>(ledger(tier).available(), 0, UINT32_MAX / 2));
  cells = std::min(cells, now + room);
  if (cells != now) add(Promise{SeqId{}, cells, tier, Promise::Kind::kReserve});
  return cells;
}

bool PlanBuilder::draw_reserve(const SeqView& seq, uint32_t cells, Tier tier) {
  if (cells == 0 || cells > reserve(tier)) return cells == 0;
  KV_CHECK(!state_.seq(seq).stopped, "seq={}", raw(seq.id));
  add(Promise{seq.id, cells, tier, Promise::Kind::kFromReserve});
  return true;
}

bool PlanBuilder::lend(const SeqView& host, const SeqView& guest, uint32_t cells, uint32_t due_tokens,
                       Tier tier) {
  KV_CHECK(host.id != guest.id && due_tokens > host.known_tokens, "host={} guest={} due={} known={}",
           raw(host.id), raw(guest.id), due_tokens, host.known_tokens);
  if (cells == 0 || promised(host, tier) < cells) return cells == 0;
  KV_CHECK(!state_.seq(host).stopped && !state_.seq(guest).stopped, "host={} guest={}", raw(host.id),
           raw(guest.id));
  add(Promise{guest.id, cells, tier, Promise::Kind::kLoan, host.id, due_tokens});
  return true;
}

bool PlanBuilder::admit_guest(const SeqView& host, const SeqView& guest, uint32_t cells, uint32_t due_tokens,
                              const AdmitOptions& options) {
  Trial trial(*this, {&host, &guest});
  if (!lend(host, guest, cells, due_tokens) || !admit(guest, options)) return false;
  trial.keep();
  return true;
}

void PlanBuilder::promise_release(const SeqView& of, const SeqView& seq, uint32_t cells, Tier tier) {
  KV_CHECK(of.id != seq.id, "seq={}", raw(seq.id));
  if (cells == 0) return;
  KV_CHECK(!state_.seq(of).stopped && !state_.seq(seq).stopped, "of={} seq={}", raw(of.id), raw(seq.id));
  add(Promise{seq.id, cells, tier, Promise::Kind::kRelease, of.id});
}

// This plan may not use the cells that become free when a debtor stops: its creditors get them in the next
// plan. Called after the cells have been given up.
void PlanBuilder::keep_for_creditors(const SeqView& seq) {
  for (const Claim& claim : view_.claims) {
    if (claim.debtor != seq.id) continue;
    CellLedger& tier = state_.ledger(claim.tier);
    tier.take(static_cast<uint32_t>(std::clamp<int64_t>(tier.available(), 0, claim.cells)));
  }
}

}  // namespace kvasir
