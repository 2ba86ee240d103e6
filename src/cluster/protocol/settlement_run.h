// One settlement of a cycle of debts, as its leader sees it: all instances in the cycle freeze the contracts
// concerned, each calls back the same number of blocks, and all thaw. Every outcome ends with all contracts
// thawed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cluster/protocol/post.h"
#include "cluster/protocol/settings.h"

namespace kvasir::cluster {

// Not thread-safe.
class SettlementRun {
 public:
  enum class State { kFreezing, kSettling, kDone, kFailed };

  // Each instance in the cycle owes the next, the last owes the first. The references outlive it.
  SettlementRun(const ProtocolSettings& settings, Post& post, uint64_t term, uint64_t id,
                std::vector<PeerId> cycle, uint32_t blocks, Nanos now);

  void frozen(const PeerId& from, uint64_t id, bool agreed, uint32_t lent);
  void settled(const PeerId& from, uint64_t id, bool done);
  void lost(const PeerId& peer);
  void tick(Nanos now);
  Nanos next_deadline() const {
    return ended() ? INT64_MAX : state_ == State::kFreezing ? freeze_by_ : settle_by_;
  }

  State state() const { return state_; }
  bool ended() const { return state_ == State::kDone || state_ == State::kFailed; }
  // What each instance has called back. REQUIRES: state() == kDone
  uint32_t blocks() const { return blocks_; }
  const std::vector<PeerId>& cycle() const { return cycle_; }
  std::string describe() const;

 private:
  size_t find(const PeerId& peer) const;
  void end(State state);

  const ProtocolSettings& settings_;
  Post& post_;
  const uint64_t term_;
  const uint64_t id_;
  const std::vector<PeerId> cycle_;
  State state_ = State::kFreezing;
  uint32_t blocks_;
  std::vector<bool> heard_;  // in this state
  const Nanos freeze_by_;
  const Nanos settle_by_;
};

}  // namespace kvasir::cluster
