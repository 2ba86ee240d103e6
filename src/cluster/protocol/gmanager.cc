#include "cluster/protocol/gmanager.h"

#include <algorithm>
#include <utility>

#include "base/mutant.h"
#include "cluster/protocol/cluster.pb.h"

namespace kvasir::cluster {

void GManager::lead(uint64_t term, Nanos now) {
  if (term <= last_term_) return;
  step_down();
  term_ = term;
  last_term_ = term;
  serves_from_ = now + settings_.heartbeat + settings_.heartbeat / 2;
  next_look_ = now + settings_.heartbeat;
  next_plan_ = now + settings_.settle_period;
}

void GManager::step_down() {
  term_ = 0;
  ledger_.clear();
  wait_list_.clear();
  planned_.clear();
  running_.reset();
}

// ---------------------------------------------------------------- what instances say

Status GManager::handle(const PeerId& from, const wire::Heartbeat& message, Nanos now) {
  if (!leads() || message.term() != term_) return {};
  InstanceFigures figures{.free = message.free(),
                          .total = message.total(),
                          .room = message.room(),
                          .lendable = message.lendable(),
                          .own = message.own(),
                          .own_since = message.own_since_ns(),
                          .device = message.device(),
                          .location = message.location(),
                          .lent = {},
                          .owed = {},
                          .due = {}};
  if (std::max({figures.room, figures.free, figures.lendable}) > figures.total) {
    return error(ErrorCode::kCorrupt, "of {} blocks {} are free, and {} of {} may be lent", figures.total,
                 figures.free, figures.room, figures.lendable);
  }
  uint64_t due_blocks = 0;
  bool due_of_none = false;
  for (const wire::Due& due : message.due()) {
    due_blocks += due.blocks();
    due_of_none |= due.blocks() == 0;
  }
  if (due_of_none || due_blocks > figures.total || static_cast<size_t>(message.due_size()) > kMostDue) {
    return error(ErrorCode::kCorrupt, "of {} blocks {} are due, at {} times", figures.total, due_blocks,
                 message.due_size());
  }
  for (const wire::Debt& debt : message.lent()) figures.lent[get(debt.peer())] = debt.blocks();
  for (const wire::Debt& debt : message.owed()) figures.owed[get(debt.peer())] = debt.blocks();
  for (const wire::Due& due : message.due()) figures.due.push_back({due.at_ns(), due.blocks()});
  const bool shows_room = figures.room > 0;
  const bool other = ledger_.update(from, std::move(figures), now, message.now_ns());
  ++counts_.heartbeats;
  if (shows_room && other && !mutant(Mutant::kPushForgotten)) changed_ = true;
  KV_RETURN_IF_ERROR(take(from, message.borrow(), now));
  say_who_waits(from, now);
  return {};
}

Status GManager::handle(const PeerId& from, const wire::Borrow& message, Nanos now) {
  if (!leads() || message.term() != term_) return {};
  ++counts_.wishes;
  return take(from, message, now);
}

Status GManager::take(const PeerId& from, const wire::Borrow& message, Nanos now) {
  if (message.least() > message.most() || message.hold_ns() < 0) {
    return error(ErrorCode::kCorrupt, "it wants {} to {} blocks for {} ns", message.least(), message.most(),
                 message.hold_ns());
  }
  Wish wish;
  wish.demand = {from, std::max(message.least(), 1u), message.most(),
                 ledger_.time_of(from, message.since_ns(), message.now_ns(), now), std::nullopt};
  wish.attempt = message.attempt();
  wish.since_there = message.since_ns();
  wish.asking = message.asking();
  if (message.hold_ns() > 0) wish.demand.hold = within_range(message.hold_ns());
  changed_ |= wait_list_.put(std::move(wish), now, settings_.answer);
  return {};
}

// Which of two goes first is decided here alone.
void GManager::say_who_waits(const PeerId& to, Nanos now) {
  LedgerEntry* entry = ledger_.find(to);
  const Wish* first = wait_list_.first_but_of(to, ledger_);
  if (!first && !entry->told_who_waits) return;
  entry->told_who_waits = first != nullptr;
  wire::Envelope message;
  wire::Standing* standing = message.mutable_standing();
  standing->set_term(term_);
  if (first) {
    Nanos own = entry->figures.own > 0 ? entry->figures.own_since : INT64_MAX;
    if (const Wish* its = wait_list_.find(to)) own = std::min(own, its->demand.since);
    put(first->demand.debtor, standing->mutable_of());
    standing->set_blocks(first->demand.most);
    standing->set_waited_ns(now - first->demand.since);
    standing->set_before_yours(goes_first(first->demand.debtor, first->demand.since, to, own));
  }
  // The next one says it again.
  (void)post_.send(to, message);
}

Status GManager::handle(const PeerId&, const wire::Denied& message, Nanos) {
  if (!leads() || message.term() != term_) return {};
  ++counts_.denied;
  ledger_.refused(get(message.creditor()));
  return {};
}

void GManager::lost(const PeerId& peer, Nanos now) {
  ledger_.remove(peer);
  wait_list_.remove(peer);
  changed_ = true;  // an earlier wish of it may have held up others
  if (!running_ || std::find(running_->cycle.begin(), running_->cycle.end(), peer) == running_->cycle.end())
    return;
  running_->failed = true;
  end_settling(now);
}

// ---------------------------------------------------------------- whose turn it is

void GManager::after(Nanos now) {
  if (!leads() || now < serves_from_ || !std::exchange(changed_, false)) return;
  for (const Turn& turn : wait_list_.serve(ledger_, now, settings_.lend_to_creditors)) {
    wire::Envelope message;
    wire::Advice* advice = message.mutable_advice();
    advice->set_term(term_);
    advice->set_attempt(turn.wish.attempt);
    for (const Share& share : turn.shares) {
      wire::Advice::Share* told = advice->add_shares();
      put(share.creditor, told->mutable_creditor());
      told->set_blocks(share.blocks);
      told->set_before_own(share.before_own);
    }
    ++counts_.advised;
    // A debtor that misses it goes on saying what it wants.
    (void)post_.send(turn.wish.demand.debtor, message);
  }
}

// ---------------------------------------------------------------- cycles of debts

void GManager::plan() {
  const std::vector<PeerId> instances = ledger_.instances();
  const std::vector<Debt> debts = ledger_.debts();
  planned_.clear();
  for (const Settlement& settlement :
       plan_settlements(static_cast<uint32_t>(instances.size()), debts, settings_.settle_min)) {
    Settling planned;
    planned.blocks = settlement.blocks;
    for (const uint32_t number : settlement.cycle) planned.cycle.push_back(instances[number]);
    planned_.push_back(std::move(planned));
  }
}

void GManager::settle_next(Nanos now) {
  if (running_ || planned_.empty()) return;
  running_ = std::move(planned_.front());
  planned_.pop_front();
  const size_t size = running_->cycle.size();
  running_->id = ++last_settlement_;
  running_->reported.assign(size, false);
  running_->until = now + settings_.settle_limit + settings_.answer;
  for (size_t i = 0; i < size; ++i) {
    wire::Envelope message;
    wire::Settle* settle = message.mutable_settle();
    settle->set_term(term_);
    settle->set_settlement(running_->id);
    put(running_->cycle[(i + size - 1) % size], settle->mutable_debtor());
    settle->set_blocks(running_->blocks);
    // Of one that misses it less comes back: its creditor keeps what it owes.
    (void)post_.send(running_->cycle[i], message);
  }
}

Status GManager::handle(const PeerId& from, const wire::Settled& message, Nanos now) {
  if (!running_ || message.term() != term_ || message.settlement() != running_->id) return {};
  const auto it = std::find(running_->cycle.begin(), running_->cycle.end(), from);
  if (it == running_->cycle.end()) return {};
  running_->reported[static_cast<size_t>(it - running_->cycle.begin())] = true;
  running_->failed |= message.blocks() < running_->blocks;
  counts_.settled_blocks += message.blocks();
  if (std::find(running_->reported.begin(), running_->reported.end(), false) == running_->reported.end())
    end_settling(now);
  return {};
}

void GManager::end_settling(Nanos now) {
  ++(running_->failed ? counts_.settlements_failed : counts_.settlements);
  running_.reset();
  settle_next(now);
}

void GManager::tick(Nanos now) {
  if (!leads()) return;
  ledger_.expire(now - settings_.entry_lives);
  if (now >= next_look_) {
    wait_list_.expire(now - settings_.entry_lives);
    next_look_ = now + settings_.heartbeat;
    changed_ |= !mutant(Mutant::kPushForgotten);  // what was expected to come back may be late
  }
  if (running_ && now >= running_->until) {
    running_->failed = true;
    end_settling(now);
  }
  if (now >= next_plan_) {
    next_plan_ = now + settings_.settle_period;
    if (!running_ && directory_) plan();
  }
  settle_next(now);
}

Nanos GManager::next_deadline() const {
  if (!leads()) return INT64_MAX;
  const Nanos next = std::min(next_look_, next_plan_);
  return running_ ? std::min(next, running_->until) : next;
}

std::string GManager::describe() const {
  std::string out =
      fmt::format("gmanager: term {} of {}, serves from {}, look {}, plan {}, settlement {}{}{}\n", term_,
                  last_term_, serves_from_, next_look_, next_plan_, last_settlement_,
                  directory_ ? "" : " no directory", changed_ ? " changed" : "");
  const auto add = [&](const char* what, const Settling& s) {
    out += fmt::format("  {} {} blocks, {} until {}{}:", what, s.blocks, s.id, s.until,
                       s.failed ? " failed" : "");
    for (size_t i = 0; i < s.cycle.size(); ++i) {
      out += fmt::format(" {}{}", name_of(s.cycle[i]), i < s.reported.size() && s.reported[i] ? "!" : "");
    }
    out += "\n";
  };
  for (const Settling& planned : planned_) add("planned", planned);
  if (running_) add("settles", *running_);
  return out + wait_list_.describe() + ledger_.describe();
}

}  // namespace kvasir::cluster
