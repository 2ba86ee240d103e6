// What an instance lends: contracts with its debtors, ended by either side. The creditor alone decides over
// its blocks; in which order debtors ask is the leader's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/protocol/loan_table.h"
#include "cluster/protocol/post.h"
#include "cluster/protocol/settings.h"
#include "contract/lending.h"

namespace kvasir::wire {
class Ask;
class AskStatement;
class GiveBack;
class Needs;
class Standing;
}  // namespace kvasir::wire

namespace kvasir::cluster {

// The memory that may be lent, in numbered blocks of one size.
class LendableMemory {
 public:
  virtual ~LendableMemory() = default;
  // Whether blocks can be taken now, if there are any.
  virtual bool ready() const { return true; }
  // So many blocks, or none.
  virtual std::optional<std::vector<uint32_t>> take(uint32_t blocks) = 0;
  virtual void give_back(std::span<const uint32_t> blocks) = 0;
  virtual uint32_t free_blocks() const = 0;
  virtual uint32_t total_blocks() const = 0;
  // The cells of as many of the chain's first blocks as are here, which keep their bytes until they are given
  // back. Nothing: it cannot be said now.
  struct Shown {
    std::vector<uint32_t> cells;
    uint32_t blocks = 0;
  };
  virtual std::optional<Shown> show_prefix(std::span<const PrefixHash>) { return Shown(); }
  // These cells of one such answer, the first ones, of whole blocks, are lent from now on. Those behind them
  // have been given back, or will be.
  virtual void keep_prefix(std::span<const uint32_t>) {}
  // What blocks of a chain are, of which the cells are blocks of this memory.
  virtual LendableCells::BlockShape block_shape() const { return {}; }
  // As take(), but the cells of as many of the chain's first blocks as are here, with their bytes. Nothing:
  // it cannot be said now.
  virtual std::optional<std::vector<uint32_t>> take_blocks(std::span<const PrefixHash>) {
    return std::vector<uint32_t>();
  }
};

// A loan, as its creditor knows it. The debtor names the blocks by slots, from 0 on.
struct Contract {
  static constexpr uint32_t kGone = LoanTable::kGone;

  uint64_t id = 0;
  PeerId debtor;
  uint64_t ask = 0;              // the debtor's number for its question
  Nanos since = 0;               // when the request arrived that needs it, by our clock
  int64_t since_there = 0;       // by the debtor's
  std::vector<uint32_t> blocks;  // by slot; kGone: given back, for good
  uint32_t lent = 0;             // slots that are not gone
  std::optional<uint32_t> keep;  // recalled: so many may stay
  Nanos due = INT64_MAX;         // when it is expected back, by our clock; INT64_MAX: unknown
  Nanos revoke_at = INT64_MAX;   // of a recall for the creditor's own need
  // Its blocks are the creditor's own, which may be in use there: when they are back they need not be free.
  bool lends_prefix() const { return (id & kLendsPrefix) != 0; }
  bool settling =
      false;  // recalled to settle a cycle of debts: neither revoked nor recalled for another reason
};

// Times are by this instance's clock unless stated otherwise. Not thread-safe, but for loans().
class Lender {
 public:
  // The references outlive it.
  Lender(const ProtocolSettings& settings, LendableMemory& memory, Post& post)
      : settings_(settings), memory_(memory), post_(post) {}
  ~Lender() { loans_->close(); }
  Lender(const Lender&) = delete;
  Lender& operator=(const Lender&) = delete;

  Status handle(const PeerId& from, const wire::Ask& message, Nanos now);
  // Answers an Ask that is not for this lender to judge.
  void refuse(const PeerId& from, uint64_t ask, bool later = false);
  Status handle(const PeerId& from, const wire::GiveBack& message, Nanos now);
  Status handle(const PeerId& from, const wire::AskStatement& message, Nanos now);
  Status handle(const PeerId& from, const wire::Needs& message, Nanos now);
  // Of the leader. mine: arrival of the request of this instance that the leader compared; INT64_MAX: of
  // none.
  void handle(const wire::Standing& message, Nanos mine, Nanos now);
  // What the debtor asked for during a step of the engine is not granted any more.
  void forget_late(const PeerId& debtor) { late_.erase(debtor); }
  // Makes a loan for which there was no Ask. Returns its number. REQUIRES: 0 < blocks <= what
  // room() was before they were taken
  uint64_t lend(const PeerId& debtor, std::vector<uint32_t> blocks, Nanos since, int64_t since_there,
                Nanos now);
  // The same for blocks with a prefix that is here, which the debtor reads and does not write. REQUIRES: no
  // more than room_for_prefixes()
  uint64_t lend_prefix(const PeerId& debtor, std::vector<uint32_t> blocks, Nanos since, int64_t since_there,
                       Nanos now);
  // Blocks that memory gave and that are lent to none.
  void return_blocks(std::span<const uint32_t> blocks) { hand_back(blocks); }
  // Its blocks come back at once, except those that are pinned.
  void debtor_lost(const PeerId& debtor);
  // Blocks that are pinned no longer go back to the memory. tick() does this, too.
  void collect_unpinned();
  // Sends the statements that are due, and revokes: a debtor that has not obeyed a recall in time loses the
  // contract.
  void tick(Nanos now);
  Nanos next_deadline() const;

