// Promises: cells of KV that a tier keeps for sequences until they allocate them, or in reserve; and claims,
// what a sequence is owed of another's cells. docs/architecture.md has the kinds.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "contract/ids.h"
#include "contract/step_plan.h"
#include "contract/view.h"

namespace kvasir {

// Counts cells, and knows no block. Used by one thread.
class Promises {
 public:
  using ByTier = std::array<uint32_t, kTiers>;

  // REQUIRES: what it takes from a host or from the reserve is promised there.
  void add(const Promise& promise);
  // The sequence allocates cells: so many of those that are kept for it, if it has as many, are kept no more.
  void draw(SeqId seq, Tier tier, uint32_t cells);
  // The sequence stops running: what is left of its promises and its claims ends, and the claims on it are
  // called. What it had on loan and has lent on, its guest owes to its host from now on.
  void end(SeqId seq);
  // Promises what is available to the creditors of called claims, in the order in which the claims were made.
  // Returns these.
  std::vector<SeqId> settle(std::array<int64_t, kTiers> available);
  // There are fewer cells than are promised: gives up the reserve, and then the promises of the latest
  // sequences, as far as is needed. Returns these sequences.
  std::vector<SeqId> give_up(Tier tier, uint32_t missing);

  // What is kept for a sequence; for all, the reserve included; and in reserve.
  ByTier of(SeqId seq) const;
  const ByTier& total() const { return total_; }
  const ByTier& reserved() const { return reserved_; }
  const std::vector<Claim>& claims() const { return claims_; }

  Status check_integrity() const;

 private:
  void pass_on_loans(SeqId seq);

  std::unordered_map<SeqId, ByTier> of_;  // of those that have been promised anything since they last stopped
  ByTier total_{};
  ByTier reserved_{};
  std::vector<Claim> claims_;
};

}  // namespace kvasir
