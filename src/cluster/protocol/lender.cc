#include "cluster/protocol/lender.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/mutant.h"
#include "cluster/protocol/cluster.pb.h"

namespace kvasir::cluster {

const Contract* Lender::lent(const PeerId& debtor, uint64_t contract) const {
  const auto it = contracts_.find(contract);
  return it == contracts_.end() || it->second.debtor != debtor ? nullptr : &it->second;
}

Contract* Lender::find(const PeerId& debtor, uint64_t contract) {
  return const_cast<Contract*>(lent(debtor, contract));
}

// ---------------------------------------------------------------- how much, and for whom

uint32_t Lender::room() const {
  if (!lending_ || recalled_ > 0) return 0;
  const uint32_t free = memory_.free_blocks();
  const uint32_t kept = mutant(Mutant::kSettledLent) ? 0 : settled_;
  return std::min(free - std::min(free, kept), under_cap());
}

uint32_t Lender::under_cap() const {
  const uint32_t taken = lent_ + pinned_leftovers();
  return settings_.lend_cap - std::min(settings_.lend_cap, taken);
}

// As old as the oldest request that needs it still.
Nanos Lender::came(const Contract& contract) const {
  const int64_t needed = debtors_.at(contract.debtor).needed_since;
  return contract.since + age_of(contract.since_there, needed);
}

Lender::Claim Lender::awaited() const {
  if (awaited_.blocks == 0) return {};
  return {lending_ ? std::min(awaited_.blocks, under_cap()) : 0, awaited_.since};
}

void Lender::handle(const wire::Standing& message, Nanos mine, Nanos now) {
  awaited_ = {message.blocks(), now - age_of(0, message.waited_ns())};
  awaited_by_ = get(message.of());
  awaited_until_ = now + settings_.entry_lives;
  if (mine == INT64_MAX) return;
  // As the leader ordered the two, whatever the clocks say.
  awaited_.since =
      message.before_yours() ? std::min(awaited_.since, mine - 1) : std::max(awaited_.since, mine);
}

// ---------------------------------------------------------------- what debtors say

Status Lender::handle(const PeerId& from, const wire::Ask& message, Nanos now) {
  if (message.blocks() == 0) return error(ErrorCode::kCorrupt, "it asks for 0 blocks");
  if (message.hold_ns() < 0) return error(ErrorCode::kCorrupt, "it keeps them for {} ns", message.hold_ns());
  const Question question{.ask = message.ask(),
                          .blocks = message.blocks(),
                          .before_own = message.before_own(),
                          .since = now - age_of(message.since_ns(), message.now_ns()),
                          .since_there = message.since_ns(),
                          .hold = message.hold_ns(),
                          .came = now};
  const bool later = !memory_.ready() && room() > 0;
  late_.erase(from);
  if (later) late_[from] = question;
  if (later || !try_to_grant(from, question, now)) refuse(from, question.ask, later);
  return {};
}

// Those that asked during a long step, the oldest request first.
void Lender::answer_late(Nanos now) {
  std::erase_if(late_, [&](const auto& late) { return now - late.second.came >= settings_.recall; });
  while (!late_.empty() && memory_.ready()) {
    const auto first = std::min_element(late_.begin(), late_.end(), [](const auto& a, const auto& b) {
      return goes_first(a.first, a.second.since, b.first, b.second.since);
    });
    const auto [from, question] = *first;
    late_.erase(first);
    // What the first in the list lacks is not for others.
    if (awaited_.blocks > 0 && awaited_by_ != from && awaited_.since < question.since) continue;
    (void)try_to_grant(from, question, now);
  }
}

bool Lender::try_to_grant(const PeerId& from, const Question& question, Nanos now) {
  Nanos since = question.since;
  if (question.before_own && own_.blocks > 0) since = std::min(since, own_.since - 1);
  const uint32_t kept = question.before_own ? 0 : own_.blocks;
  const uint32_t free = memory_.free_blocks();
  const uint32_t blocks = std::min({question.blocks, room(), free - std::min(free, kept)});
  std::optional<std::vector<uint32_t>> taken;
  if (blocks > 0) taken = memory_.take(blocks);
  if (!taken) return false;
  Contract& contract = make_contract(from, question.ask, *std::move(taken), since, question.since_there, now);
  if (question.hold > 0) contract.due = now + within_range(question.hold);
  wire::Envelope answer;
  answer.mutable_granted()->set_ask(contract.ask);
  answer.mutable_granted()->set_contract(contract.id);
  answer.mutable_granted()->set_blocks(contract.lent);
  // A receiver that misses it has deadlines.
  (void)post_.send(from, answer);
  return true;
}

uint64_t Lender::lend(const PeerId& debtor, std::vector<uint32_t> blocks, Nanos since, int64_t since_there,
                      Nanos now) {
  KV_CHECK(lending_ && !blocks.empty() && blocks.size() <= under_cap(), "{} blocks, {} under the cap",
           blocks.size(), under_cap());
  return make_contract(debtor, 0, std::move(blocks), since, since_there, now).id;
}

uint64_t Lender::lend_prefix(const PeerId& debtor, std::vector<uint32_t> blocks, Nanos since,
                             int64_t since_there, Nanos now) {
  KV_CHECK(!blocks.empty() && blocks.size() <= room_for_prefixes(), "{} blocks, room for {}", blocks.size(),
           room_for_prefixes());
  return make_contract(debtor, 0, std::move(blocks), since, since_there, now, kShowsPrefix | kLendsPrefix).id;
}

Contract& Lender::make_contract(const PeerId& from, uint64_t ask, std::vector<uint32_t> blocks, Nanos since,
                                int64_t since_there, Nanos now, uint64_t kind) {
  if (contracts_.empty()) next_statement_ = now + settings_.statement;
  const uint64_t id = ++last_contract_ | kind;
  Contract& contract = contracts_[id];
  contract.id = id;
  contract.debtor = from;
  contract.ask = ask;
  contract.since = since;
  contract.since_there = since_there;
  contract.lent = static_cast<uint32_t>(blocks.size());
  contract.blocks = blocks;
  loans_->lend(contract.id, from, std::move(blocks));
  lent_ += contract.lent;
  Debtor& debtor = debtors_[from];
  debtor.blocks += contract.lent;
  debtor.contracts.insert(contract.id);
  debtor.needed_since = std::min(debtor.needed_since, contract.since_there);
  return contract;
}

void Lender::refuse(const PeerId& from, uint64_t ask, bool later) {
  wire::Envelope answer;
  answer.mutable_refused()->set_ask(ask);
  answer.mutable_refused()->set_later(later);
  // A receiver that misses it has deadlines.
  (void)post_.send(from, answer);
}

Status Lender::handle(const PeerId& from, const wire::GiveBack& message, Nanos) {
  Contract* contract = find(from, message.contract());
  if (!contract) return {};
  const auto slots = static_cast<uint32_t>(contract->blocks.size());
  for (const uint32_t slot : message.slots()) {
    if (slot >= slots) {
      return error(ErrorCode::kCorrupt, "it gives back slot {} of the {} of contract {}", slot, slots,
                   contract->id);
    }
  }
  if (message.all()) {
    end(contract->id);
    return {};
  }
  std::vector<uint32_t> returned, free;
  for (const uint32_t slot : message.slots()) {
    if (std::exchange(contract->blocks[slot], Contract::kGone) != Contract::kGone) returned.push_back(slot);
  }
  loans_->take(contract->id, returned, free);
  hand_back(free);
  count_returned(*contract, static_cast<uint32_t>(returned.size()));
  if (contract->lent == 0) {
    end(contract->id);
  } else if (contract->keep && !contract->settling && contract->lent <= *contract->keep) {
    set_keep(*contract, std::nullopt);
  }
  return {};
}

void Lender::count_returned(Contract& contract, uint32_t blocks) {
  if (contract.settling) {
    const uint32_t to_come = contract.lent - std::min(contract.lent, *contract.keep);
    settled_ += std::min(blocks, to_come);
    to_settle_ -= std::min(blocks, to_come);
  }
  contract.lent -= blocks;
  lent_ -= blocks;
  debtors_.at(contract.debtor).blocks -= blocks;
}

void Lender::set_keep(Contract& contract, std::optional<uint32_t> keep) {
  recalled_ += keep.has_value() ? 1 : 0;
  recalled_ -= contract.keep.has_value() ? 1 : 0;
  contract.keep = keep;
  if (!keep) contract.revoke_at = INT64_MAX;
}

void Lender::end(uint64_t id) {
  Contract& contract = contracts_.at(id);
  count_returned(contract, contract.lent);
  if (!contract.settling) set_keep(contract, std::nullopt);
  std::vector<uint32_t> free;
  loans_->end(id, free);
  hand_back(free);
  const auto debtor = debtors_.find(contract.debtor);
  debtor->second.contracts.erase(id);
  if (debtor->second.contracts.empty()) debtors_.erase(debtor);
  contracts_.erase(id);
}

void Lender::hand_back(std::span<const uint32_t> blocks) {
  if (!blocks.empty()) memory_.give_back(blocks);
}

void Lender::collect_unpinned() {
  std::vector<uint32_t> free;
  loans_->take_unpinned(free);
  hand_back(free);
}

Status Lender::handle(const PeerId& from, const wire::AskStatement&, Nanos now) {
  state(from, now);
  return {};
}

Status Lender::handle(const PeerId& from, const wire::Needs& message, Nanos) {
  const auto it = debtors_.find(from);
  if (it != debtors_.end()) it->second.needed_since = message.since_ns();
  return {};
}

void Lender::debtor_lost(const PeerId& debtor) {
  late_.erase(debtor);
  const auto it = debtors_.find(debtor);
  if (it == debtors_.end()) return;
  for (const uint64_t id : std::set<uint64_t>(it->second.contracts)) end(id);
}

// ---------------------------------------------------------------- what is wanted back

uint32_t Lender::recall(uint32_t blocks, Nanos now, Nanos since) {
  uint32_t coming = pinned_leftovers();
  struct Late {
    Nanos came;
    Contract* contract;
  };
  std::vector<Late> latest;
  for (auto& [id, contract] : contracts_) {
    if (contract.settling) continue;
    if (contract.keep) coming += contract.lent - std::min(contract.lent, *contract.keep);
    const Nanos came = this->came(contract);
    const bool later = since == INT64_MIN || goes_first(post_.self(), since, contract.debtor, came) ||
                       mutant(Mutant::kOlderRobbed);
    if (later) latest.push_back({came, &contract});
  }
  std::sort(latest.begin(), latest.end(), [&](const Late& a, const Late& b) {
    return std::pair(a.came, a.contract->id) > std::pair(b.came, b.contract->id);
  });
  std::set<PeerId, ByPeer> told;
  // A debtor that is asked a second time gets no more time: so debtors that have not been asked come first.
  for (const bool again : {false, true}) {
    for (const Late& each : latest) {
      Contract& contract = *each.contract;
      if (coming >= blocks) break;
      if (contract.keep.has_value() != again) continue;
      const uint32_t kept = std::min(contract.keep.value_or(contract.lent), contract.lent);
      // Of a prefix all comes back: what is not in use becomes free only then.
      const uint32_t take = contract.lends_prefix() ? kept : std::min(kept, blocks - coming);
      if (take == 0) continue;
      if (!again) contract.revoke_at = now + settings_.recall;
      set_keep(contract, kept - take);
      coming += take;
      told.insert(contract.debtor);
    }
  }
  for (const PeerId& debtor : told) state(debtor, now);
  return coming;
}

void Lender::settle(const PeerId& debtor, uint32_t blocks, Nanos within, Nanos now) {
  const auto it = debtors_.find(debtor);
  if (it == debtors_.end()) return;
  // Of a prefix all comes back, as of a recall: so it is taken where there is too little else.
  for (const bool prefixes : {false, true}) {
    for (auto newest = it->second.contracts.rbegin(); newest != it->second.contracts.rend() && blocks > 0;
         ++newest) {
      Contract& contract = contracts_.at(*newest);
      if (contract.keep || contract.lends_prefix() != prefixes) continue;
      const uint32_t take = prefixes ? contract.lent : std::min(contract.lent, blocks);
      contract.settling = true;
      contract.keep = contract.lent - take;
      contract.revoke_at = now + within;
      to_settle_ += take;
      blocks -= std::min(blocks, take);
    }
  }
  state(debtor, now);
}

uint32_t Lender::end_settling(Nanos now) {
  to_settle_ = 0;
  std::set<PeerId, ByPeer> told;
  for (auto& [id, contract] : contracts_) {
    if (!std::exchange(contract.settling, false)) continue;
    contract.keep.reset();
    contract.revoke_at = INT64_MAX;
    told.insert(contract.debtor);
  }
  for (const PeerId& debtor : told) state(debtor, now);
  return std::exchange(settled_, 0);
}

// ---------------------------------------------------------------- statements and deadlines

void Lender::state(const PeerId& debtor, Nanos now) {
  wire::Envelope message;
  wire::Statement* statement = message.mutable_statement();
  const auto it = debtors_.find(debtor);
  if (it != debtors_.end()) {
    statement->set_needed_since_ns(it->second.needed_since);
    for (const uint64_t id : it->second.contracts) {
      const Contract& contract = contracts_.at(id);
      wire::Statement::Line* line = statement->add_lines();
      line->set_contract(id);
      line->set_ask(contract.ask);
      line->set_granted(static_cast<uint32_t>(contract.blocks.size()));
      line->set_lent(contract.lent);
      if (!contract.keep) continue;
      line->set_recalled(true);
      line->set_keep(*contract.keep);
      line->set_within_ns(static_cast<uint64_t>(std::max<Nanos>(contract.revoke_at - now, 0)));
    }
  }
  // The next one says it all again.
  (void)post_.send(debtor, message);
}

void Lender::tick(Nanos now) {
  collect_unpinned();
  answer_late(now);
  std::set<PeerId, ByPeer> told;
  if (recalled_ > 0) {
    std::vector<uint64_t> revoked;
    for (const auto& [id, contract] : contracts_) {
      if (!contract.keep || contract.settling || now < contract.revoke_at) continue;
      revoked.push_back(id);
      told.insert(contract.debtor);
    }
    for (const uint64_t id : revoked) end(id);
  }
  if (now >= awaited_until_) awaited_ = {};
  if (now >= next_statement_) {
    next_statement_ = now + settings_.statement;
    for (const auto& [debtor, of_it] : debtors_) told.insert(debtor);
  }
  for (const PeerId& debtor : told) state(debtor, now);
}

Nanos Lender::next_deadline() const {
  Nanos next = contracts_.empty() ? INT64_MAX : next_statement_;
  if (awaited_.blocks > 0) next = std::min(next, awaited_until_);
  if (recalled_ == 0) return next;
  for (const auto& [id, contract] : contracts_) {
    if (contract.keep && !contract.settling) next = std::min(next, contract.revoke_at);
  }
  return next;
}

std::map<PeerId, uint32_t, ByPeer> Lender::by_debtor() const {
  std::map<PeerId, uint32_t, ByPeer> out;
  for (const auto& [debtor, of_it] : debtors_) out.emplace(debtor, of_it.blocks);
  return out;
}

std::string Lender::describe() const {
  std::string out =
      fmt::format("lends {}, statement {}, last {}, {} settled, {} to come{}\n", lent_, next_statement_,
                  last_contract_, settled_, to_settle_, lending_ ? "" : ", no more");
  for (const auto& [id, contract] : contracts_) {
    out += fmt::format("  {} to {} for {} since {}:", id, name_of(contract.debtor), contract.ask,
                       contract.since);
    for (const uint32_t block : contract.blocks) {
      out += block == Contract::kGone ? std::string(" -") : fmt::format(" {}", block);
    }
    if (contract.due != INT64_MAX) out += fmt::format(" due {}", contract.due);
    if (contract.keep) out += fmt::format(" keep {} by {}", *contract.keep, contract.revoke_at);
    out += contract.settling ? " settling\n" : "\n";
  }
  for (const auto& [id, debtor] : debtors_) {
    out += fmt::format("  {} has {}, needs it since {}\n", name_of(id), debtor.blocks, debtor.needed_since);
  }
  for (const auto& [id, late] : late_)
    out +=
        fmt::format("  {} asked at {} by {} for {} since {}{}, keeps them for {}\n", name_of(id), late.came,
                    late.ask, late.blocks, late.since, late.before_own ? ", before our own" : "", late.hold);
  if (awaited_.blocks > 0) {
    out +=
        fmt::format("  a peer lacks {} since {} until {}\n", awaited_.blocks, awaited_.since, awaited_until_);
  }
  if (own_.blocks > 0) out += fmt::format("  keeps {} since {}\n", own_.blocks, own_.since);
  return out + loans_->describe();
}

}  // namespace kvasir::cluster
