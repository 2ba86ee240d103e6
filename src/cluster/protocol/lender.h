// What an instance lends: contracts with its debtors, granted first come, first served, and ended by either
// side. The creditor alone decides over its blocks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/protocol/cluster_clock.h"
#include "cluster/protocol/post.h"
#include "cluster/protocol/settings.h"

namespace kvasir::wire {
class AskStatement;
class Borrow;
class GiveBack;
class Waiting;
}  // namespace kvasir::wire

namespace kvasir::cluster {

// The memory that may be lent, in numbered blocks of one size.
class LendableMemory {
 public:
  virtual ~LendableMemory() = default;
  // So many blocks, or none.
  virtual std::optional<std::vector<uint32_t>> take(uint32_t blocks) = 0;
  virtual void give_back(std::span<const uint32_t> blocks) = 0;
  virtual uint32_t free_blocks() const = 0;
  virtual uint32_t total_blocks() const = 0;
};

// A loan, as its creditor knows it. The debtor names the blocks by slots, from 0 on.
struct Contract {
  static constexpr uint32_t kGone = UINT32_MAX;

  uint64_t id = 0;
  PeerId debtor;
  uint64_t attempt = 0;          // the debtor's number for its question
  Nanos since = 0;               // when the request that needs it arrived, by the cluster's clock
  std::vector<uint32_t> blocks;  // by slot; kGone: given back, for good
  uint32_t lent = 0;             // slots that are not gone
  std::optional<uint32_t> keep;  // recalled: so many may stay
  Nanos revoke_at = INT64_MAX;   // of a recall for the creditor's own need
  bool frozen = false;
};

// Times are by this instance's clock unless stated otherwise. Not thread-safe.
class Lender {
 public:
  // The references outlive it.
  Lender(const ProtocolSettings& settings, LendableMemory& memory, Post& post, ClusterClock& clock)
      : settings_(settings), memory_(memory), post_(post), clock_(clock) {}

  Status handle(const PeerId& from, const wire::Borrow& message, Nanos now);
  // Answers a Borrow that is not for this lender to judge.
  void refuse(const PeerId& from, uint64_t attempt, Nanos now);
  Status handle(const PeerId& from, const wire::GiveBack& message, Nanos now);
  Status handle(const PeerId& from, const wire::AskStatement& message, Nanos now);
  Status handle(const PeerId& from, const wire::Waiting& message, Nanos now);
  // Its blocks come back at once, except those that are pinned.
  void debtor_lost(const PeerId& debtor);
  // Sends the statements that are due, and revokes: a debtor that has not obeyed a recall in time loses the
  // contract.
  void tick(Nanos now);
  Nanos next_deadline() const;

  // Whether new contracts are made.
  void set_lending(bool lending) { lending_ = lending; }
  // Recalls blocks of contracts for requests that arrived after `since`, the latest requests first, until so
  // many are on their way back; earlier recalls count. Returns how many are: fewer where contracts are
  // frozen (ask again later) or less is lent. Nothing is lent until they are back.
  uint32_t recall(uint32_t blocks, Nanos now, Nanos since = INT64_MIN);
  // The blocks that a request of this instance needs: they are not lent to a peer's request that arrived
  // later.
  void keep_for_own(uint32_t blocks, Nanos since) { own_ = {blocks, since}; }
  struct Claim {
    uint32_t blocks = 0;
    Nanos since = INT64_MIN;
  };
  // The first of the peers' waiting requests: when it arrived, and how many of the blocks that it lacks this
  // instance may lend. A request of this instance that arrived after `since` goes behind it. If none waits,
  // `since` is INT64_MAX.
  Claim awaited() const;

  // When the oldest request that may need the contract's blocks arrived, by our clock, as far as known.
  Nanos came(const Contract& contract) const;
  // null: there is no such contract with this life of the debtor.
  const Contract* lent(const PeerId& debtor, uint64_t contract) const;
  // The blocks behind some slots. They keep their use until they are unpinned, even if the contract ends.
  // kUnavailable: they are not lent to this life of the debtor, or no longer.
  Result<std::vector<uint32_t>> pin(const PeerId& debtor, uint64_t contract, std::span<const uint32_t> slots);
  void unpin(std::span<const uint32_t> blocks);

  // Blocks that would be lent to a peer now, for a request that is older than all others.
  uint32_t room() const;
  // Blocks of contracts, and blocks whose contract has ended while they were pinned.
  uint32_t lent_blocks() const { return lent_; }
  uint32_t pinned_leftovers() const { return static_cast<uint32_t>(doomed_.size()); }
  const std::map<uint64_t, Contract>& contracts() const { return contracts_; }
  std::map<PeerId, uint32_t, ByPeer> by_debtor() const;

  // For a settlement: freezes the contracts with a debtor and returns their blocks; 0, and nothing is
  // frozen: there are none, or some are being recalled.
  uint32_t freeze(const PeerId& debtor);
  // Recalls so many of the frozen blocks, or all if there are fewer; the contracts are not revoked for it.
  // `within`: the time that the debtor is told.
  void settle(uint32_t blocks, Nanos within, Nanos now);
  // Whether all blocks to be settled are back.
  bool settled() const;
  // Thaws everything; recalls of a settlement are cancelled.
  void thaw(Nanos now);

  std::string describe() const;

 private:
  struct WaitingPeer {
    Claim lacks;      // `since` by the cluster's clock
    Nanos until = 0;  // unless the peer repeats it
  };

  Contract* find(const PeerId& debtor, uint64_t contract);
  uint32_t under_cap() const;
  uint32_t room_for(const PeerId& debtor, Nanos since) const;
  Nanos stamp(const Contract& contract) const;
  void release(Contract& contract, uint32_t slot);
  void end(uint64_t contract);
  void state(const PeerId& debtor, Nanos now);

  const ProtocolSettings& settings_;
  LendableMemory& memory_;
  Post& post_;
  ClusterClock& clock_;
  bool lending_ = true;
  uint64_t last_contract_ = 0;
  uint32_t lent_ = 0;
  std::map<uint64_t, Contract> contracts_;
  std::map<uint32_t, uint32_t> pins_;  // by block
  std::set<uint32_t> doomed_;          // to be given back when no longer pinned
  Nanos next_statement_ = 0;
  uint32_t settled_ = 0;  // blocks that a running settlement brought back: they are not lent to others
  Claim own_;             // `since` by our clock
  std::map<PeerId, WaitingPeer, ByPeer> waiting_;
  // When the oldest request that needs a debtor's borrowed blocks arrived, by the cluster's clock. A
  // contract may outlive the request that it was made for.
  std::map<PeerId, Nanos, ByPeer> needed_since_;
};

}  // namespace kvasir::cluster
