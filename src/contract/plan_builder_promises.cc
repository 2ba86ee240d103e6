// PlanBuilder: room that is kept, for whom, and who lends it.
#include <algorithm>

#include "base/check.h"
#include "contract/plan_builder.h"

namespace kvasir {

uint32_t PlanBuilder::promised(const SeqView& seq, Tier tier) const {
  const auto it = touched_.find(seq.id);
  return (it == touched_.end() ? seq.promised_cells : it->second.promised)[index_of(tier)];
}

uint32_t PlanBuilder::blocks(const SeqView& seq) const {
  const auto it = touched_.find(seq.id);
  return it == touched_.end() ? seq.blocks : it->second.blocks;
}

bool PlanBuilder::can_stop(const SeqView& seq) const {
  const auto it = touched_.find(seq.id);
  if (it == touched_.end()) return true;
  const Touched& t = it->second;
  // What it gives up as soon as it has been copied would be given up twice.
  return !t.in_promises && !t.has_rows && !t.gone && !t.releases;
}

// The sequence as a party to a promise that involves others, which this plan is then not to end.
PlanBuilder::Touched& PlanBuilder::party(const SeqView& seq) {
  Touched& t = state(seq);
  KV_CHECK(!t.gone, "seq={}", raw(seq.id));
  t.in_promises = true;
  return t;
}

void PlanBuilder::promise(const SeqView& seq, Touched& t, Tier tier, uint32_t cells) {
  if (cells == 0) return;
  t.promised[index_of(tier)] += cells;
  plan_.promises.push_back({seq.id, cells, tier});
}

bool PlanBuilder::promise_own(const SeqView& seq, uint32_t cells, Tier tier) {
  if (ledger(tier).available() < cells) return false;
  ledger(tier).take(cells);
  Touched& t = state(seq);
  KV_CHECK(!t.gone, "seq={}", raw(seq.id));
  promise(seq, t, tier, cells);
  return true;
}

// It stops: what it was promised before, or by this plan, is free again.
void PlanBuilder::end_own_promises(const SeqView& seq, Touched& t) {
  for (Tier tier : kAllTiers) ledger(tier).end_promise(t.promised[index_of(tier)]);
  t.promised = {};
  std::erase_if(plan_.promises, [&](const Promise& p) { return p.owner == seq.id; });
}

uint32_t PlanBuilder::set_reserve(uint32_t cells, Tier tier) {
  uint32_t& now = reserved_[index_of(tier)];
  const auto room = static_cast<uint32_t>(std::clamp<int64_t>(ledger(tier).available(), 0, UINT32_MAX / 2));
  cells = std::min(cells, now + room);
  if (cells == now) return now;
  if (cells > now) {
    ledger(tier).take(cells - now);
  } else {
    ledger(tier).end_promise(now - cells);
  }
  now = cells;
  plan_.promises.push_back({SeqId{}, cells, tier, Promise::Kind::kReserve});
  return now;
}

bool PlanBuilder::draw_reserve(const SeqView& seq, uint32_t cells, Tier tier) {
  uint32_t& left = reserved_[index_of(tier)];
  if (cells == 0 || cells > left) return cells == 0;
  left -= cells;
  party(seq).promised[index_of(tier)] += cells;
  plan_.promises.push_back({seq.id, cells, tier, Promise::Kind::kFromReserve});
  return true;
}

bool PlanBuilder::lend(const SeqView& host, const SeqView& guest, uint32_t cells, uint32_t due_tokens,
                       Tier tier) {
  KV_CHECK(host.id != guest.id && due_tokens > host.known_tokens, "host={} guest={} due={} known={}",
           raw(host.id), raw(guest.id), due_tokens, host.known_tokens);
  if (cells == 0 || promised(host, tier) < cells) return cells == 0;
  party(host).promised[index_of(tier)] -= cells;
  party(guest).promised[index_of(tier)] += cells;
  plan_.promises.push_back({guest.id, cells, tier, Promise::Kind::kLoan, host.id, due_tokens});
  return true;
}

bool PlanBuilder::admit_guest(const SeqView& host, const SeqView& guest, uint32_t cells, uint32_t due_tokens,
                              const AdmitOptions& options) {
  const bool host_bound = state(host).in_promises;
  const bool guest_bound = state(guest).in_promises;
  if (!lend(host, guest, cells, due_tokens)) return false;
  if (admit(guest, options)) return true;
  if (cells > 0) plan_.promises.pop_back();
  const size_t device = index_of(Tier::kDevice);
  Touched& of = state(host);
  of.promised[device] += cells;
  of.in_promises = host_bound;
  Touched& to = state(guest);
  to.promised[device] -= cells;
  to.in_promises = guest_bound;
  return false;
}

void PlanBuilder::promise_release(const SeqView& of, const SeqView& seq, uint32_t cells, Tier tier) {
  KV_CHECK(of.id != seq.id, "seq={}", raw(seq.id));
  if (cells == 0) return;
  party(of);
  party(seq);
  plan_.promises.push_back({seq.id, cells, tier, Promise::Kind::kRelease, of.id});
}

// What a debtor's end frees is not for this plan to give away: its creditors have it in the next. Called when
// the cells have been given up.
void PlanBuilder::keep_for_creditors(const SeqView& seq) {
  for (const Claim& claim : view_.claims) {
    if (claim.debtor != seq.id) continue;
    CellLedger& tier = ledger(claim.tier);
    tier.take(static_cast<uint32_t>(std::clamp<int64_t>(tier.available(), 0, claim.cells)));
  }
}

}  // namespace kvasir
