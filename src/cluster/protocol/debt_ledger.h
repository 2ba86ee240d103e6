// The leader's table of the room and the debts of all instances. It is soft state: heartbeats fill it,
// entries without heartbeats expire, and the next leader rebuilds it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cluster/protocol/debt_cycles.h"
#include "cluster/protocol/post.h"

namespace kvasir::cluster {

// What an instance says of itself.
struct InstanceFigures {
  uint32_t free = 0;  // blocks of its memory
  uint32_t total = 0;
  uint32_t room = 0;  // blocks that it would lend now
  bool device = false;
  std::string location;                     // "zone/rack/host"
  std::map<PeerId, uint32_t, ByPeer> lent;  // by debtor
  std::map<PeerId, uint32_t, ByPeer> owed;  // by creditor, as it believes
};

struct LedgerEntry {
  PeerId id;
  InstanceFigures figures;
  Nanos heard = 0;
  // The debtors that were sent to it since its last heartbeat, and the blocks that they wanted in all.
  std::vector<PeerId> sent;
  uint32_t sent_blocks = 0;
  bool refused = false;  // it refused to lend, and has not reported room since
};

struct Recommendation {
  std::vector<PeerId> creditors;  // best first
  uint32_t largest_room = 0;      // if there are none: the most of any instance that may be asked
};

// The number of parts in which two locations differ, counted from the first difference from the outside on;
// 0 on one host.
uint32_t distance(const std::string& a, const std::string& b);

// Not thread-safe.
class DebtLedger {
 public:
  static constexpr size_t kMostCreditors = 3;

  // A heartbeat. An earlier life of the instance is forgotten. It makes an instance that refused eligible
  // for recommendations again only if it shows room.
  void update(const PeerId& id, InstanceFigures figures, Nanos now);
  void remove(const PeerId& id);
  // Forgets the instances that were last heard of before `since`.
  void expire(Nanos since);
  void clear();

  // Sorts instances by room, the most first. Between sorts a recommendation skips instances that had too
  // little room at the last sort; it looks at instances that are newer.
  void sort();

  // Where a debtor may borrow so many blocks: at most three creditors. Those to which the fewest others were
  // sent since their last heartbeat come first; among these the nearest, then device before host memory,
  // then the most room. Remembers that the debtor was sent to the first of them. Without `to_creditors` no
  // instance is recommended that itself owes the debtor something.
  Recommendation recommend(const PeerId& debtor, uint32_t blocks, bool to_creditors = true);
  // It is not recommended any more until update() shows room.
  void refused(const PeerId& creditor);

  const LedgerEntry* find(const PeerId& id) const;
  size_t size() const { return entries_.size(); }
  // Instances that the last recommendation looked at.
  size_t looked_at() const { return looked_at_; }

  // The debts among the instances of the table, as their creditors report them. Number i of a debt is
  // instances()[i].
  std::vector<PeerId> instances() const;
  std::vector<Debt> debts() const;
  std::string describe() const;

 private:
  struct ByRoom {
    PeerId id;
    uint32_t room;  // at the last sort
  };

  std::map<PeerId, LedgerEntry, ByPeer> entries_;
  std::vector<ByRoom> order_;  // what was sorted, then what came later, with room UINT32_MAX
  size_t sorted_ = 0;
  size_t looked_at_ = 0;
};

}  // namespace kvasir::cluster
