#include "cluster/protocol/rmanager.h"

#include <algorithm>

#include "base/mutant.h"
#include "cluster/protocol/cluster.pb.h"

namespace kvasir::cluster {

bool RManager::obeys(const PeerId& from, uint64_t term) const {
  return mutant(Mutant::kOldTermObeyed) || (term == term_ && from == leader_);
}

void RManager::leader(const PeerId& peer, uint64_t term, Nanos now) {
  if (term <= term_) return;
  leader_ = peer;
  term_ = term;
  thaw(now);
  heartbeat(now);
  borrower_.leader(peer, term, now);
}

Status RManager::handle(const PeerId& from, const wire::Borrow& message, Nanos now) {
  if (settings_.lend_to_creditors || !borrower_.contracts().contains(from))
    return lender_.handle(from, message, now);
  lender_.refuse(from, message.attempt(), now);
  return {};
}

Status RManager::handle(const PeerId& from, const wire::Freeze& message, Nanos now) {
  if (!obeys(from, message.term())) return {};
  if (freezing_ && freezing_->settlement == message.settlement()) return {};
  bool agreed = !freezing_ && !leaving_ && directory_;
  uint32_t lent = 0;
  if (agreed) {
    Freezing freezing{.settlement = message.settlement(),
                      .debtor = get(message.debtor()),
                      .creditor = get(message.creditor()),
                      .until = now + settings_.settle_limit + settings_.answer};
    lent = lender_.freeze(freezing.debtor);
    agreed = lent > 0 && borrower_.freeze(freezing.creditor) > 0;
    if (agreed) {
      freezing_ = std::move(freezing);
    } else {
      lender_.thaw(now);
    }
  }
  wire::Envelope answer;
  wire::Frozen* frozen = answer.mutable_frozen();
  frozen->set_term(message.term());
  frozen->set_settlement(message.settlement());
  frozen->set_agreed(agreed);
  frozen->set_lent(agreed ? lent : 0);
  // A leader that does not hear it unfreezes all.
  (void)post_.send(from, answer);
  return {};
}

Status RManager::handle(const PeerId& from, const wire::Settle& message, Nanos now) {
  if (!obeys(from, message.term())) return {};
  if (!freezing_ || freezing_->settlement != message.settlement() || freezing_->settling) return {};
  freezing_->settling = true;
  lender_.settle(message.blocks(), std::max<Nanos>(freezing_->until - now, 0), now);
  return {};
}

Status RManager::handle(const PeerId& from, const wire::Unfreeze& message, Nanos now) {
  if (!obeys(from, message.term())) return {};
  if (freezing_ && freezing_->settlement == message.settlement()) thaw(now);
  return {};
}

void RManager::thaw(Nanos now) {
  if (!freezing_) return;
  freezing_.reset();
  lender_.thaw(now);
  borrower_.thaw();
  if (leaving_) lender_.recall(UINT32_MAX, now);
}

void RManager::report(bool done) {
  wire::Envelope message;
  message.mutable_settled()->set_term(term_);
  message.mutable_settled()->set_settlement(freezing_->settlement);
  message.mutable_settled()->set_done(done);
  (void)post_.send(leader_, message);
  freezing_->reported = true;
}

void RManager::after(Nanos) {
  if (freezing_ && freezing_->settling && !freezing_->reported && lender_.settled()) report(true);
}

void RManager::lost(const PeerId& peer, Nanos now) {
  if (freezing_ && (freezing_->debtor == peer || freezing_->creditor == peer || leader_ == peer)) {
    report(false);
    thaw(now);
  }
  lender_.debtor_lost(peer);
  borrower_.creditor_lost(peer, now);
}

void RManager::allow_contracts() {
  lender_.set_lending(directory_ && !leaving_);
  borrower_.set_borrowing(directory_ && !leaving_);
}

void RManager::directory(bool reached) {
  directory_ = reached;
  allow_contracts();
}

void RManager::leave(Nanos now) {
  if (leaving_) return;
  leaving_ = true;
  allow_contracts();
  borrower_.vacate_all();
  wait_for(0, now, 0, needed_since_);
  lender_.recall(UINT32_MAX, now);
}

bool RManager::gone() const {
  return leaving_ && lender_.lent_blocks() == 0 && lender_.pinned_leftovers() == 0 &&
         borrower_.contracts().empty();
}

void RManager::wait_for(uint32_t blocks, Nanos now, Nanos since, Nanos needed_since) {
  const bool begins_or_ends = (blocks > 0) != (missing_.blocks > 0);
  missing_ = {blocks, blocks > 0 ? since : 0};
  needed_since_ = needed_since;
  if (begins_or_ends) say_who_waits(now);
}

void RManager::say_who_waits(Nanos now) {
  for (const PeerId& peer : post_.peers()) {
    wire::Envelope message;
    message.mutable_waiting()->set_blocks(missing_.blocks);
    message.mutable_waiting()->set_since_ns(clock_.of(missing_.since));
    message.mutable_waiting()->set_now_ns(clock_.of(now));
    message.mutable_waiting()->set_needed_since_ns(clock_.of(needed_since_));
    // The next message repeats it, and a peer that hears none forgets it.
    (void)post_.send(peer, message);
  }
}

void RManager::heartbeat(Nanos now) {
  next_heartbeat_ = now + settings_.heartbeat;
  if (missing_.blocks > 0 || !borrower_.contracts().empty()) say_who_waits(now);
  wire::Envelope message;
  wire::Heartbeat* body = message.mutable_heartbeat();
  body->set_term(term_);
  body->set_free(memory_.free_blocks());
  body->set_total(memory_.total_blocks());
  body->set_room(lender_.room());
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
  // The next one says it all again.
  (void)post_.send(leader_, message);
}

void RManager::tick(Nanos now) {
  if (freezing_ && now >= freezing_->until) thaw(now);
  lender_.tick(now);
  borrower_.tick(now);
  if (now >= next_heartbeat_) heartbeat(now);
}

Nanos RManager::next_deadline() const {
  Nanos next = std::min({lender_.next_deadline(), borrower_.next_deadline(), next_heartbeat_});
  if (freezing_) next = std::min(next, freezing_->until);
  return next;
}

std::string RManager::describe() const {
  std::string out =
      fmt::format("rmanager: leader {} term {} heartbeat {}{}{}\n", name_of(leader_), term_, next_heartbeat_,
                  directory_ ? "" : " no directory", leaving_ ? " leaving" : "");
  if (freezing_) {
    out += fmt::format("  frozen for {}: {} and {}{}{} until {}\n", freezing_->settlement,
                       name_of(freezing_->debtor), name_of(freezing_->creditor),
                       freezing_->settling ? " settling" : "", freezing_->reported ? " reported" : "",
                       freezing_->until);
  }
  if (clock_.ahead() > 0) out += fmt::format("  its clock is {} behind\n", clock_.ahead());
  out += fmt::format("  needs what it has since {}\n", needed_since_);
  if (missing_.blocks > 0) out += fmt::format("  lacks {} since {}\n", missing_.blocks, missing_.since);
  return out + lender_.describe() + borrower_.describe();
}

}  // namespace kvasir::cluster
