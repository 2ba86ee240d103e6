// The leader's table of who has room and who owes whom. It is soft state: heartbeats fill it, silence empties
// it, and whoever leads next fills it anew.
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
  // Since its last heartbeat: who was sent to it, and for how much in all.
  std::vector<PeerId> sent;
  uint32_t sent_blocks = 0;
  bool refused = false;  // it would not lend, and has not shown room since
};

struct Recommendation {
  std::vector<PeerId> creditors;  // best first
  uint32_t largest_room = 0;      // of any instance that may be asked: when there are none
};

// Parts of two locations, counted from the outside, that are not common to both: 0 on one host.
uint32_t distance(const std::string& a, const std::string& b);

// Not thread-safe.
class DebtLedger {
 public:
  static constexpr size_t kMostCreditors = 3;

  // A heartbeat. An earlier life of the instance is forgotten. It opens an instance to recommendations again
  // only if it shows room.
  void update(const PeerId& id, InstanceFigures figures, Nanos now);
  void remove(const PeerId& id);
  // Forgets whoever was last heard of before `since`.
  void expire(Nanos since);
  void clear();

  // Puts those with most room first. Between sorts a recommendation looks at no instance that had too little
  // at the last sort; at those that are newer it does.
  void sort();

  // Where a debtor may borrow so many blocks: at most three, of those to whom the fewest others were sent
  // since they were last heard of the nearest first, then device before host memory, then most room.
  // Remembers that the debtor was sent to the first of them. Without `to_creditors` nobody is recommended
  // that owes the debtor something itself.
  Recommendation recommend(const PeerId& debtor, uint32_t blocks, bool to_creditors = true);
  // It is not recommended any more until update() shows room.
  void refused(const PeerId& creditor);

  const LedgerEntry* find(const PeerId& id) const;
  size_t size() const { return entries_.size(); }
  // Instances that the last recommendation looked at.
  size_t looked_at() const { return looked_at_; }

  // What is owed among the instances of the table, as creditors say. Number i of a debt is instances()[i].
  std::vector<PeerId> instances() const;
  std::vector<Debt> debts() const;
  std::string describe() const;

 private:
  struct ByRoom {
    PeerId id;
    uint32_t room;  // when it was sorted
  };

  std::map<PeerId, LedgerEntry, ByPeer> entries_;
  std::vector<ByRoom> order_;  // what was sorted, then what came later, with room UINT32_MAX
  size_t sorted_ = 0;
  size_t looked_at_ = 0;
};

}  // namespace kvasir::cluster
