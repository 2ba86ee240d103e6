#include "cluster/protocol/wait_list.h"

#include <algorithm>
#include <tuple>

#include "base/mutant.h"

namespace kvasir::cluster {
namespace {

// When there will be enough for a wish as far as the loans' ends are known, and what will be left then.
struct Earliest {
  Nanos at = 0;
  uint32_t spare = 0;
};

Earliest earliest(const Demand& demand, uint32_t room, const DebtLedger& ledger, Nanos now,
                  bool to_creditors) {
  uint64_t sum = room;
  std::vector<Due> heap = ledger.due_for(demand.debtor, to_creditors);
  const auto later = [](const Due& a, const Due& b) {
    return std::tie(a.at, a.blocks) > std::tie(b.at, b.blocks);
  };
  std::make_heap(heap.begin(), heap.end(), later);
  for (; !heap.empty(); heap.pop_back()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Due due = heap.back();
    sum += due.blocks;
    if (sum >= demand.least) return {std::max(due.at, now), static_cast<uint32_t>(sum - demand.least)};
  }
  return {};
}

}  // namespace

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
  const auto it = debtors_.find(instance);
  if (it == debtors_.end()) return;
  take_out(it->second);
  debtors_.erase(it);
}

void WaitList::expire(Nanos since) {
  for (auto it = debtors_.begin(); it != debtors_.end();) {
    const auto debtor = it++;
    if (debtor->second.heard < since) remove(PeerId(debtor->first));
  }
}

void WaitList::clear() {
  order_.clear();
  debtors_.clear();
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
    // Nothing comes back meanwhile; and most of those that wait need no look at the creditors.
    if (ledger.room() == 0) continue;
    const bool in_time = first && wish.demand.hold && now + *wish.demand.hold <= first->at;
    const bool behind = first && !in_time && !mutant(Mutant::kHeadDelayed);
    if (first && wish.demand.least > (behind ? beside + first->spare : ledger.room())) continue;
    if (wish.demand.least > open && (first || wish.demand.least <= 1)) continue;
    Allocation found =
        ledger.allocate(wish.demand, now, to_creditors,
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
      if (!first) continue;
      if (!ledger.may_lend(*ledger.find(share.creditor), waits, to_creditors)) {
        beside -= std::min<uint64_t>(beside, share.blocks);
      } else if (behind) {
        first->spare -= share.blocks;
      }
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
                         demand.hold.value_or(-1), debtor.wish->attempt);
    }
    out += "\n";
  }
  return out;
}

}  // namespace kvasir::cluster
