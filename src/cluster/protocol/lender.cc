#include "cluster/protocol/lender.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/check.h"
#include "base/mutant.h"
#include "cluster/protocol/cluster.pb.h"

namespace kvasir::cluster {
namespace {

// The earlier goes first; at equal times the lower name, so that all instances decide alike.
bool goes_first(const PeerId& a, Nanos a_since, const PeerId& b, Nanos b_since) {
  return a_since != b_since ? a_since < b_since : ByPeer()(a, b);
}

}  // namespace

Contract* Lender::find(const PeerId& debtor, uint64_t contract) {
  const auto it = contracts_.find(contract);
  return it == contracts_.end() || it->second.debtor != debtor ? nullptr : &it->second;
}

const Contract* Lender::lent(const PeerId& debtor, uint64_t contract) const {
  const auto it = contracts_.find(contract);
  return it == contracts_.end() || it->second.debtor != debtor ? nullptr : &it->second;
}

uint32_t Lender::room() const {
  if (!lending_) return 0;
  for (const auto& [id, contract] : contracts_) {
    if (contract.keep && !contract.frozen) return 0;
  }
  const uint32_t free = memory_.free_blocks();
  return std::min(free - std::min(free, settled_), under_cap());
}

uint32_t Lender::under_cap() const {
  const uint32_t taken = lent_ + pinned_leftovers();
  return settings_.lend_cap - std::min(settings_.lend_cap, taken);
}

// As old as the oldest request that needs it still.
Nanos Lender::stamp(const Contract& contract) const {
  const auto it = needed_since_.find(contract.debtor);
  return it == needed_since_.end() ? contract.since : std::max(contract.since, it->second);
}

Nanos Lender::came(const Contract& contract) const {
  return clock_.own(stamp(contract));
}

// First come, first served: what older requests wait for, here or at other peers, is not for this one.
uint32_t Lender::room_for(const PeerId& debtor, Nanos since) const {
  uint64_t kept = goes_first(post_.self(), clock_.of(own_.since), debtor, since) ? own_.blocks : 0;
  for (const auto& [peer, waiting] : waiting_) {
    if (peer != debtor && goes_first(peer, waiting.lacks.since, debtor, since)) kept += waiting.lacks.blocks;
  }
  const uint32_t room = this->room();
  const uint32_t free = memory_.free_blocks();
  return std::min<uint32_t>(room, free - std::min<uint64_t>(free, kept));
}

Lender::Claim Lender::awaited() const {
  auto first = waiting_.end();
  for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
    const bool sooner = first == waiting_.end() || goes_first(it->first, it->second.lacks.since, first->first,
                                                              first->second.lacks.since);
    if (sooner) first = it;
  }
  if (first == waiting_.end()) return {0, INT64_MAX};
  const Claim& lacks = first->second.lacks;
  // Of this instance's requests those that came after it go behind it, or at its time if its name is lower.
  const Nanos behind = clock_.own(lacks.since) - (ByPeer()(first->first, post_.self()) ? 1 : 0);
  return {lending_ ? std::min(lacks.blocks, under_cap()) : 0, behind};
}

Status Lender::handle(const PeerId& from, const wire::Borrow& message, Nanos now) {
  if (message.blocks() == 0) return error(ErrorCode::kCorrupt, "it asks for 0 blocks");
  clock_.hear(message.now_ns(), now);
  std::optional<std::vector<uint32_t>> blocks;
  const Nanos since = ClusterClock::time_of(message.since_ns());
  if (message.blocks() <= room_for(from, since)) blocks = memory_.take(message.blocks());
  if (!blocks) {
    refuse(from, message.attempt(), now);
    return {};
  }
  KV_CHECK(blocks->size() == message.blocks(), "{} of {} blocks", blocks->size(), message.blocks());
  if (contracts_.empty()) next_statement_ = now + settings_.heartbeat;
  Contract& contract = contracts_[++last_contract_];
  contract.id = last_contract_;
  contract.debtor = from;
  contract.attempt = message.attempt();
  contract.since = since;
  contract.lent = message.blocks();
  contract.blocks = *std::move(blocks);
  lent_ += contract.lent;
  wire::Envelope answer;
  answer.mutable_granted()->set_attempt(message.attempt());
  answer.mutable_granted()->set_contract(contract.id);
  answer.mutable_granted()->set_blocks(contract.lent);
  answer.mutable_granted()->set_now_ns(clock_.of(now));
  (void)post_.send(from, answer);
  return {};
}

void Lender::refuse(const PeerId& from, uint64_t attempt, Nanos now) {
  wire::Envelope answer;
  answer.mutable_refused()->set_attempt(attempt);
  answer.mutable_refused()->set_now_ns(clock_.of(now));
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
  for (const uint32_t slot : message.slots()) release(*contract, slot);
  if (message.all()) {
    for (uint32_t slot = 0; slot < slots; ++slot) release(*contract, slot);
  }
  if (contract->lent == 0) {
    contracts_.erase(message.contract());
  } else if (contract->keep && !contract->frozen && contract->lent <= *contract->keep) {
    contract->keep.reset();
    contract->revoke_at = INT64_MAX;
  }
  return {};
}

