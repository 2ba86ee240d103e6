// One instance's part in pooling memory: it lends, borrows, reports to the leader, and freezes contracts
// while a cycle of debts is settled.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cluster/protocol/borrower.h"
#include "cluster/protocol/lender.h"

namespace kvasir::wire {
class Borrow;
class Freeze;
class Settle;
class Unfreeze;
}  // namespace kvasir::wire

namespace kvasir::cluster {

// Not thread-safe; owns no thread and no clock. Its driver passes it messages and membership, calls tick()
// no later than next_deadline(), and handles the borrower's events.
class RManager {
 public:
  // The references outlive it.
  RManager(const ProtocolSettings& settings, LendableMemory& memory, Post& post)
      : settings_(settings),
        memory_(memory),
        post_(post),
        lender_(settings, memory, post, clock_),
        borrower_(settings, post, clock_) {}
  RManager(const RManager&) = delete;
  RManager& operator=(const RManager&) = delete;

  Lender& lender() { return lender_; }
  const Lender& lender() const { return lender_; }
  Borrower& borrower() { return borrower_; }
  const Borrower& borrower() const { return borrower_; }

  Status handle(const PeerId& from, const wire::Borrow& message, Nanos now);
  Status handle(const PeerId& from, const wire::Freeze& message, Nanos now);
  Status handle(const PeerId& from, const wire::Settle& message, Nanos now);
  Status handle(const PeerId& from, const wire::Unfreeze& message, Nanos now);
  void lost(const PeerId& peer, Nanos now);
  // The leader. A term older than the known one is ignored; a new term thaws what an older one froze.
  void leader(const PeerId& peer, uint64_t term, Nanos now);
  // The directory of members cannot be reached: no new contracts until it is back; existing ones continue.
  void directory(bool reached);
  // How many of the peers' blocks a request of this instance lacks, and when the request arrived; the peers
  // are told.
  void wait_for(uint32_t blocks, Nanos now, Nanos since, Nanos needed_since = INT64_MAX);
  // Lends and borrows no more, calls in what it has lent, and tells the owner of borrowed cells to give them
  // back.
  void leave(Nanos now);
  // After leave(): nothing is lent, borrowed or read any more.
  bool gone() const;

  void tick(Nanos now);
  Nanos next_deadline() const;
  // Call after handling anything: reports a settlement that is done.
  void after(Nanos now);

  uint64_t term() const { return term_; }
  bool frozen() const { return freezing_.has_value(); }
  std::string describe() const;

 private:
  struct Freezing {
    uint64_t settlement = 0;
    PeerId debtor;
    PeerId creditor;
    bool settling = false;
    bool reported = false;
    Nanos until = 0;
  };

  // Who leads, and in which term, only the directory says: leader(). A leader that knows of its election
  // before we do is obeyed when we know of it, too.
  bool obeys(const PeerId& from, uint64_t term) const;
  void thaw(Nanos now);
  void report(bool done);
  void heartbeat(Nanos now);
  void say_who_waits(Nanos now);
  void allow_contracts();

  const ProtocolSettings& settings_;
  LendableMemory& memory_;
  Post& post_;
  ClusterClock clock_;
  Lender lender_;
  Borrower borrower_;
  PeerId leader_;
  uint64_t term_ = 0;  // 0: there is no leader yet
  bool directory_ = true;
  bool leaving_ = false;
  Nanos next_heartbeat_ = INT64_MAX;
  Lender::Claim missing_{0, 0};
  Nanos needed_since_ = INT64_MAX;
  std::optional<Freezing> freezing_;
};

}  // namespace kvasir::cluster
