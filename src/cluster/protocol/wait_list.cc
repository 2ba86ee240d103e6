#include "cluster/protocol/wait_list.h"

#include <algorithm>
#include <set>

#include "base/mutant.h"

namespace kvasir::cluster {

void WaitList::take_out(Debtor& debtor) {
  if (!debtor.wish) return;
  order_.erase({debtor.wish->demand.since, debtor.wish->demand.debtor});
  debtor.wish.reset();
  debtor.asks = false;
}

bool WaitList::put(Wish wish, Nanos now, Nanos answer) {
  Debtor& debtor = debtors_[wish.demand.debtor];
  debtor.heard = now;
  debtor.answer = answer;
  const bool wants = wish.demand.most > 0;
  if (now < debtor.answers_until && (wish.asking || (wants && debtor.served == wish.attempt))) return false;
  const std::optional<Wish> before = debtor.wish;
  const bool asked = debtor.asks;
  take_out(debtor);
  if (!wants) return asked;
  debtor.since = wish.demand.since;
  order_.emplace(Place{wish.demand.since, wish.demand.debtor}, &debtor);
  debtor.wish = std::move(wish);
  return !before || before->attempt != debtor.wish->attempt ||
         before->demand.least != debtor.wish->demand.least ||
         before->demand.most != debtor.wish->demand.most || before->since_there != debtor.wish->since_there;
}

void WaitList::remove(const PeerId& instance) {
  std::erase_if(loans_, [&](const auto& loan) {
    return loan.second.debtor == instance || loan.second.creditor == instance;
  });
  const auto it = debtors_.find(instance);
  if (it == debtors_.end()) return;
  take_out(it->second);
  debtors_.erase(it);
}

void WaitList::expire(Nanos since, const DebtLedger& ledger, Nanos now) {
  for (auto it = debtors_.begin(); it != debtors_.end();) {
    const auto debtor = it++;
    if (debtor->second.heard < since) remove(PeerId(debtor->first));
  }
  std::set<const Loan*> gone;
  for (const Left& left : this->left(ledger, now)) {
    const LedgerEntry* creditor = ledger.find(left.loan->creditor);
    const bool back = creditor ? left.blocks == 0 && creditor->heard > left.loan->known
                               : left.end <= now || left.end == kNever;
    if (back) gone.insert(left.loan);
  }
  std::erase_if(loans_, [&](const auto& loan) { return gone.contains(&loan.second); });
}

void WaitList::clear() {
  order_.clear();
  debtors_.clear();
  loans_.clear();
}

// A heartbeat says how much a debtor still owes a creditor, not which of its loans are back. Late loans are
// taken to be back first, then those that end last. So ends may be believed too early, which keeps later
// wishes waiting, and never too late, which would delay the first wish.
std::vector<WaitList::Left> WaitList::left(const DebtLedger& ledger, Nanos now) const {
  std::vector<Left> out;
  // Those that a heartbeat knows of, by creditor and debtor.
  std::map<PeerId, std::map<PeerId, std::vector<size_t>, ByPeer>, ByPeer> told;
  for (const auto& [end, loan] : loans_) {
    const LedgerEntry* creditor = ledger.find(loan.creditor);
    if (creditor && creditor->heard > loan.made) told[loan.creditor][loan.debtor].push_back(out.size());
    out.push_back({end, &loan, loan.blocks});
  }
  for (const auto& [creditor, debtors] : told) {
    const auto& lent = ledger.find(creditor)->figures.lent;
    for (const auto& [debtor, loans] : debtors) {
      const auto there = lent.find(debtor);
      uint64_t back = 0;
      for (const size_t i : loans) back += out[i].blocks;
      back -= std::min<uint64_t>(back, there == lent.end() ? 0 : there->second);
      const auto comes_back = [&](Left& left) {
        const auto blocks = static_cast<uint32_t>(std::min<uint64_t>(back, left.blocks));
        left.blocks -= blocks;
        back -= blocks;
      };
      for (const size_t i : loans) {
        if (out[i].end <= now) comes_back(out[i]);
      }
      for (auto i = loans.rbegin(); i != loans.rend(); ++i) comes_back(out[*i]);
    }
  }
  return out;
}

WaitList::Earliest WaitList::earliest(const Demand& demand, uint32_t room, const DebtLedger& ledger,
                                      Nanos now, bool to_creditors) const {
  uint64_t sum = room;
  for (const Left& left : this->left(ledger, now)) {
    if (left.end == kNever) break;
    const LedgerEntry* creditor = ledger.find(left.loan->creditor);
    // One that has refused lends again when its blocks are back.
    if (!creditor || !ledger.may_ever_lend(*creditor, demand.debtor, to_creditors)) continue;
    sum += left.blocks;
    if (sum >= demand.least) return {std::max(left.end, now), static_cast<uint32_t>(sum - demand.least)};
  }
  return {};
}

std::vector<Turn> WaitList::serve(DebtLedger& ledger, Nanos now, bool to_creditors) {
  std::vector<Turn> out;
  std::optional<Earliest> first;  // of the wish that is waited for
  PeerId waits;
  uint64_t beside = 0;         // room that is of no use to it
  std::vector<PeerId> asking;  // those that were served in part, and go before what follows
  uint64_t open = UINT64_MAX;  // room that is of no use to them
  const auto keep_for = [&](const PeerId& debtor) {
    if (open == 0 || mutant(Mutant::kRestPassed)) return;
    asking.push_back(debtor);
    open = ledger.room_not_for(asking, to_creditors);
  };
  std::vector<Debtor*> waiting;
  for (const auto& [place, debtor] : order_) waiting.push_back(debtor);
  if (mutant(Mutant::kQueueJumped)) std::reverse(waiting.begin(), waiting.end());
  for (Debtor* each : waiting) {
    Debtor& debtor = *each;
    if (debtor.asks && now >= debtor.answers_until) take_out(debtor);  // it says again what it lacks
    if (!debtor.wish) continue;
    const Wish& wish = *debtor.wish;
    if (wish.demand.least > ledger.lendable_to(wish.demand.debtor)) continue;
    if (debtor.asks) {
      keep_for(wish.demand.debtor);
      continue;
    }
    const bool in_time = first && wish.hold && now + *wish.hold <= first->at;
    const bool behind = first && !in_time && !mutant(Mutant::kHeadDelayed);
    // Most of those that wait need no look at the creditors.
    if (ledger.room() == 0 && (first || wish.demand.least <= 1)) continue;
    if (first && wish.demand.least > (behind ? beside + first->spare : ledger.room())) continue;
    if (wish.demand.least > open && (first || wish.demand.least <= 1)) continue;
    Allocation found =
        ledger.allocate(wish.demand, to_creditors,
                        behind ? std::optional(Reservation{waits, first->spare}) : std::nullopt, asking);
    if (found.shares.empty()) {
      if (!first && wish.demand.least > 1) {
        first = earliest(wish.demand, found.room, ledger, now, to_creditors);
        waits = wish.demand.debtor;
        beside = ledger.room_not_for({&waits, 1}, to_creditors);
      }
      continue;
    }
    uint32_t got = 0;
    for (const Share& share : found.shares) {
      got += share.blocks;
      const LedgerEntry* creditor = ledger.find(share.creditor);
      if (behind && ledger.may_lend(*creditor, waits, to_creditors)) first->spare -= share.blocks;
      // The debtor asks within `answer`, and as long a message may take.
      loans_.emplace(wish.hold ? now + *wish.hold : kNever,
                     Loan{wish.demand.debtor, share.creditor, share.blocks, now, now + 2 * debtor.answer});
    }
    debtor.served = wish.attempt;
    debtor.answers_until = now + debtor.answer;
    out.push_back({wish, std::move(found.shares)});
    if (got >= wish.demand.most) {
      take_out(debtor);  // and with it the wish
      continue;
    }
    debtor.asks = true;
    debtor.wish->demand.most -= got;
    debtor.wish->demand.least = 1;
    keep_for(wish.demand.debtor);
  }
  return out;
}

const Wish* WaitList::first_but_of(const PeerId& instance, const DebtLedger& ledger) const {
  for (const auto& [place, debtor] : order_) {
    if (place.second.instance == instance.instance) continue;
    if (debtor->wish->demand.least <= ledger.lendable_to(place.second)) return &*debtor->wish;
  }
  return nullptr;
}

const Wish* WaitList::find(const PeerId& debtor) const {
  const auto it = debtors_.find(debtor);
  return it == debtors_.end() || !it->second.wish ? nullptr : &*it->second.wish;
}

std::optional<Nanos> WaitList::served_since(const PeerId& debtor) const {
  const auto it = debtors_.find(debtor);
  return it == debtors_.end() ? std::nullopt : std::optional(it->second.since);
}

std::string WaitList::describe() const {
  std::string out;
  for (const auto& [id, debtor] : debtors_) {
    out += fmt::format("  {} heard {} since {}", name_of(id), debtor.heard, debtor.since);
    if (debtor.served) out += fmt::format(" served {}, until {}", *debtor.served, debtor.answers_until);
    if (debtor.asks) out += " asks";
    if (debtor.wish) {
      const Demand& demand = debtor.wish->demand;
      out += fmt::format(" wants {}..{} for {}, attempt {}", demand.least, demand.most,
                         debtor.wish->hold.value_or(-1), debtor.wish->attempt);
    }
    out += "\n";
  }
  for (const auto& [end, loan] : loans_) {
    out += fmt::format("  {} blocks of {} to {} until {}, since {}\n", loan.blocks, name_of(loan.creditor),
                       name_of(loan.debtor), end, loan.made);
  }
  return out;
}

}  // namespace kvasir::cluster