Status Lender::handle(const PeerId& from, const wire::AskStatement&, Nanos now) {
  state(from, now);
  return {};
}

Status Lender::handle(const PeerId& from, const wire::Waiting& message, Nanos now) {
  clock_.hear(message.now_ns(), now);
  needed_since_[from] = ClusterClock::time_of(message.needed_since_ns());
  if (message.blocks() == 0) {
    waiting_.erase(from);
  } else {
    waiting_[from] = {{message.blocks(), ClusterClock::time_of(message.since_ns())},
                      now + settings_.entry_lives};
  }
  return {};
}

void Lender::release(Contract& contract, uint32_t slot) {
  const uint32_t block = contract.blocks[slot];
  if (block == Contract::kGone) return;
  contract.blocks[slot] = Contract::kGone;
  --contract.lent;
  --lent_;
  if (contract.frozen && contract.keep) ++settled_;
  if (pins_.contains(block) && !mutant(Mutant::kPinnedFrameFreed)) {
    doomed_.insert(block);
  } else {
    memory_.give_back({&block, 1});
  }
}

void Lender::end(uint64_t id) {
  Contract& contract = contracts_.at(id);
  for (uint32_t slot = 0; slot < contract.blocks.size(); ++slot) release(contract, slot);
  contracts_.erase(id);
}

void Lender::debtor_lost(const PeerId& debtor) {
  waiting_.erase(debtor);
  needed_since_.erase(debtor);
  std::vector<uint64_t> ended;
  for (const auto& [id, contract] : contracts_) {
    if (contract.debtor == debtor) ended.push_back(id);
  }
  for (const uint64_t id : ended) end(id);
}

Result<std::vector<uint32_t>> Lender::pin(const PeerId& debtor, uint64_t id,
                                          std::span<const uint32_t> slots) {
  const Contract* contract = lent(debtor, id);
  std::vector<uint32_t> blocks;
  for (const uint32_t slot : slots) {
    if (!contract || slot >= contract->blocks.size() || contract->blocks[slot] == Contract::kGone) {
      return error(ErrorCode::kUnavailable,
                   "slot {} of contract {} is not lent to {}, or no longer; borrow anew", slot, id,
                   name_of(debtor));
    }
    blocks.push_back(contract->blocks[slot]);
  }
  for (const uint32_t block : blocks) ++pins_[block];
  return blocks;
}

void Lender::unpin(std::span<const uint32_t> blocks) {
  for (const uint32_t block : blocks) {
    const auto it = pins_.find(block);
    KV_CHECK(it != pins_.end(), "block {} is not pinned", block);
    if (--it->second > 0) continue;
    pins_.erase(it);
    if (doomed_.erase(block) > 0) memory_.give_back({&block, 1});
  }
}

uint32_t Lender::recall(uint32_t blocks, Nanos now, Nanos since) {
  uint32_t coming = pinned_leftovers();
  std::vector<Contract*> latest;
  for (auto& [id, contract] : contracts_) {
    if (contract.keep && !contract.frozen) coming += contract.lent - std::min(contract.lent, *contract.keep);
    const bool later = since == INT64_MIN ||
                       goes_first(post_.self(), clock_.of(since), contract.debtor, stamp(contract)) ||
                       mutant(Mutant::kOlderRobbed);
    if (!contract.frozen && later) latest.push_back(&contract);
  }
  std::sort(latest.begin(), latest.end(), [&](const Contract* a, const Contract* b) {
    return std::pair(stamp(*a), a->id) > std::pair(stamp(*b), b->id);
  });
  std::set<PeerId, ByPeer> told;
  // A debtor that is asked a second time gets no more time: so debtors that have not been asked come first.
  for (const bool again : {false, true}) {
    for (Contract* each : latest) {
      Contract& contract = *each;
      if (coming >= blocks) break;
      if (contract.keep.has_value() != again) continue;
      const uint32_t kept = std::min(contract.keep.value_or(contract.lent), contract.lent);
      const uint32_t take = std::min(kept, blocks - coming);
      if (take == 0) continue;
      if (!again) contract.revoke_at = now + settings_.recall;
      contract.keep = kept - take;
      coming += take;
      told.insert(contract.debtor);
    }
  }
  for (const PeerId& debtor : told) state(debtor, now);
  return coming;
}

