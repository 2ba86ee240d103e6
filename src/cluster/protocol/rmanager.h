// One instance's part in pooling memory: it lends, borrows, reports to the leader, and calls back what
// settles a cycle of debts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cluster/protocol/borrower.h"
#include "cluster/protocol/lender.h"

namespace kvasir::wire {
class Ask;
class Granted;
class Settle;
class Standing;
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
        lender_(settings, memory, post),
        borrower_(settings, post) {}
  RManager(const RManager&) = delete;
  RManager& operator=(const RManager&) = delete;

  Lender& lender() { return lender_; }
  const Lender& lender() const { return lender_; }
  Borrower& borrower() { return borrower_; }
  const Borrower& borrower() const { return borrower_; }

  Status handle(const PeerId& from, const wire::Ask& message, Nanos now);
  Status handle(const PeerId& from, const wire::Granted& message, Nanos now);
  Status handle(const PeerId& from, const wire::Standing& message, Nanos now);
  Status handle(const PeerId& from, const wire::Settle& message, Nanos now);
  void lost(const PeerId& peer, Nanos now);
  // The leader. A term older than the known one is ignored; a new term ends what an older one settled.
  void leader(const PeerId& peer, uint64_t term, Nanos now);
  // The directory of members cannot be reached: no new contracts until it is back; existing ones continue.
  void directory(bool reached, Nanos now);
  // Lends and borrows no more, calls in what it has lent, and tells the owner of borrowed cells to give them
  // back.
  void leave(Nanos now);
  // After leave(): nothing is lent, borrowed or read any more.
  bool gone() const;

  void tick(Nanos now);
  Nanos next_deadline() const;
  // Call after handling anything: reports a settlement that is done, and room that a request waits for.
  void after(Nanos now);

  uint64_t term() const { return term_; }
  bool settling() const { return settlement_.has_value(); }
  std::string describe() const;

 private:
  struct Settlement {
    uint64_t id = 0;
    Nanos until = 0;
  };

  // Who leads, and in which term, only the directory says: leader(). A leader that knows of its election
  // before we do is obeyed when we know of it, too.
  bool obeys(const PeerId& from, uint64_t term) const;
  void end_settlement(Nanos now);
  void report(uint64_t settlement, uint32_t blocks);
  void heartbeat(Nanos now);
  void allow_contracts(Nanos now);

  const ProtocolSettings& settings_;
  LendableMemory& memory_;
  Post& post_;
  Lender lender_;
  Borrower borrower_;
  PeerId leader_;
  uint64_t term_ = 0;  // 0: there is no leader yet
  bool directory_ = true;
  bool leaving_ = false;
  Nanos next_heartbeat_ = INT64_MAX;
  Nanos last_heartbeat_ = 0;
  uint32_t told_room_ = 0;  // in the last heartbeat
  std::optional<Settlement> settlement_;
};

}  // namespace kvasir::cluster
