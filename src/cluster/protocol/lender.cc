#include "cluster/protocol/lender.h"

#include <algorithm>

#include "base/check.h"
#include "base/mutant.h"
#include "cluster/protocol/cluster.pb.h"

namespace kvasir::cluster {

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
  const uint32_t taken = lent_ + pinned_leftovers();
  return std::min(memory_.free_blocks(), settings_.lend_cap - std::min(settings_.lend_cap, taken));
}

Status Lender::handle(const PeerId& from, const wire::Borrow& message, Nanos now) {
  if (message.blocks() == 0) return error(ErrorCode::kCorrupt, "it asks for 0 blocks");
  wire::Envelope answer;
  std::optional<std::vector<uint32_t>> blocks;
  if (message.blocks() <= room()) blocks = memory_.take(message.blocks());
  if (!blocks) {
    answer.mutable_refused()->set_attempt(message.attempt());
    // Whoever does not hear it has deadlines.
    (void)post_.send(from, answer);
    return {};
  }
  KV_CHECK(blocks->size() == message.blocks(), "{} of {} blocks", blocks->size(), message.blocks());
  if (contracts_.empty()) next_statement_ = now + settings_.heartbeat;
  Contract& contract = contracts_[++last_contract_];
  contract.id = last_contract_;
  contract.debtor = from;
  contract.attempt = message.attempt();
  contract.lent = message.blocks();
  contract.blocks = *std::move(blocks);
  lent_ += contract.lent;
  answer.mutable_granted()->set_attempt(message.attempt());
  answer.mutable_granted()->set_contract(contract.id);
  answer.mutable_granted()->set_blocks(contract.lent);
  (void)post_.send(from, answer);
  return {};
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

void Lender::release(Contract& contract, uint32_t slot) {
  const uint32_t block = contract.blocks[slot];
  if (block == Contract::kGone) return;
  contract.blocks[slot] = Contract::kGone;
  --contract.lent;
  --lent_;
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

uint32_t Lender::recall(uint32_t blocks, Nanos now) {
  uint32_t coming = pinned_leftovers();
  for (const auto& [id, contract] : contracts_) {
    if (contract.keep && !contract.frozen) coming += contract.lent - std::min(contract.lent, *contract.keep);
  }
  std::set<PeerId, ByPeer> told;
  // Who is asked for more later has no more time for it: so those that have not been asked come first.
  for (const bool again : {false, true}) {
    for (auto newest = contracts_.rbegin(); newest != contracts_.rend(); ++newest) {
      Contract& contract = newest->second;
      if (coming >= blocks) break;
      if (contract.frozen || contract.keep.has_value() != again) continue;
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
  if (now >= next_statement_) {
    next_statement_ = now + settings_.heartbeat;
    for (const auto& [id, contract] : contracts_) told.insert(contract.debtor);
  }
  for (const PeerId& debtor : told) state(debtor, now);
}

Nanos Lender::next_deadline() const {
  if (contracts_.empty()) return INT64_MAX;
  Nanos next = next_statement_;
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
    out += fmt::format("  {} to {} for {}:", id, name_of(contract.debtor), contract.attempt);
    for (const uint32_t block : contract.blocks) {
      out += block == Contract::kGone ? std::string(" -") : fmt::format(" {}", block);
    }
    if (contract.keep) out += fmt::format(" keep {} by {}", *contract.keep, contract.revoke_at);
    out += contract.frozen ? " frozen\n" : "\n";
  }
  for (const auto& [block, count] : pins_) out += fmt::format("  block {} pinned {}\n", block, count);
  for (const uint32_t block : doomed_) out += fmt::format("  block {} comes back\n", block);
  return out;
}

}  // namespace kvasir::cluster
