// The leader: it knows the room and the debts of all instances from heartbeats, serves those that want to
// borrow in one order, and settles cycles of debts. A creditor that it recommends may refuse.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "cluster/protocol/debt_ledger.h"
#include "cluster/protocol/settings.h"
#include "cluster/protocol/wait_list.h"

namespace kvasir::wire {
class Borrow;
class Denied;
class Heartbeat;
class Settled;
}  // namespace kvasir::wire

namespace kvasir::cluster {

struct GManagerCounts {
  uint64_t heartbeats = 0;
  uint64_t wishes = 0;   // that were put, changed or taken back, without those in heartbeats
  uint64_t advised = 0;  // that were served
  uint64_t denied = 0;
  uint64_t settlements = 0;         // in which all called back what they should
  uint64_t settlements_failed = 0;  // fewer blocks, late, or ended by a death
  uint64_t settled_blocks = 0;      // called back by settlements, of all in their cycles
};

// Not thread-safe. Every instance has one; it does nothing unless it leads.
class GManager {
 public:
  // The references outlive it.
  GManager(const ProtocolSettings& settings, Post& post) : settings_(settings), post_(post) {}
  GManager(const GManager&) = delete;
  GManager& operator=(const GManager&) = delete;

  // It was elected: it starts with an empty ledger, and serves no wish before every instance has had time for
  // a heartbeat. An older term than the last is ignored.
  void lead(uint64_t term, Nanos now);
  // Another instance leads: it forgets everything. The new term ends what is being settled.
  void step_down();
  bool leads() const { return term_ != 0; }
  // 0: it does not lead.
  uint64_t term() const { return term_; }

  Status handle(const PeerId& from, const wire::Heartbeat& message, Nanos now);
  Status handle(const PeerId& from, const wire::Borrow& message, Nanos now);
  Status handle(const PeerId& from, const wire::Denied& message, Nanos now);
  Status handle(const PeerId& from, const wire::Settled& message, Nanos now);
  void lost(const PeerId& peer, Nanos now);
  // While the directory cannot be reached it begins no settlement.
  void directory(bool reached) { directory_ = reached; }

  // Call after handling anything: advises those whose turn has come.
  void after(Nanos now);
  void tick(Nanos now);
  Nanos next_deadline() const;

  const DebtLedger& ledger() const { return ledger_; }
  const WaitList& wait_list() const { return wait_list_; }
  const GManagerCounts& counts() const { return counts_; }
  bool settling() const { return running_.has_value(); }
  std::string describe() const;

 private:
  // Each instance of a cycle owes the next one, and the last owes the first; each calls back so many blocks.
  struct Settling {
    std::vector<PeerId> cycle;
    uint32_t blocks = 0;
    uint64_t id = 0;
    std::vector<bool> reported;
    bool failed = false;
    Nanos until = 0;
  };

  Status take(const PeerId& from, const wire::Borrow& message, Nanos now);
  void say_who_waits(const PeerId& to, Nanos now);
  void plan();
  void settle_next(Nanos now);
  void end_settling(Nanos now);

  const ProtocolSettings& settings_;
  Post& post_;
  uint64_t term_ = 0;  // 0: it does not lead
  uint64_t last_term_ = 0;
  bool directory_ = true;
  DebtLedger ledger_;
  WaitList wait_list_;
  bool changed_ = false;  // since wishes were served
  Nanos serves_from_ = 0;
  Nanos next_look_ = 0;
  Nanos next_plan_ = 0;
  uint64_t last_settlement_ = 0;
  std::deque<Settling> planned_;
  std::optional<Settling> running_;
  GManagerCounts counts_;
};

}  // namespace kvasir::cluster
