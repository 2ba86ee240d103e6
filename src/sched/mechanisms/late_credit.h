// How requests that have missed a bound still get on beside those that have not.
//
// They wait behind the others, in order of arrival. While one waits, a credit grows by a share phi of the
// time; when it covers what the first of them costs (DevicePrices::finish_s()), that one goes first and the
// credit pays. So a late request waits at most
//
//   (sum of the costs of those late before it, and its own) / phi
//
// for its turn, whatever others send: and the others lose at most the share phi of the device. The credit is
// never more than the greatest cost that waits, so that a quiet time does not buy a burst.
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
  bool covers(double cost_s) const { return balance_s_ >= cost_s; }
  // The first of the late that wait. Its turn comes when the credit covers its cost, and
  // lasts until it runs, also if its cost grows.
  bool has_turn(SeqId first, double cost_s);
  // It runs on credit from now on.
  void spend(SeqId id, double cost_s);
  // Of all requests it is the last to be preempted.
  bool runs_on_credit(SeqId id) const;
  // `live`: by id, ascending. Forgets the others.
  void keep_only(const std::vector<uint64_t>& live);
  bool any() const { return !on_credit_.empty(); }

  std::string save() const;
  Status restore(std::string_view text);

 private:
  Nanos last_ = 0;
  double balance_s_ = 0;
  uint64_t turn_ = 0;                // whose it is; 0: nobody's
  std::vector<uint64_t> on_credit_;  // ascending
};

}  // namespace kvasir
