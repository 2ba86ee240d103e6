// KvCache: room that is kept for sequences, and who has a claim on whose.
#include <algorithm>

#include "base/check.h"
#include "cache/kv_cache.h"

namespace kvasir {

void KvCache::promise(const Promise& p) {
  const size_t t = index_of(p.tier);
  switch (p.kind) {
    case Promise::Kind::kReserve:
      promised_cells_[t] += p.cells;
      promised_cells_[t] -= reserved_cells_[t];
      reserved_cells_[t] = p.cells;
      return;
    case Promise::Kind::kOwn:
      promised_cells_[t] += p.cells;
      break;
    case Promise::Kind::kFromReserve:
      KV_CHECK(reserved_cells_[t] >= p.cells, "cells={} reserved={}", p.cells, reserved_cells_[t]);
      reserved_cells_[t] -= p.cells;
      break;
    case Promise::Kind::kLoan: {
      uint32_t& hosts = at(p.from).promised[t];
      KV_CHECK(hosts >= p.cells, "host={} cells={} promised={}", raw(p.from), p.cells, hosts);
      hosts -= p.cells;
      claims_.push_back({p.owner, p.from, p.cells, p.due_tokens, p.tier, false});
      break;
    }
    case Promise::Kind::kRelease:
      claims_.push_back({p.from, p.owner, p.cells, 0, p.tier, false});
      return;
  }
  at(p.owner).promised[t] += p.cells;
}

void KvCache::end_promises(SeqId id) {
  Sequence& seq = at(id);
  for (Tier tier : kAllTiers) draw(seq, tier, seq.promised[index_of(tier)]);
  pass_on_loans(id);
  std::erase_if(claims_, [&](const Claim& c) { return c.creditor == id || c.cells == 0; });
  for (Claim& c : claims_) c.called |= c.debtor == id;
}

// What it has lent on of what it had on loan is from now on owed to those who lent it, by when they need it.
void KvCache::pass_on_loans(SeqId id) {
  for (size_t i = claims_.size(); i-- > 0;) {
    Claim& onward = claims_[i];
    if (onward.creditor != id || onward.due_tokens == 0 || onward.called) continue;
    for (size_t k = 0, all = claims_.size(); k < all && claims_[i].cells > 0; ++k) {
      Claim& loan = claims_[k];
      const bool same =
          loan.debtor == id && loan.due_tokens > 0 && !loan.called && loan.tier == claims_[i].tier;
      // Nobody owes to itself: the loan has come home.
      if (!same || loan.creditor == claims_[i].debtor) continue;
      const uint32_t cells = std::min(loan.cells, claims_[i].cells);
      loan.cells -= cells;
      claims_[i].cells -= cells;
      claims_.push_back({claims_[i].debtor, loan.creditor, cells, loan.due_tokens, loan.tier, false});
    }
  }
}

std::vector<SeqId> KvCache::settle_claims() {
  std::vector<SeqId> settled;
  for (Claim& c : claims_) {
    if (!c.called) continue;
    const size_t t = index_of(c.tier);
    const auto cells =
        static_cast<uint32_t>(std::clamp<int64_t>(budget(c.tier).available_cells(), 0, c.cells));
    if (cells == 0) continue;
    c.cells -= cells;
    at(c.creditor).promised[t] += cells;
    promised_cells_[t] += cells;
    settled.push_back(c.creditor);
  }
  std::erase_if(claims_, [](const Claim& c) { return c.called && c.cells == 0; });
  return settled;
}

void KvCache::break_promises(Tier tier) {
  const size_t t = index_of(tier);
  const auto lacking = [&] {
    return static_cast<uint32_t>(std::max<int64_t>(0, -budget(tier).available_cells()));
  };
  const auto lower = [&](uint32_t& promised) {
    const uint32_t by = std::min(promised, lacking());
    promised -= by;
    promised_cells_[t] -= by;
    return by > 0;
  };
  lower(reserved_cells_[t]);
  if (lacking() == 0) return;
  std::vector<SeqId> latest;
  for (const auto& [id, seq] : sequences_) {
    if (seq.promised[t] > 0) latest.push_back(id);
  }
  std::sort(latest.begin(), latest.end(), [](SeqId a, SeqId b) { return raw(a) > raw(b); });
  for (SeqId id : latest) {
    if (lacking() == 0) return;
    if (lower(at(id).promised[t])) touched_.push_back(id);
  }
}

}  // namespace kvasir
