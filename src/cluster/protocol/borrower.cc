// Requests: from the question to the leader until a creditor grants, or all have refused.
#include "cluster/protocol/borrower.h"

#include <algorithm>

#include "base/check.h"
#include "cluster/protocol/cluster.pb.h"
#include "cluster/protocol/debt_ledger.h"

namespace kvasir::cluster {

uint64_t Borrower::borrow(uint32_t blocks, Nanos now, Nanos since) {
  KV_CHECK(blocks > 0, "a request for no blocks");
  const auto it = requests_.emplace(++last_request_, Request{}).first;
  it->second.blocks = blocks;
  it->second.since = since;
  if (borrowing_) {
    ask(it, now);
  } else {
    refuse(it, 0);
  }
  return last_request_;
}

void Borrower::ask(Requests::iterator it, Nanos now) {
  Request& request = it->second;
  if (request.round == settings_.rounds) return refuse(it, 0);
  ++request.round;
  request.asking = true;
  request.attempt = ++last_attempt_;
  request.deadline = now + settings_.answer;
  if (term_ == 0) return;
  wire::Envelope message;
  message.mutable_query()->set_term(term_);
  message.mutable_query()->set_attempt(request.attempt);
  message.mutable_query()->set_blocks(request.blocks);
  // If it does not go through there may be another leader before the deadline.
  (void)post_.send(leader_, message);
}

void Borrower::try_creditor(Requests::iterator it, Nanos now) {
  Request& request = it->second;
  for (; request.next < request.creditors.size(); ++request.next) {
    request.attempt = ++last_attempt_;
    request.deadline = now + settings_.answer;
    wire::Envelope message;
    message.mutable_borrow()->set_attempt(request.attempt);
    message.mutable_borrow()->set_blocks(request.blocks);
    message.mutable_borrow()->set_since_ns(clock_.of(request.since));
    message.mutable_borrow()->set_now_ns(clock_.of(now));
    const PeerId& creditor = request.creditors[request.next];
    if (creditor != post_.self() && post_.send(creditor, message).ok()) return;
  }
  ask(it, now);
}

void Borrower::next_creditor(Requests::iterator it, Nanos now) {
  Request& request = it->second;
  wire::Envelope message;
  message.mutable_denied()->set_term(term_);
  put(request.creditors[request.next], message.mutable_denied()->mutable_creditor());
  // A leader that does not learn of it sends the next one there, too: no harm.
  if (term_ != 0) (void)post_.send(leader_, message);
  ++request.next;
  try_creditor(it, now);
}

void Borrower::refuse(Requests::iterator it, uint32_t largest) {
  events_.push_back(
      {.kind = BorrowEvent::Kind::kRefused, .request = it->first, .contract = {}, .blocks = largest});
  requests_.erase(it);
}

Borrower::Requests::iterator Borrower::find_attempt(uint64_t attempt) {
  return std::find_if(requests_.begin(), requests_.end(),
                      [&](const auto& request) { return request.second.attempt == attempt; });
}

Status Borrower::handle(const PeerId& from, const wire::Advice& message, Nanos now) {
  if (message.term() != term_ || from != leader_) return {};
  if (static_cast<size_t>(message.creditors_size()) > DebtLedger::kMostCreditors) {
    return error(ErrorCode::kCorrupt, "it recommends {} creditors, the most is {}", message.creditors_size(),
                 DebtLedger::kMostCreditors);
  }
  const auto it = find_attempt(message.attempt());
  if (it == requests_.end() || !it->second.asking) return {};
  if (message.creditors().empty()) {
    refuse(it, message.largest_room());
    return {};
  }
  Request& request = it->second;
  request.asking = false;
  request.next = 0;
  request.creditors.clear();
  for (const wire::Peer& peer : message.creditors()) request.creditors.push_back(get(peer));
  try_creditor(it, now);
  return {};
}

Status Borrower::handle(const PeerId& from, const wire::Refused& message, Nanos now) {
  clock_.hear(message.now_ns(), now);
  const auto it = find_attempt(message.attempt());
  if (it == requests_.end() || it->second.asking || it->second.creditors[it->second.next] != from) return {};
  next_creditor(it, now);
  return {};
}

Status Borrower::handle(const PeerId& from, const wire::Granted& message, Nanos now) {
  clock_.hear(message.now_ns(), now);
  if (find(from, message.contract())) return {};  // a statement was faster
  const auto it = find_attempt(message.attempt());
  if (it == requests_.end() || it->second.asking || it->second.creditors[it->second.next] != from) {
    send_back_unwanted(from, message.contract());
    return {};
  }
  if (message.blocks() != it->second.blocks) {
    send_back_unwanted(from, message.contract());
    return error(ErrorCode::kCorrupt, "it grants {} blocks where {} were asked for", message.blocks(),
                 it->second.blocks);
  }
  grant(it, from, message.contract(), message.blocks(), now);
  return {};
}

void Borrower::leader(const PeerId& peer, uint64_t term, Nanos now) {
  leader_ = peer;
  term_ = term;
  std::vector<uint64_t> asked;
  for (auto& [id, request] : requests_) {
    if (!request.asking) continue;
    --request.round;
    asked.push_back(id);
  }
  for (const uint64_t id : asked) ask(requests_.find(id), now);
}

void Borrower::set_borrowing(bool borrowing) {
  borrowing_ = borrowing;
  while (!borrowing_ && !requests_.empty()) refuse(requests_.begin(), 0);
}

void Borrower::tick(Nanos now) {
  std::vector<uint64_t> late;
  for (const auto& [id, request] : requests_) {
    if (now >= request.deadline) late.push_back(id);
  }
  for (const uint64_t id : late) {
    const auto it = requests_.find(id);
    if (it->second.asking) {
      ask(it, now);
    } else {
      next_creditor(it, now);
    }
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
  Nanos next = INT64_MAX;
  for (const auto& [id, request] : requests_) next = std::min(next, request.deadline);
  for (const auto& [creditor, silence] : silence_) {
    next = std::min({next, silence.next_ask, silence.heard + settings_.silence});
  }
  return next;
}

std::string Borrower::describe() const {
  std::string out = fmt::format("borrows: last {} {} leader {} term {}{}\n", last_request_, last_attempt_,
                                name_of(leader_), term_, borrowing_ ? "" : ", no more");
  for (const auto& [id, request] : requests_) {
    out += fmt::format("  {}: {} blocks, round {}, attempt {}, {} of {} by {}\n", id, request.blocks,
                       request.round, request.attempt,
                       request.asking ? std::string("asking") : fmt::format("{}", request.next),
                       request.creditors.size(), request.deadline);
    for (const PeerId& creditor : request.creditors) out += "    " + name_of(creditor) + "\n";
  }
  for (const auto& [creditor, held] : contracts_) {
    const Silence& silence = silence_.at(creditor);
    out += fmt::format("  of {}, heard {}, ask {}\n", name_of(creditor), silence.heard, silence.next_ask);
    for (const auto& [id, contract] : held) {
      out += fmt::format("    {}: granted {}{} held", id, contract.granted, contract.frozen ? " frozen" : "");
      for (const uint32_t slot : contract.held) {
        out += fmt::format(" {}{}", slot, contract.vacated.contains(slot) ? "v" : "");
      }
      out += contract.keep ? fmt::format(" keep {}\n", *contract.keep) : "\n";
    }
  }
  for (const BorrowEvent& event : events_) {
    out += fmt::format("  event {} {} {} {} {}\n", static_cast<int>(event.kind), event.request,
                       event.contract.id, event.blocks, event.by);
  }
  return out;
}

}  // namespace kvasir::cluster
