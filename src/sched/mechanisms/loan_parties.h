// Finds the running sequences that lend and borrow by the ids in their claims.
#pragma once

#include <unordered_map>

#include "contract/view.h"

namespace kvasir {

// A loan that has not been called in.
inline bool is_open_loan(const Claim& claim) {
  return claim.due_tokens > 0 && !claim.called;
}

// The running sequences that are parties to open loans. The View must outlive it.
class LoanParties {
 public:
  explicit LoanParties(const View& view) {
    for (const Claim& claim : view.claims) {
      if (!is_open_loan(claim)) continue;
      by_id_[claim.debtor] = nullptr;
      by_id_[claim.creditor] = nullptr;
    }
    if (by_id_.empty()) return;
    for (const SeqView& seq : view.running) {
      if (const auto it = by_id_.find(seq.id); it != by_id_.end()) it->second = &seq;
    }
  }
  // Null: it does not run. REQUIRES: it is a party to an open loan
  const SeqView* find(SeqId id) const { return by_id_.at(id); }

 private:
  std::unordered_map<SeqId, const SeqView*> by_id_;
};

}  // namespace kvasir
