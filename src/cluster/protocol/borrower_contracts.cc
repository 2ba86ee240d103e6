// Contracts: from the grant until they are given back or lost.
#include <algorithm>

#include "base/check.h"
#include "base/mutant.h"
#include "cluster/protocol/borrower.h"
#include "cluster/protocol/cluster.pb.h"

namespace kvasir::cluster {

void Borrower::grant(Requests::iterator it, const PeerId& creditor, uint64_t id, uint32_t blocks, Nanos now) {
  HeldContract& contract = contracts_[creditor][id];
  contract.granted = blocks;
  for (uint32_t slot = 0; slot < blocks; ++slot) contract.held.insert(slot);
  silence_[creditor] = {now, now + 2 * settings_.heartbeat};
  events_.push_back({.kind = BorrowEvent::Kind::kGranted,
                     .request = it->first,
                     .contract = {creditor, id},
                     .blocks = blocks});
  requests_.erase(it);
}

HeldContract* Borrower::find(const PeerId& creditor, uint64_t id) {
  const auto it = contracts_.find(creditor);
  if (it == contracts_.end()) return nullptr;
  const auto contract = it->second.find(id);
  return contract == it->second.end() ? nullptr : &contract->second;
}

const HeldContract* Borrower::held(const ContractRef& contract) const {
  const auto it = contracts_.find(contract.creditor);
  if (it == contracts_.end()) return nullptr;
  const auto found = it->second.find(contract.id);
  return found == it->second.end() ? nullptr : &found->second;
}

void Borrower::give_back(const ContractRef& ref, std::span<const uint32_t> slots) {
  HeldContract* contract = find(ref.creditor, ref.id);
  if (!contract) return;
  for (const uint32_t slot : slots) {
    if (contract->held.contains(slot)) contract->vacated.insert(slot);
  }
  flush(ref.creditor, ref.id);
}

void Borrower::flush(const PeerId& creditor, uint64_t id) {
  HeldContract& contract = *find(creditor, id);
  size_t most = contract.vacated.size();
  if (contract.frozen && !mutant(Mutant::kFrozenReturned)) {
    // Of a frozen contract goes back what is recalled to settle it, and no more.
    const size_t held = contract.held.size();
    most = std::min(most, held - std::min<size_t>(held, contract.keep.value_or(UINT32_MAX)));
  }
  if (most == 0) return;
  std::vector<uint32_t> slots;
  while (slots.size() < most) {
    slots.push_back(*contract.vacated.begin());
    contract.vacated.erase(contract.vacated.begin());
    contract.held.erase(slots.back());
  }
  send_back(creditor, id, slots);
  if (contract.held.empty()) {
    contracts_.at(creditor).erase(id);
    if (contracts_.at(creditor).empty()) {
      contracts_.erase(creditor);
      silence_.erase(creditor);
    }
  }
}

void Borrower::send_back(const PeerId& creditor, uint64_t id, std::span<const uint32_t> slots) {
  wire::Envelope message;
  wire::GiveBack* body = message.mutable_give_back();
  body->set_contract(id);
  body->set_all(slots.empty());
  for (const uint32_t slot : slots) body->add_slots(slot);
  // If it is lost, the creditor's next statement shows it.
  (void)post_.send(creditor, message);
}

void Borrower::send_back_unwanted(const PeerId& creditor, uint64_t id) {
  if (!mutant(Mutant::kLateGrantKept)) send_back(creditor, id, {});
}

void Borrower::lose(const PeerId& creditor, uint64_t id) {
  events_.push_back(
      {.kind = BorrowEvent::Kind::kLost, .request = 0, .contract = {creditor, id}, .blocks = 0, .by = 0});
  contracts_.at(creditor).erase(id);
  if (!contracts_.at(creditor).empty()) return;
  contracts_.erase(creditor);
  silence_.erase(creditor);
}

Status Borrower::handle(const PeerId& from, const wire::Statement& message, Nanos now) {
  clock_.hear(message.now_ns(), now);
  std::set<uint64_t> lent;
  for (const wire::Statement::Line& line : message.lines()) {
    const HeldContract* contract = find(from, line.contract());
    if (line.lent() > line.granted() || (contract && line.granted() != contract->granted)) {
      return error(ErrorCode::kCorrupt, "contract {} has {} of {} blocks, {} were granted", line.contract(),
                   line.lent(), line.granted(), contract ? contract->granted : line.granted());
    }
    lent.insert(line.contract());
  }
  for (const wire::Statement::Line& line : message.lines()) heed(from, line, now);
  std::vector<uint64_t> gone;
  if (const auto it = contracts_.find(from); it != contracts_.end()) {
    silence_.at(from) = {now, now + 2 * settings_.heartbeat};
    for (const auto& [id, contract] : it->second) {
      if (!lent.contains(id)) gone.push_back(id);
    }
  }
  for (const uint64_t id : gone) lose(from, id);
  return {};
}

void Borrower::heed(const PeerId& creditor, const wire::Statement::Line& line, Nanos now) {
  HeldContract* contract = find(creditor, line.contract());
  if (!contract) {
    // Messages come in order: the grant was lost, or what was granted is not wanted any more.
    const auto it = find_attempt(line.attempt());
    if (it == requests_.end() || it->second.asking || it->second.creditors[it->second.next] != creditor ||
        it->second.blocks != line.granted() || line.lent() != line.granted()) {
      return send_back_unwanted(creditor, line.contract());
    }
    grant(it, creditor, line.contract(), line.granted(), now);
    contract = find(creditor, line.contract());
  }
  if (line.lent() > contract->held.size()) {
    std::vector<uint32_t> again;
    for (uint32_t slot = 0; slot < contract->granted; ++slot) {
      if (!contract->held.contains(slot)) again.push_back(slot);
    }
    send_back(creditor, line.contract(), again);
  }
  const std::optional<uint32_t> keep = line.recalled() ? std::optional(line.keep()) : std::nullopt;
  if (keep == contract->keep) return;
  const auto held = static_cast<uint32_t>(contract->held.size());
  const bool heeded = !keep && held <= *contract->keep;
  contract->keep = keep;
  if (heeded) return;
  const auto within = static_cast<Nanos>(std::min<uint64_t>(line.within_ns(), INT64_MAX / 4));
  events_.push_back({.kind = BorrowEvent::Kind::kRecalled,
                     .request = 0,
                     .contract = {creditor, line.contract()},
                     .blocks = keep ? held - std::min(held, *keep) : 0,
                     .by = keep ? now + within : 0});
  flush(creditor, line.contract());
}

void Borrower::creditor_lost(const PeerId& creditor, Nanos now) {
  while (contracts_.contains(creditor)) lose(creditor, contracts_.at(creditor).begin()->first);
  std::vector<uint64_t> waiting;
  for (const auto& [id, request] : requests_) {
    if (!request.asking && request.creditors[request.next] == creditor) waiting.push_back(id);
  }
  for (const uint64_t id : waiting) next_creditor(requests_.find(id), now);
}

void Borrower::vacate_all() {
  for (const auto& [creditor, contracts] : contracts_) {
    for (const auto& [id, contract] : contracts) {
      events_.push_back({.kind = BorrowEvent::Kind::kVacate,
                         .request = 0,
                         .contract = {creditor, id},
                         .blocks = static_cast<uint32_t>(contract.held.size()),
                         .by = 0});
    }
  }
}

std::map<PeerId, uint32_t, ByPeer> Borrower::by_creditor() const {
  std::map<PeerId, uint32_t, ByPeer> out;
  for (const auto& [creditor, contracts] : contracts_) {
    for (const auto& [id, contract] : contracts) out[creditor] += static_cast<uint32_t>(contract.held.size());
  }
  return out;
}

uint32_t Borrower::freeze(const PeerId& creditor) {
  const auto it = contracts_.find(creditor);
  if (it == contracts_.end()) return 0;
  uint32_t blocks = 0;
  for (auto& [id, contract] : it->second) {
    contract.frozen = true;
    blocks += static_cast<uint32_t>(contract.held.size());
    events_.push_back({.kind = BorrowEvent::Kind::kFrozen, .request = 0, .contract = {creditor, id}});
  }
  return blocks;
}

void Borrower::thaw() {
  std::vector<ContractRef> thawed;
  for (auto& [creditor, contracts] : contracts_) {
    for (auto& [id, contract] : contracts) {
      if (!contract.frozen) continue;
      contract.frozen = false;
      thawed.push_back({creditor, id});
    }
  }
  for (const ContractRef& contract : thawed) {
    events_.push_back({.kind = BorrowEvent::Kind::kThawed, .request = 0, .contract = contract});
    flush(contract.creditor, contract.id);
  }
}

}  // namespace kvasir::cluster
