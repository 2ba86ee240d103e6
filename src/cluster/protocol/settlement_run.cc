#include "cluster/protocol/settlement_run.h"

#include <algorithm>

#include "cluster/protocol/cluster.pb.h"

namespace kvasir::cluster {

SettlementRun::SettlementRun(const ProtocolSettings& settings, Post& post, uint64_t term, uint64_t id,
                             std::vector<PeerId> cycle, uint32_t blocks, Nanos now)
    : settings_(settings),
      post_(post),
      term_(term),
      id_(id),
      cycle_(std::move(cycle)),
      blocks_(blocks),
      heard_(cycle_.size(), false),
      freeze_by_(now + settings.answer),
      settle_by_(now + settings.settle_limit) {
  for (size_t i = 0; i < cycle_.size(); ++i) {
    wire::Envelope message;
    wire::Freeze* freeze = message.mutable_freeze();
    freeze->set_term(term_);
    freeze->set_settlement(id_);
    put(cycle_[(i + cycle_.size() - 1) % cycle_.size()], freeze->mutable_debtor());
    put(cycle_[(i + 1) % cycle_.size()], freeze->mutable_creditor());
    if (!post_.send(cycle_[i], message).ok()) {
      end(State::kFailed);
      return;
    }
  }
}

size_t SettlementRun::find(const PeerId& peer) const {
  return static_cast<size_t>(std::find(cycle_.begin(), cycle_.end(), peer) - cycle_.begin());
}

void SettlementRun::frozen(const PeerId& from, uint64_t id, bool agreed, uint32_t lent) {
  const size_t at = find(from);
  if (state_ != State::kFreezing || id != id_ || at == cycle_.size() || heard_[at]) return;
  // Heartbeats are old news: what counts is what is frozen.
  blocks_ = std::min(blocks_, lent);
  if (!agreed || blocks_ < settings_.settle_min) return end(State::kFailed);
  heard_[at] = true;
  if (!std::all_of(heard_.begin(), heard_.end(), [](bool heard) { return heard; })) return;
  state_ = State::kSettling;
  heard_.assign(cycle_.size(), false);
  for (const PeerId& peer : cycle_) {
    wire::Envelope message;
    message.mutable_settle()->set_term(term_);
    message.mutable_settle()->set_settlement(id_);
    message.mutable_settle()->set_blocks(blocks_);
    if (!post_.send(peer, message).ok()) return end(State::kFailed);
  }
}

void SettlementRun::settled(const PeerId& from, uint64_t id, bool done) {
  const size_t at = find(from);
  if (ended() || id != id_ || at == cycle_.size()) return;
  if (!done) return end(State::kFailed);
  if (state_ != State::kSettling) return;
  heard_[at] = true;
  if (std::all_of(heard_.begin(), heard_.end(), [](bool heard) { return heard; })) end(State::kDone);
}

void SettlementRun::lost(const PeerId& peer) {
  if (!ended() && find(peer) != cycle_.size()) end(State::kFailed);
}

void SettlementRun::tick(Nanos now) {
  if (!ended() && now >= next_deadline()) end(State::kFailed);
}

void SettlementRun::end(State state) {
  state_ = state;
  for (const PeerId& peer : cycle_) {
    wire::Envelope message;
    message.mutable_unfreeze()->set_term(term_);
    message.mutable_unfreeze()->set_settlement(id_);
    // A receiver that misses it thaws by its own deadline.
    (void)post_.send(peer, message);
  }
}

std::string SettlementRun::describe() const {
  std::string out = fmt::format("  settles {} of term {}: {} blocks, state {}, by {} and {}:", id_, term_,
                                blocks_, static_cast<int>(state_), freeze_by_, settle_by_);
  for (size_t i = 0; i < cycle_.size(); ++i) {
    out += fmt::format(" {}{}", name_of(cycle_[i]), heard_[i] ? "!" : "");
  }
  return out + "\n";
}

}  // namespace kvasir::cluster
