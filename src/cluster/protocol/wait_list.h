// The leader's list of what instances want to borrow, in the order in which the requests arrived that need
// it. It is soft state like the ledger: heartbeats repeat each wish.
//
// A wish that was served in part keeps its place while its debtor asks the creditors: until then nothing that
// it may use goes to a later one.
//
// The first wish takes what there is. If it wants more at once than there is, memory is kept for it: a later
// wish gets memory that the first may use only if, by the known ends of loans, the first is not delayed,
// because the later one ends before enough comes back, or leaves enough ("EASY backfilling": Lifka, "The
// ANL/IBM SP scheduling system", 1995). When loans end their creditors say (DebtLedger::due_for). A loan that
// is late may come back at any moment. Nothing is kept for a wish that wants more than all others together
// ever lend.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cluster/protocol/debt_ledger.h"
#include "cluster/protocol/post.h"

namespace kvasir::cluster {

struct Wish {
  Demand demand;
  uint64_t attempt = 0;     // its debtor's number for it
  int64_t since_there = 0;  // Demand::since by the debtor's clock, which tells requests apart
  bool asking = false;      // the debtor asks those that it was told of
};

// A wish whose turn it is. Never without shares.
struct Turn {
  Wish wish;
  std::vector<Share> shares;
};

// Not thread-safe.
class WaitList {
 public:
  // What the debtor wants now, instead of what it wanted before; demand.most 0: nothing. Where a wish of it
  // was served less than `answer` ago, one under the same attempt is ignored, for its debtor did not know,
  // and so is that it asks creditors. Returns whether another wish may have its turn now than before.
  bool put(Wish wish, Nanos now, Nanos answer);
  // Forgets what an instance wants.
  void remove(const PeerId& instance);
  // Forgets debtors that were last heard of before `since`.
  void expire(Nanos since);
  void clear();

  // The wishes whose turn it is. Each counts as lent in the ledger, and what it got less than it wants stays
  // in the list.
  std::vector<Turn> serve(DebtLedger& ledger, Nanos now, bool to_creditors);

  // The first wish of another instance that can be served at some time; null: there is none.
  const Wish* first_but_of(const PeerId& instance, const DebtLedger& ledger) const;
  const Wish* find(const PeerId& debtor) const;
  // The arrival by which the debtor's last wish was put in its place.
  std::optional<Nanos> served_since(const PeerId& debtor) const;
  size_t size() const { return order_.size(); }
  std::string describe() const;

 private:
  struct Debtor {
    Nanos heard = 0;
    Nanos since = 0;  // of its last wish
    std::optional<Wish> wish;
    std::optional<uint64_t> served;  // attempt
    Nanos answers_until = 0;         // it may ask those that it was told of until then
    Nanos answer = 0;
    bool asks = false;  // the wish is what it lacked when it was served, and is not served now
  };
  using Place = std::pair<Nanos, PeerId>;
  struct ByPlace {
    bool operator()(const Place& a, const Place& b) const {
      return goes_first(a.second, a.first, b.second, b.first);
    }
  };
  void take_out(Debtor& debtor);

  std::map<PeerId, Debtor, ByPeer> debtors_;
  std::map<Place, Debtor*, ByPlace> order_;  // those with a wish
};

}  // namespace kvasir::cluster
