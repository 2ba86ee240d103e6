#include "cache/sequences/promises.h"

#include <algorithm>

#include "base/check.h"

namespace kvasir {

void Promises::add(const Promise& p) {
  const size_t t = index_of(p.tier);
  switch (p.kind) {
    case Promise::Kind::kReserve:
      total_[t] += p.cells - reserved_[t];
      reserved_[t] = p.cells;
      return;
    case Promise::Kind::kOwn:
      total_[t] += p.cells;
      break;
    case Promise::Kind::kFromReserve:
      KV_CHECK(reserved_[t] >= p.cells, "cells={} reserved={}", p.cells, reserved_[t]);
      reserved_[t] -= p.cells;
      break;
    case Promise::Kind::kLoan: {
      uint32_t& hosts = of_[p.from][t];
      KV_CHECK(hosts >= p.cells, "host={} cells={} promised={}", raw(p.from), p.cells, hosts);
      hosts -= p.cells;
      claims_.push_back({p.owner, p.from, p.cells, p.due_tokens, p.tier, false});
      break;
    }
    case Promise::Kind::kRelease:
      claims_.push_back({p.from, p.owner, p.cells, 0, p.tier, false});
      return;
  }
  of_[p.owner][t] += p.cells;
}

void Promises::draw(SeqId seq, Tier tier, uint32_t cells) {
  ByTier* const promised = of_.find(seq);
  if (!promised) return;
  const uint32_t drawn = std::min(cells, (*promised)[index_of(tier)]);
  (*promised)[index_of(tier)] -= drawn;
  total_[index_of(tier)] -= drawn;
}

void Promises::end(SeqId seq) {
  for (Tier tier : kAllTiers) draw(seq, tier, UINT32_MAX);
  of_.erase(seq);
  pass_on_loans(seq);
  std::erase_if(claims_, [&](const Claim& c) { return c.creditor == seq || c.cells == 0; });
  for (Claim& c : claims_) c.called |= c.debtor == seq;
}

// Cells that the sequence borrowed and lent on are now owed to its own creditors, when these need them.
void Promises::pass_on_loans(SeqId seq) {
  for (size_t i = claims_.size(); i-- > 0;) {
    Claim& onward = claims_[i];
    if (onward.creditor != seq || onward.due_tokens == 0 || onward.called) continue;
    for (size_t k = 0, all = claims_.size(); k < all && claims_[i].cells > 0; ++k) {
      Claim& loan = claims_[k];
      const bool same =
          loan.debtor == seq && loan.due_tokens > 0 && !loan.called && loan.tier == claims_[i].tier;
      // A sequence owes nothing to itself: the loan has come home.
      if (!same || loan.creditor == claims_[i].debtor) continue;
      const uint32_t cells = std::min(loan.cells, claims_[i].cells);
      loan.cells -= cells;
      claims_[i].cells -= cells;
      claims_.push_back({claims_[i].debtor, loan.creditor, cells, loan.due_tokens, loan.tier, false});
    }
  }
}

std::vector<Promises::Settled> Promises::settle(std::array<int64_t, kTiers> available) {
  std::vector<Settled> settled;
  for (Claim& c : claims_) {
    if (!c.called) continue;
    const size_t t = index_of(c.tier);
    const auto cells = static_cast<uint32_t>(std::clamp<int64_t>(available[t], 0, c.cells));
    if (cells == 0) continue;
    available[t] -= cells;
    c.cells -= cells;
    of_[c.creditor][t] += cells;
    total_[t] += cells;
    settled.push_back({c.creditor, c.tier, cells});
  }
  std::erase_if(claims_, [](const Claim& c) { return c.called && c.cells == 0; });
  return settled;
}

std::vector<SeqId> Promises::give_up(Tier tier, uint32_t missing) {
  const size_t t = index_of(tier);
  const auto lower = [&](uint32_t& promised) {
    const uint32_t by = std::min(promised, missing);
    promised -= by;
    total_[t] -= by;
    missing -= by;
    return by > 0;
  };
  lower(reserved_[t]);
  std::vector<SeqId> latest;
  for (const auto& [seq, cells] : of_) {
    if (cells[t] > 0) latest.push_back(seq);
  }
  std::sort(latest.begin(), latest.end(), [](SeqId a, SeqId b) { return raw(a) > raw(b); });
  std::erase_if(latest, [&](SeqId seq) { return !lower(of_[seq][t]); });
  return latest;
}

Promises::ByTier Promises::of(SeqId seq) const {
  const ByTier* const promised = of_.find(seq);
  return promised ? *promised : ByTier{};
}

Status Promises::check_integrity() const {
  ByTier sum = reserved_;
  for (const auto& [seq, cells] : of_) {
    for (size_t t = 0; t < kTiers; ++t) sum[t] += cells[t];
  }
  if (sum != total_) return error(ErrorCode::kCorrupt, "promises are counted wrongly");
  for (const Claim& c : claims_) {
    if (c.cells > 0) continue;
    return error(ErrorCode::kCorrupt, "a claim of {} on {} of no cells", raw(c.creditor), raw(c.debtor));
  }
  return {};
}

}  // namespace kvasir
