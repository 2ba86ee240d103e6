// Wishes: from what is told to the leader until the creditors that it named have answered.
#include "cluster/protocol/borrower.h"

#include <algorithm>

#include "base/mutant.h"
#include "cluster/protocol/cluster.pb.h"

namespace kvasir::cluster {

void Borrower::want(const Want& want, Nanos now) {
  Want next = want;
  if (want.least > want.most) next.most = next.least = 0;  // less than that is of no use
  // Less of the same is told with the next heartbeat, and no more is ever asked for than is wanted.
  const bool more = next.most > want_.most || next.least != want_.least || next.since != want_.since ||
                    next.hold != want_.hold;
  const bool tells = next.most > 0 ? more : want_.most > 0;
  // An advice for another request, which has its own place among all, is not for this one.
  if (next.since != want_.since || next.least != want_.least) ++attempt_;
  want_ = next;
  if (tells && !round_) tell_leader(now);
}

void Borrower::fill(wire::Borrow* message, Nanos now) const {
  message->set_term(term_);
  message->set_attempt(attempt_);
  message->set_asking(round_.has_value());
  if (round_ || !borrowing_) return;
  message->set_least(want_.least);
  message->set_most(want_.most);
  message->set_since_ns(want_.since);
  message->set_now_ns(now);
  message->set_hold_ns(want_.hold);
}

void Borrower::tell_leader(Nanos now) {
  if (term_ == 0) return;
  wire::Envelope message;
  fill(message.mutable_borrow(), now);
  // The next heartbeat says it again.
  (void)post_.send(leader_, message);
}

void Borrower::leader(const PeerId& peer, uint64_t term, Nanos now) {
  leader_ = peer;
  term_ = term;
  if (want_.most > 0 && !round_) tell_leader(now);
}

Status Borrower::handle(const PeerId& from, const wire::Advice& message, Nanos now) {
  if (message.term() != term_ || from != leader_ || message.attempt() != attempt_) return {};
  if (message.shares().empty()) return error(ErrorCode::kCorrupt, "it recommends no creditor");
  if (round_ || !borrowing_) return {};
  ++attempt_;
  Round& round = round_.emplace(Round{});
  round.until = now + settings_.answer;
  uint32_t left = want_.most;
  for (const wire::Advice::Share& share : message.shares()) {
    const PeerId creditor = get(share.creditor());
    const uint32_t blocks = std::min(left, share.blocks());
    if (blocks == 0 || creditor == post_.self()) continue;
    wire::Envelope envelope;
    wire::Ask* ask = envelope.mutable_ask();
    ask->set_ask(++last_ask_);
    ask->set_blocks(blocks);
    ask->set_since_ns(want_.since);
    ask->set_now_ns(now);
    ask->set_before_own(share.before_own());
    ask->set_hold_ns(want_.hold);
    if (post_.send(creditor, envelope).ok()) {
      round.open[last_ask_] = {creditor, blocks};
      left -= blocks;
    } else {
      deny(creditor);
    }
  }
  end_round_if_answered(now);
  return {};
}

void Borrower::deny(const PeerId& creditor) {
  wire::Envelope message;
  message.mutable_denied()->set_term(term_);
  put(creditor, message.mutable_denied()->mutable_creditor());
  // A leader that does not learn of it sends the next one there, too: no harm.
  if (term_ != 0) (void)post_.send(leader_, message);
}

const Borrower::Asked* Borrower::find_ask(const PeerId& from, uint64_t ask) const {
  if (!round_) return nullptr;
  const auto it = round_->open.find(ask);
  return it == round_->open.end() || it->second.creditor != from ? nullptr : &it->second;
}

void Borrower::answered(uint64_t ask, uint32_t granted, Nanos now) {
  const auto it = round_->open.find(ask);
  if (granted < it->second.blocks) deny(it->second.creditor);
  round_->open.erase(it);
  end_round_if_answered(now);
}

uint32_t Borrower::expected() const {
  if (!round_) return 0;
  uint32_t blocks = 0;
  for (const auto& [ask, asked] : round_->open) blocks += asked.blocks;
  for (const ContractRef& ref : round_->granted) {
    if (const HeldContract* contract = held(ref)) blocks += static_cast<uint32_t>(contract->held.size());
  }
  return blocks;
}

void Borrower::end_round_if_answered(Nanos now) {
  if (round_ && round_->open.empty()) end_round(now);
}

// All that was wanted at once is there, or none of it is kept.
void Borrower::end_round(Nanos now) {
  const Round round = *std::exchange(round_, std::nullopt);
  uint32_t got = 0;
  for (const ContractRef& ref : round.granted) {
    if (const HeldContract* contract = held(ref)) got += static_cast<uint32_t>(contract->held.size());
  }
  const bool enough = want_.most > 0 && got >= want_.least;
  for (const ContractRef& ref : round.granted) {
    if (!held(ref)) continue;
    if (enough) {
      announce(ref);
    } else if (!mutant(Mutant::kPartKept)) {
      send_back(ref.creditor, ref.id, {});
      erase(ref.creditor, ref.id);
    }
  }
  if (got > 0 && enough) want_.least = 0;
  if (want_.most > 0) tell_leader(now);
}

Status Borrower::handle(const PeerId& from, const wire::Refused& message, Nanos now) {
  const Asked* asked = find_ask(from, message.ask());
  if (!asked) return {};
  if (message.later()) late_[from] = {message.ask(), asked->blocks, want_.since};
  answered(message.ask(), 0, now);
  return {};
}

Status Borrower::handle(const PeerId& from, const wire::Granted& message, Nanos now) {
  if (find(from, message.contract())) return {};  // a statement was faster
  const Asked* asked = find_ask(from, message.ask());
  if (!asked) {
    accept_late(from, message, now);
    return {};
  }
  if (message.blocks() == 0 || message.blocks() > asked->blocks) {
    send_back_unwanted(from, message.contract());
    return error(ErrorCode::kCorrupt, "it grants {} blocks where {} were asked for", message.blocks(),
                 asked->blocks);
  }
  accept(from, message.contract(), message.blocks(), now);
  answered(message.ask(), message.blocks(), now);
  return {};
}

void Borrower::accept_late(const PeerId& from, const wire::Granted& message, Nanos now) {
  const auto it = late_.find(from);
  const std::optional<Late> late =
      it != late_.end() && it->second.ask == message.ask() ? std::optional(it->second) : std::nullopt;
  if (late) late_.erase(it);
  const uint32_t lacks = want_.most - std::min(want_.most, expected());
  const bool wanted = late && late->since == want_.since && borrowing_ && want_.least <= 1 && lacks > 0 &&
                      message.blocks() > 0 && message.blocks() <= late->blocks;
  if (!wanted) return send_back_unwanted(from, message.contract());
  HeldContract& contract = hold({from, message.contract()}, message.blocks(), now);
  std::vector<uint32_t> back;
  for (uint32_t slot = lacks; slot < message.blocks(); ++slot) {
    back.push_back(slot);
    contract.held.erase(slot);
  }
  if (!back.empty()) send_back(from, message.contract(), back);
  announce({from, message.contract()});
  if (!round_) tell_leader(now);
}

HeldContract& Borrower::hold(const ContractRef& ref, uint32_t blocks, Nanos now) {
  HeldContract& contract = contracts_[ref.creditor][ref.id];
  contract.granted = blocks;
  for (uint32_t slot = 0; slot < blocks; ++slot) contract.held.insert(contract.held.end(), slot);
  silence_[ref.creditor] = {now, now + 2 * settings_.statement};
  return contract;
}

bool Borrower::take(const ContractRef& ref, uint32_t blocks, Nanos now) {
  if (!borrowing_ || held(ref)) return false;
  hold(ref, blocks, now).announced = true;
  events_.push_back({.kind = BorrowEvent::Kind::kGranted, .contract = ref, .blocks = blocks});
  return true;
}

void Borrower::accept(const PeerId& creditor, uint64_t id, uint32_t blocks, Nanos now) {
  hold({creditor, id}, blocks, now);
  if (want_.least > 1) {
    round_->granted.push_back({creditor, id});
  } else {
    announce({creditor, id});
  }
}

void Borrower::announce(const ContractRef& ref) {
  HeldContract& contract = *find(ref.creditor, ref.id);
  contract.announced = true;
  const auto held = static_cast<uint32_t>(contract.held.size());
  want_.most -= std::min(want_.most, held);
  want_.least = std::min(want_.least, want_.most);
  events_.push_back({.kind = BorrowEvent::Kind::kGranted, .contract = ref, .blocks = held});
  if (!contract.keep) return;
  events_.push_back({.kind = BorrowEvent::Kind::kRecalled,
                     .contract = ref,
                     .blocks = held - std::min(held, *contract.keep),
                     .by = contract.recalled_by});
}

void Borrower::set_borrowing(bool borrowing, Nanos now) {
  if (borrowing_ == borrowing) return;
  borrowing_ = borrowing;
  // Answers that come now are sent back.
  if (!borrowing && round_) {
    round_->open.clear();
    end_round(now);
  } else if (want_.most > 0) {
    tell_leader(now);
  }
}

void Borrower::tick(Nanos now) {
  if (round_ && now >= round_->until) {
    for (const auto& [ask, asked] : std::exchange(round_->open, {})) deny(asked.creditor);
    end_round(now);
  }
  std::vector<PeerId> silent;
  for (auto& [creditor, silence] : silence_) {
    if (now - silence.heard >= settings_.silence) {
      silent.push_back(creditor);
    } else if (now >= silence.next_ask) {
      silence.next_ask = now + settings_.heartbeat;
      wire::Envelope message;
      message.mutable_ask_statement();
      (void)post_.send(creditor, message);
    }
  }
  for (const PeerId& creditor : silent) {
    while (contracts_.contains(creditor)) lose(creditor, contracts_.at(creditor).begin()->first);
  }
}

Nanos Borrower::next_deadline() const {
  Nanos next = round_ ? round_->until : INT64_MAX;
  for (const auto& [creditor, silence] : silence_) {
    next = std::min({next, silence.next_ask, silence.heard + settings_.silence});
  }
  return next;
}

std::string Borrower::describe() const {
  std::string out = fmt::format(
      "borrows: ask {} attempt {} leader {} term {} wants {}..{} since {} for {}, needed since {}{}\n",
      last_ask_, attempt_, name_of(leader_), term_, want_.least, want_.most, want_.since, want_.hold,
      needed_since_, borrowing_ ? "" : ", no more");
  if (round_) {
    out += fmt::format("  asks until {}, {} granted\n", round_->until, round_->granted.size());
    for (const auto& [ask, asked] : round_->open) {
      out += fmt::format("    {}: {} blocks of {}\n", ask, asked.blocks, name_of(asked.creditor));
    }
  }
  for (const auto& [creditor, late] : late_)
    out += fmt::format("  {} of {} later, asked by {} since {}\n", late.blocks, name_of(creditor), late.ask,
                       late.since);
  for (const auto& [creditor, held] : contracts_) {
    const Silence& silence = silence_.at(creditor);
    out += fmt::format("  of {}, heard {}, ask {}\n", name_of(creditor), silence.heard, silence.next_ask);
    for (const auto& [id, contract] : held) {
      out += fmt::format("    {}: granted {}{} held", id, contract.granted,
                         contract.announced ? "" : " silently");
      for (const uint32_t slot : contract.held) out += fmt::format(" {}", slot);
      out += contract.keep ? fmt::format(" keep {}\n", *contract.keep) : "\n";
    }
  }
  for (const BorrowEvent& event : events_) {
    out += fmt::format("  event {} {} {} {}\n", static_cast<int>(event.kind), event.contract.id, event.blocks,
                       event.by);
  }
  return out;
}

}  // namespace kvasir::cluster