void Lender::state(const PeerId& debtor, Nanos now) {
  wire::Envelope message;
  wire::Statement* statement = message.mutable_statement();
  statement->set_now_ns(clock_.of(now));
  for (const auto& [id, contract] : contracts_) {
    if (contract.debtor != debtor) continue;
    wire::Statement::Line* line = statement->add_lines();
    line->set_contract(id);
    line->set_attempt(contract.attempt);
    line->set_granted(static_cast<uint32_t>(contract.blocks.size()));
    line->set_lent(contract.lent);
    if (!contract.keep) continue;
    line->set_recalled(true);
    line->set_keep(*contract.keep);
    line->set_within_ns(static_cast<uint64_t>(std::max<Nanos>(contract.revoke_at - now, 0)));
  }
  // The next one says it all again.
  (void)post_.send(debtor, message);
}

void Lender::tick(Nanos now) {
  std::set<PeerId, ByPeer> told;
  std::vector<uint64_t> revoked;
  for (const auto& [id, contract] : contracts_) {
    if (contract.keep && !contract.frozen && now >= contract.revoke_at) {
      revoked.push_back(id);
      told.insert(contract.debtor);
    }
  }
  for (const uint64_t id : revoked) end(id);
  std::erase_if(waiting_, [&](const auto& entry) { return now >= entry.second.until; });
  if (now >= next_statement_) {
    next_statement_ = now + settings_.heartbeat;
    for (const auto& [id, contract] : contracts_) told.insert(contract.debtor);
  }
  for (const PeerId& debtor : told) state(debtor, now);
}

Nanos Lender::next_deadline() const {
  Nanos next = contracts_.empty() ? INT64_MAX : next_statement_;
  for (const auto& [peer, waiting] : waiting_) next = std::min(next, waiting.until);
  for (const auto& [id, contract] : contracts_) {
    if (contract.keep && !contract.frozen) next = std::min(next, contract.revoke_at);
  }
  return next;
}

std::map<PeerId, uint32_t, ByPeer> Lender::by_debtor() const {
  std::map<PeerId, uint32_t, ByPeer> out;
  for (const auto& [id, contract] : contracts_) out[contract.debtor] += contract.lent;
  return out;
}

uint32_t Lender::freeze(const PeerId& debtor) {
  uint32_t blocks = 0;
  for (const auto& [id, contract] : contracts_) {
    if (contract.debtor != debtor) continue;
    if (contract.keep || contract.frozen) return 0;
    blocks += contract.lent;
  }
  for (auto& [id, contract] : contracts_) {
    if (contract.debtor == debtor) contract.frozen = true;
  }
  return blocks;
}

void Lender::settle(uint32_t blocks, Nanos within, Nanos now) {
  std::set<PeerId, ByPeer> told;
  for (auto newest = contracts_.rbegin(); newest != contracts_.rend(); ++newest) {
    Contract& contract = newest->second;
    if (!contract.frozen || blocks == 0) continue;
    const uint32_t take = std::min(contract.lent, blocks);
    contract.keep = contract.lent - take;
    contract.revoke_at = now + within;
    blocks -= take;
    told.insert(contract.debtor);
  }
  for (const PeerId& debtor : told) state(debtor, now);
}

bool Lender::settled() const {
  return std::all_of(contracts_.begin(), contracts_.end(), [](const auto& entry) {
    const Contract& contract = entry.second;
    return !contract.frozen || !contract.keep || contract.lent <= *contract.keep;
  });
}

void Lender::thaw(Nanos now) {
  settled_ = 0;
  std::set<PeerId, ByPeer> told;
  for (auto& [id, contract] : contracts_) {
    if (!contract.frozen) continue;
    contract.frozen = false;
    if (!contract.keep) continue;
    contract.keep.reset();
    contract.revoke_at = INT64_MAX;
    told.insert(contract.debtor);
  }
  for (const PeerId& debtor : told) state(debtor, now);
}

std::string Lender::describe() const {
  std::string out = fmt::format("lends {}, statement {}, last {}{}\n", lent_, next_statement_, last_contract_,
                                lending_ ? "" : ", no more");
  for (const auto& [id, contract] : contracts_) {
    out += fmt::format("  {} to {} for {} since {}:", id, name_of(contract.debtor), contract.attempt,
                       contract.since);
    for (const uint32_t block : contract.blocks) {
      out += block == Contract::kGone ? std::string(" -") : fmt::format(" {}", block);
    }
    if (contract.keep) out += fmt::format(" keep {} by {}", *contract.keep, contract.revoke_at);
    out += contract.frozen ? " frozen\n" : "\n";
  }
  for (const auto& [peer, since] : needed_since_) {
    out += fmt::format("  {} needs what it has since {}\n", name_of(peer), since);
  }
  for (const auto& [peer, waiting] : waiting_) {
    out += fmt::format("  {} lacks {} since {} until {}\n", name_of(peer), waiting.lacks.blocks,
                       waiting.lacks.since, waiting.until);
  }
  if (own_.blocks > 0) out += fmt::format("  keeps {} since {}\n", own_.blocks, own_.since);
  for (const auto& [block, count] : pins_) out += fmt::format("  block {} pinned {}\n", block, count);
  for (const uint32_t block : doomed_) out += fmt::format("  block {} comes back\n", block);
  return out;
}

}  // namespace kvasir::cluster
