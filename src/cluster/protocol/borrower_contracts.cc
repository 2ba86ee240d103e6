// Contracts: from the grant until they are given back or lost.
#include <algorithm>

#include "base/mutant.h"
#include "cluster/protocol/borrower.h"
#include "cluster/protocol/cluster.pb.h"

namespace kvasir::cluster {

HeldContract* Borrower::find(const PeerId& creditor, uint64_t id) {
  return const_cast<HeldContract*>(held({creditor, id}));
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
  std::vector<uint32_t> back;
  for (const uint32_t slot : slots) {
    if (contract->held.erase(slot) > 0) back.push_back(slot);
  }
  if (back.empty()) return;
  send_back(ref.creditor, ref.id, back);
  if (contract->held.empty()) erase(ref.creditor, ref.id);
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

void Borrower::erase(const PeerId& creditor, uint64_t id) {
  contracts_.at(creditor).erase(id);
  if (!contracts_.at(creditor).empty()) return;
  contracts_.erase(creditor);
  silence_.erase(creditor);
}

void Borrower::lose(const PeerId& creditor, uint64_t id) {
  if (held({creditor, id})->announced) {
    events_.push_back({.kind = BorrowEvent::Kind::kLost, .contract = {creditor, id}});
  }
  erase(creditor, id);
}

Status Borrower::handle(const PeerId& from, const wire::Statement& message, Nanos now) {
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
    silence_.at(from) = {now, now + 2 * settings_.statement};
    for (const auto& [id, contract] : it->second) {
      if (!lent.contains(id)) gone.push_back(id);
    }
  }
  for (const uint64_t id : gone) lose(from, id);
  if (contracts_.contains(from) && message.needed_since_ns() != needed_since_) {
    wire::Envelope answer;
    answer.mutable_needs()->set_since_ns(needed_since_);
    // The next statement asks again.
    (void)post_.send(from, answer);
  }
  return {};
}

void Borrower::heed(const PeerId& creditor, const wire::Statement::Line& line, Nanos now) {
  HeldContract* contract = find(creditor, line.contract());
  if (!contract) {
    // Messages come in order: the grant was lost, or what was granted is not wanted any more.
    const Asked* asked = find_ask(creditor, line.ask());
    if (!asked || line.granted() > asked->blocks || line.lent() != line.granted() || line.lent() == 0) {
      return send_back_unwanted(creditor, line.contract());
    }
    accept(creditor, line.contract(), line.granted(), now);
    answered(line.ask(), line.granted(), now);
    contract = find(creditor, line.contract());
    if (!contract) return;  // too few came together: it went back
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
  contract->recalled_by = now + static_cast<Nanos>(std::min<uint64_t>(line.within_ns(), INT64_MAX / 4));
  if (heeded || !contract->announced) return;
  events_.push_back({.kind = BorrowEvent::Kind::kRecalled,
                     .contract = {creditor, line.contract()},
                     .blocks = keep ? held - std::min(held, *keep) : 0,
                     .by = keep ? contract->recalled_by : 0});
}

void Borrower::creditor_lost(const PeerId& creditor, Nanos now) {
  while (contracts_.contains(creditor)) lose(creditor, contracts_.at(creditor).begin()->first);
  late_.erase(creditor);
  if (!round_) return;
  std::erase_if(round_->open, [&](const auto& entry) { return entry.second.creditor == creditor; });
  end_round_if_answered(now);
}

void Borrower::vacate_all() {
  for (const auto& [creditor, contracts] : contracts_) {
    for (const auto& [id, contract] : contracts) {
      if (!contract.announced) continue;
      events_.push_back({.kind = BorrowEvent::Kind::kVacate,
                         .contract = {creditor, id},
                         .blocks = static_cast<uint32_t>(contract.held.size())});
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

}  // namespace kvasir::cluster
