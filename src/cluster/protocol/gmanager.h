// The leader: it knows the room and the debts of all instances from heartbeats, recommends creditors, and
// settles cycles of debts. It decides nothing: a creditor that it recommends may refuse.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "cluster/protocol/debt_ledger.h"
#include "cluster/protocol/settings.h"
#include "cluster/protocol/settlement_run.h"

namespace kvasir::wire {
class Denied;
class Frozen;
class Heartbeat;
class Query;
class Settled;
}  // namespace kvasir::wire

namespace kvasir::cluster {

struct GManagerCounts {
  uint64_t heartbeats = 0;
  uint64_t queries = 0;
  uint64_t denied = 0;
  uint64_t settlements = 0;         // that were done
  uint64_t settlements_failed = 0;  // refused, late, or ended by a death
  uint64_t settled_blocks = 0;      // called back by settlements, of all in their cycles
};

// Not thread-safe. Every instance has one; it does nothing unless it leads.
class GManager {
 public:
  // The references outlive it.
  GManager(const ProtocolSettings& settings, Post& post) : settings_(settings), post_(post) {}
  GManager(const GManager&) = delete;
  GManager& operator=(const GManager&) = delete;

  // It was elected: it starts with an empty ledger, and answers questions only after every instance has had
  // time for a heartbeat. An older term than the last is ignored.
  void lead(uint64_t term, Nanos now);
  // Another instance leads: it forgets everything. The new term thaws frozen contracts.
  void step_down();
  bool leads() const { return term_ != 0; }
  // 0: it does not lead.
  uint64_t term() const { return term_; }

  Status handle(const PeerId& from, const wire::Heartbeat& message, Nanos now);
  Status handle(const PeerId& from, const wire::Query& message, Nanos now);
  Status handle(const PeerId& from, const wire::Denied& message, Nanos now);
  Status handle(const PeerId& from, const wire::Frozen& message, Nanos now);
  Status handle(const PeerId& from, const wire::Settled& message, Nanos now);
  void lost(const PeerId& peer, Nanos now);
  // While the directory cannot be reached it begins no settlement.
  void directory(bool reached) { directory_ = reached; }

  void tick(Nanos now);
  Nanos next_deadline() const;

  const DebtLedger& ledger() const { return ledger_; }
  const GManagerCounts& counts() const { return counts_; }
  bool settling() const { return run_.has_value(); }
  std::string describe() const;

 private:
  struct Question {
    PeerId from;
    uint64_t attempt;
    uint32_t blocks;
  };
  struct Planned {
    std::vector<PeerId> cycle;
    uint32_t blocks;
  };

  void answer(const Question& question);
  void plan();
  void advance(Nanos now);

  const ProtocolSettings& settings_;
  Post& post_;
  uint64_t term_ = 0;  // 0: it does not lead
  uint64_t last_term_ = 0;
  bool directory_ = true;
  DebtLedger ledger_;
  Nanos answers_from_ = 0;
  std::vector<Question> early_;  // asked before that
  Nanos next_sort_ = 0;
  Nanos next_plan_ = 0;
  uint64_t last_settlement_ = 0;
  std::deque<Planned> planned_;
  std::optional<SettlementRun> run_;
  GManagerCounts counts_;
};

}  // namespace kvasir::cluster