  // Whether new contracts are made.
  void set_lending(bool lending) { lending_ = lending; }
  // Recalls blocks of contracts for requests that arrived after `since`, the latest requests first, until so
  // many are on their way back; earlier recalls count. Returns how many are: fewer where contracts are being
  // settled (ask again later) or less is lent. Nothing is lent until they are back.
  uint32_t recall(uint32_t blocks, Nanos now, Nanos since = INT64_MIN);
  struct Claim {
    uint32_t blocks = 0;
    Nanos since = INT64_MAX;
  };
  // The blocks that a request of this instance needs: they are not lent to a peer's request that arrived
  // later.
  void keep_for_own(uint32_t blocks, Nanos since) { own_ = {blocks, since}; }
  const Claim& own() const { return own_; }
  // The first of the peers' waiting requests: when it arrived, and how many of the blocks that it lacks this
  // instance may lend. A request of this instance that arrived after `since` goes behind it. If none waits,
  // `since` is INT64_MAX.
  Claim awaited() const;

  // When the oldest request that may need the contract's blocks arrived, as far as known.
  Nanos came(const Contract& contract) const;
  // null: there is no such contract with this life of the debtor.
  const Contract* lent(const PeerId& debtor, uint64_t contract) const;
  // For the threads that read and write what is lent. It may outlive the lender: then nothing is lent.
  const std::shared_ptr<LoanTable>& loans() const { return loans_; }

  // Blocks that would be lent to a peer now, for a request that is older than all others.
  uint32_t room() const;
  // The same while it can lend; else 0.
  uint32_t room_now() const { return memory_.ready() ? room() : 0; }
  // As room(), for blocks that are here and need no free memory.
  uint32_t room_for_prefixes() const { return lending_ && recalled_ == 0 ? under_cap() : 0; }
  // The most that it lends in all, if nothing else uses its memory.
  uint32_t lendable() const { return lending_ ? std::min(settings_.lend_cap, memory_.total_blocks()) : 0; }
  // Blocks of contracts, and blocks whose contract has ended while they were pinned.
  uint32_t lent_blocks() const { return lent_; }
  uint32_t pinned_leftovers() const { return loans_->leftovers(); }
  const std::map<uint64_t, Contract>& contracts() const { return contracts_; }
  std::map<PeerId, uint32_t, ByPeer> by_debtor() const;

  // Recalls so many of the debtor's blocks, without force, to settle a cycle of debts; `within`: the time
  // that the debtor is told. What comes back is lent to none until end_settling().
  void settle(const PeerId& debtor, uint32_t blocks, Nanos within, Nanos now);
  // Whether all that is to come back is back.
  bool settled() const { return to_settle_ == 0; }
  uint32_t settled_blocks() const { return settled_; }
  // What is not back stays. Returns how many are.
  uint32_t end_settling(Nanos now);

  std::string describe() const;

 private:
  struct Question {
    uint64_t ask = 0;
    uint32_t blocks = 0;
    bool before_own = false;
    Nanos since = 0;  // when the request arrived that needs them, by our clock
    int64_t since_there = 0;
    Nanos hold = 0;
    Nanos came = 0;
  };
  struct Debtor {
    uint32_t blocks = 0;
    std::set<uint64_t> contracts;
    // When the oldest request arrived that needs the borrowed blocks, by the debtor's clock. A contract may
    // outlive the request that it was made for.
    int64_t needed_since = INT64_MIN;
  };

  Contract* find(const PeerId& debtor, uint64_t contract);
  uint32_t under_cap() const;
  // False: there is nothing for it.
  bool try_to_grant(const PeerId& from, const Question& question, Nanos now);
  void answer_late(Nanos now);
  Contract& make_contract(const PeerId& debtor, uint64_t ask, std::vector<uint32_t> blocks, Nanos since,
                          int64_t since_there, Nanos now, uint64_t kind = 0);
  // Changes what a contract may keep, and counts.
  void set_keep(Contract& contract, std::optional<uint32_t> keep);
  void count_returned(Contract& contract, uint32_t blocks);
  void end(uint64_t contract);
  void hand_back(std::span<const uint32_t> blocks);
  void state(const PeerId& debtor, Nanos now);

  const ProtocolSettings& settings_;
  LendableMemory& memory_;
  Post& post_;
  bool lending_ = true;
  uint64_t last_contract_ = 0;
  uint32_t lent_ = 0;
  uint32_t recalled_ = 0;  // contracts that are recalled for this instance's own need
  std::map<uint64_t, Contract> contracts_;
  std::map<PeerId, Debtor, ByPeer> debtors_;  // each with a contract
  const std::shared_ptr<LoanTable> loans_ = std::make_shared<LoanTable>();
  Nanos next_statement_ = 0;
  // Of a running settlement: blocks that came back, which are lent to none, and those to come.
  uint32_t settled_ = 0;
  uint32_t to_settle_ = 0;
  Claim own_;
  // The first waiting request of a peer, unless the leader repeats it by then.
  Claim awaited_;
  PeerId awaited_by_;
  Nanos awaited_until_ = 0;
  std::map<PeerId, Question, ByPeer> late_;  // by debtor, the last that came during the engine's step
};

}  // namespace kvasir::cluster
