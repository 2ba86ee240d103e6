#include "cluster/protocol/rmanager.h"

#include <algorithm>
#include <utility>

#include "base/mutant.h"
#include "cluster/protocol/cluster.pb.h"
#include "cluster/protocol/debt_ledger.h"

namespace kvasir::cluster {

bool RManager::obeys(const PeerId& from, uint64_t term) const {
  return mutant(Mutant::kOldTermObeyed) || (term == term_ && from == leader_);
}

void RManager::leader(const PeerId& peer, uint64_t term, Nanos now) {
  if (term <= term_) return;
  leader_ = peer;
  term_ = term;
  settlement_.reset();
  lender_.end_settling(now);
  if (leaving_) lender_.recall(UINT32_MAX, now);
  heartbeat(now);
  borrower_.leader(peer, term, now);
}

Status RManager::handle(const PeerId& from, const wire::Ask& message, Nanos now) {
  if (settings_.lend_to_creditors || !borrower_.contracts().contains(from))
    return lender_.handle(from, message, now);
  lender_.refuse(from, message.ask());
  return {};
}

// One that answers late may have borrowed of us since it was asked.
Status RManager::handle(const PeerId& from, const wire::Granted& message, Nanos now) {
  const ContractRef loan = {from, message.contract()};
  const bool debtor = !settings_.lend_to_creditors && lender_.by_debtor().contains(from);
  if (!debtor || borrower_.asks(from, message.ask()) || borrower_.held(loan))
    return borrower_.handle(from, message, now);
  borrower_.decline(loan);
  return {};
}

Status RManager::handle(const PeerId& from, const wire::Standing& message, Nanos now) {
  if (!obeys(from, message.term())) return {};
  Nanos mine = lender_.own().blocks > 0 ? lender_.own().since : INT64_MAX;
  if (borrower_.wanted().most > 0) mine = std::min(mine, borrower_.wanted().since);
  lender_.handle(message, mine, now);
  return {};
}

// ---------------------------------------------------------------- cycles of debts

Status RManager::handle(const PeerId& from, const wire::Settle& message, Nanos now) {
  if (!obeys(from, message.term())) return {};
  if (settlement_ || leaving_ || !directory_) {
    if (!settlement_ || settlement_->id != message.settlement()) report(message.settlement(), 0);
    return {};
  }
  settlement_ = {message.settlement(), now + settings_.settle_limit};
  lender_.settle(get(message.debtor()), message.blocks(), settings_.settle_limit, now);
  return {};
}

void RManager::end_settlement(Nanos now) {
  const uint64_t id = std::exchange(settlement_, std::nullopt)->id;
  report(id, lender_.end_settling(now));
  if (leaving_) lender_.recall(UINT32_MAX, now);
}

void RManager::report(uint64_t settlement, uint32_t blocks) {
  wire::Envelope message;
  message.mutable_settled()->set_term(term_);
  message.mutable_settled()->set_settlement(settlement);
  message.mutable_settled()->set_blocks(blocks);
  // A leader that does not hear it has a deadline.
  (void)post_.send(leader_, message);
}

// ---------------------------------------------------------------- members

void RManager::lost(const PeerId& peer, Nanos now) {
  lender_.debtor_lost(peer);
  borrower_.creditor_lost(peer, now);
}

void RManager::allow_contracts(Nanos now) {
  lender_.set_lending(directory_ && !leaving_);
  borrower_.set_borrowing(directory_ && !leaving_, now);
}

void RManager::directory(bool reached, Nanos now) {
  directory_ = reached;
  allow_contracts(now);
}

void RManager::leave(Nanos now) {
  if (leaving_) return;
  leaving_ = true;
  allow_contracts(now);
  borrower_.vacate_all();
  borrower_.want({}, now);
  lender_.recall(UINT32_MAX, now);
}

bool RManager::gone() const {
  return leaving_ && lender_.lent_blocks() == 0 && lender_.pinned_leftovers() == 0 &&
         borrower_.contracts().empty();
}

// ---------------------------------------------------------------- heartbeats

void RManager::heartbeat(Nanos now) {
  next_heartbeat_ = now + settings_.heartbeat;
  last_heartbeat_ = now;
  told_room_ = lender_.room_now();
  wire::Envelope message;
  wire::Heartbeat* body = message.mutable_heartbeat();
  body->set_term(term_);
  body->set_free(memory_.free_blocks());
  body->set_total(memory_.total_blocks());
  body->set_room(told_room_);
  body->set_lendable(lender_.lendable());
  body->set_device(settings_.device);
  body->set_location(settings_.location);
  for (const auto& [debtor, blocks] : lender_.by_debtor()) {
    wire::Debt* debt = body->add_lent();
    put(debtor, debt->mutable_peer());
    debt->set_blocks(blocks);
  }
  for (const auto& [creditor, blocks] : borrower_.by_creditor()) {
    wire::Debt* debt = body->add_owed();
    put(creditor, debt->mutable_peer());
    debt->set_blocks(blocks);
  }
  std::vector<Due> due;
  for (const auto& [id, contract] : lender_.contracts()) {
    if (contract.due != INT64_MAX && !mutant(Mutant::kDueUntold))
      due.push_back({contract.due, contract.lent});
  }
  for (const Due& each : joined_due(std::move(due), settings_.heartbeat)) {
    wire::Due* told = body->add_due();
    told->set_blocks(each.blocks);
    told->set_at_ns(each.at);
  }
  if (lender_.own().blocks > 0) {
    body->set_own(lender_.own().blocks);
    body->set_own_since_ns(lender_.own().since);
  }
  body->set_now_ns(now);
  if (borrower_.wanted().most > 0) borrower_.fill(body->mutable_borrow(), now);
  // The next one says it all again.
  (void)post_.send(leader_, message);
}

void RManager::after(Nanos now) {
  if (settlement_ && lender_.settled()) end_settlement(now);
  // Room that somebody waits for is told sooner.
  if (term_ != 0 && lender_.awaited().blocks > 0 && lender_.room_now() > told_room_)
    next_heartbeat_ = std::min(next_heartbeat_, last_heartbeat_ + settings_.heartbeat / 4);
}

void RManager::tick(Nanos now) {
  if (settlement_ && now >= settlement_->until) end_settlement(now);
  if (!settings_.lend_to_creditors) {
    for (const auto& [creditor, contracts] : borrower_.contracts()) lender_.forget_late(creditor);
  }
  lender_.tick(now);
  borrower_.tick(now);
  if (now >= next_heartbeat_) heartbeat(now);
}

Nanos RManager::next_deadline() const {
  Nanos next = std::min({lender_.next_deadline(), borrower_.next_deadline(), next_heartbeat_});
  if (settlement_) next = std::min(next, settlement_->until);
  return next;
}

std::string RManager::describe() const {
  std::string out = fmt::format("rmanager: leader {} term {} heartbeat {} after {} with {}{}{}\n",
                                name_of(leader_), term_, next_heartbeat_, last_heartbeat_, told_room_,
                                directory_ ? "" : " no directory", leaving_ ? " leaving" : "");
  if (settlement_) out += fmt::format("  settles {} until {}\n", settlement_->id, settlement_->until);
  return out + lender_.describe() + borrower_.describe();
}

}  // namespace kvasir::cluster
