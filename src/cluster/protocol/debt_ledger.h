// The leader's table of the room and the debts of all instances. It is soft state: heartbeats fill it,
// entries without heartbeats expire, and the next leader rebuilds it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cluster/protocol/debt_cycles.h"
#include "cluster/protocol/post.h"

namespace kvasir::cluster {

// Blocks that are lent and are expected back then.
struct Due {
  Nanos at = 0;
  uint32_t blocks = 0;
  friend bool operator==(const Due&, const Due&) = default;
};

// The most ends of loans that a heartbeat names.
constexpr size_t kMostDue = 4096;
// Ends of loans. Where there are more than `most`, those within a step are one, at the last of them, the
// first step first; what is too much then is left out.
std::vector<Due> joined_due(std::vector<Due> due, Nanos step, size_t most = kMostDue);

// What an instance says of itself.
struct InstanceFigures {
  uint32_t free = 0;  // blocks of its memory
  uint32_t total = 0;
  uint32_t room = 0;      // blocks that it would lend now, for a request older than all
  uint32_t lendable = 0;  // and the most that it lends in all, if nothing else uses its memory
  // Blocks that a request of its own needs, and when that arrived, by the clock of the table.
  uint32_t own = 0;
  Nanos own_since = INT64_MAX;
  bool device = false;
  std::string location;                     // "zone/rack/host"
  std::map<PeerId, uint32_t, ByPeer> lent;  // by debtor
  std::map<PeerId, uint32_t, ByPeer> owed;  // by creditor, as it believes
  std::vector<Due> due;                     // of what it lends; by the clock of the table
};

struct LedgerEntry {
  PeerId id;
  InstanceFigures figures;
  Nanos heard = 0;
  Nanos ahead = 0;  // of the instance's clock is ours, as far as known
  // The debtors that were sent to it since its last heartbeat, and the blocks that they wanted in all.
  std::vector<PeerId> sent;
  uint32_t sent_blocks = 0;
  std::vector<Due> sent_due;    // when these are expected back, as far as it is known
  bool refused = false;         // it refused to lend, and has not reported room since
  bool told_who_waits = false;  // by the last answer to its heartbeat
  uint32_t sorted = 0;          // the room by which it is sorted
};

struct Demand {
  PeerId debtor;
  uint32_t least = 1;  // together, or not at all
  uint32_t most = 0;
  Nanos since = 0;            // of the request that needs it, by the leader's clock
  std::optional<Nanos> hold;  // how long it keeps what it borrows, as far as known
};

// A part of what is lent. before_own: the request goes before the creditor's own.
struct Share {
  PeerId creditor;
  uint32_t blocks = 0;
  bool before_own = false;
};

// A debtor for which memory is gathered: of what it may use, others get `spare` blocks at the most.
struct Reservation {
  PeerId debtor;
  uint32_t spare = 0;
};

struct Allocation {
  std::vector<Share> shares;  // best first; empty: there is less than the least
  uint32_t room = 0;          // of all that may be asked
};

// The number of parts in which two locations differ, counted from the first difference from the outside on;
// 0 on one host.
uint32_t distance(const std::string& a, const std::string& b);

// Not thread-safe.
class DebtLedger {
 public:
  DebtLedger() = default;
  DebtLedger(const DebtLedger&) = delete;
  DebtLedger& operator=(const DebtLedger&) = delete;

  static constexpr size_t kMostCreditors = 3;

  // A heartbeat. An earlier life of the instance is forgotten. It makes an instance that refused eligible
  // for recommendations again only if it shows room.
  // now_there: by the instance's clock. So are the times in its figures.
  // Returns whether it would lend other than before, or needs other than before itself.
  bool update(const PeerId& id, InstanceFigures figures, Nanos now, int64_t now_there);
  bool update(const PeerId& id, InstanceFigures figures, Nanos now) {
    return update(id, std::move(figures), now, now);
  }
  // What the instance says was at `since_there` when its clock showed `now_there`, by ours. All that one
  // instance says comes in its own order, and times of two are right to within the fastest message.
  Nanos time_of(const PeerId& id, int64_t since_there, int64_t now_there, Nanos now) const;
  void remove(const PeerId& id);
  // Forgets the instances that were last heard of before `since`.
  void expire(Nanos since);
  void clear();

  // Where a debtor may borrow. One creditor that has room for all is better than several, and more than three
  // are named only if the least needs them; several divide it evenly, as far as each has room, for they
  // attend side by side: those that lend on devices, and those that lend host memory for the rest. Those to
  // which the fewest others were sent since their last heartbeat come first; among these the nearest, then
  // device before host memory, then the most room. What is recommended counts as lent until the creditor's
  // next heartbeat. Without `to_creditors` no instance is recommended that itself owes the debtor something.
  // Instances that may lend to one of `kept_for` are left out.
  Allocation allocate(const Demand& demand, Nanos now, bool to_creditors,
                      const std::optional<Reservation>& before = std::nullopt,
                      std::span<const PeerId> kept_for = {});
  // Whether an instance may lend to a debtor, now or when it has room again.
  bool may_lend(const LedgerEntry& entry, const PeerId& debtor, bool to_creditors) const;
  bool may_ever_lend(const LedgerEntry& entry, const PeerId& debtor, bool to_creditors) const;
  // It is not recommended any more until update() shows room.
  void refused(const PeerId& creditor);

  // What all would lend; less, if requests of their own go first.
  uint64_t room() const { return room_; }
  // The most that the others can lend to a debtor at some time, in all.
  uint64_t lendable_to(const PeerId& debtor) const;
  // What those that may lend to the debtor expect back, in no order.
  std::vector<Due> due_for(const PeerId& debtor, bool to_creditors) const;
  // What instances would lend that may lend nothing to any of these debtors.
  uint64_t room_not_for(std::span<const PeerId> debtors, bool to_creditors) const;
  const LedgerEntry* find(const PeerId& id) const;
  LedgerEntry* find(const PeerId& id);
  size_t size() const { return entries_.size(); }
  const std::map<PeerId, LedgerEntry, ByPeer>& entries() const { return entries_; }
  // Instances that the last allocation looked at.
  size_t looked_at() const { return looked_at_; }

  // The debts among the instances of the table, as their creditors report them. Number i of a debt is
  // instances()[i].
  std::vector<PeerId> instances() const;
  std::vector<Debt> debts() const;
  std::string describe() const;

 private:
  struct ByRoom {
    bool operator()(const LedgerEntry* a, const LedgerEntry* b) const {
      return a->sorted != b->sorted ? a->sorted > b->sorted : ByPeer()(a->id, b->id);
    }
  };

  void sort(LedgerEntry& entry);
  bool may_lend_to_any(const LedgerEntry& entry, std::span<const PeerId> debtors, bool to_creditors) const;

  std::map<PeerId, LedgerEntry, ByPeer> entries_;
  std::set<LedgerEntry*, ByRoom> by_room_;  // those with room, the most first
  uint64_t room_ = 0;                       // of all
  uint64_t lendable_ = 0;                   // of all
  size_t looked_at_ = 0;
};

}  // namespace kvasir::cluster
