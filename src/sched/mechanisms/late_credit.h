// How requests that have missed a bound still get on beside those that have not.
//
// They wait behind the others, in order of arrival. While one waits, a credit grows by a share phi of the
// time; when it covers what the first of them costs (AutoRequest::busy_s), that one goes first and the
// credit pays. So a late request waits at most
//
//   (sum of the costs of those late before it, and its own) / phi
//
// for its turn, whatever others send: and the others lose at most the share phi of the device. Where a cost
// turns out greater than was believed, the difference is a debt, which comes before the next turn. The credit
// is never more than the greatest cost that waits, so that a quiet time does not buy a burst.
//
// Source: QLM (arXiv 2407.00047) and Niyama (arXiv 2503.22562) set late requests back; the credit, ours, is a
// token bucket.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "contract/ids.h"

namespace kvasir {

class LateCredit {
 public:
  // Once for each plan. most_s: the greatest cost of a late request that waits; 0: none waits.
  void earn(Nanos now, double most_s);
  double balance_s() const { return balance_s_; }
  bool covers(double cost_s) const { return balance_s_ >= cost_s; }
  // The first of the late that wait. Its turn comes when the credit covers its cost, and lasts until it runs,
  // also if its cost grows.
  bool has_turn(SeqId first, double cost_s);
  // Its turn is taken: it runs on credit from now on, until it ends. Once for each.
  void spend(SeqId id, double cost_s);
  // Of one on credit: what it costs from now on. What that is more than it was at the least is paid, too.
  void note_cost(SeqId id, double cost_s);
  // How many had their turns before it, and itself; 0: it is not on credit. Of all requests those on credit
  // are the last to be preempted, and the first of them the very last: two that have no room together would
  // else preempt each other for ever.
  uint64_t turn_of(SeqId id) const;
  // `live`: by id, ascending. Forgets the others.
  void keep_only(const std::vector<uint64_t>& live);
  bool any() const { return !on_credit_.empty(); }

  std::string save() const;
  Status restore(std::string_view text);

 private:
  struct Debtor {
    uint64_t id = 0;
    uint64_t turn = 0;
    double least_s = 0;  // of its cost so far
  };
  std::vector<Debtor>::iterator place_of(uint64_t id);

  Nanos last_ = 0;
  double balance_s_ = 0;           // below 0: a debt
  uint64_t next_ = 0;              // the request whose turn it is; 0: none
  uint64_t turns_ = 0;             // so far
  std::vector<Debtor> on_credit_;  // by id, ascending
};

}  // namespace kvasir
