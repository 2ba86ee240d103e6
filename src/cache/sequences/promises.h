// Promises: cells of KV that a tier keeps for sequences until they allocate them, or in reserve. Claims:
// cells of another sequence that a sequence is owed. docs/architecture.md lists the kinds.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/pooled_map.h"
#include "base/status.h"
#include "contract/ids.h"
#include "contract/step_plan.h"
#include "contract/view.h"

namespace kvasir {

// Counts cells only, not blocks. Used by one thread.
class Promises {
 public:
  using ByTier = std::array<uint32_t, kTiers>;

  // REQUIRES: cells taken from a host or from the reserve are promised there.
  void add(const Promise& promise);
  // The sequence allocates cells: its promise shrinks by as many, down to 0.
  void draw(SeqId seq, Tier tier, uint32_t cells);
  // The sequence stops running: the rest of its promises and its claims end, and the claims on it are called.
  // Cells that it borrowed and lent on are now owed to its host by its guest.
  void end(SeqId seq);
  struct Settled {
    SeqId creditor{};
    Tier tier{};
    uint32_t cells = 0;
  };
  // Promises the available cells to the creditors of called claims, in the order of the claims. Returns what
  // each of them was promised.
  std::vector<Settled> settle(std::array<int64_t, kTiers> available);
  // Gives up `missing` promised cells: first the reserve, then promises of the latest sequences. Returns
  // these sequences.
  std::vector<SeqId> give_up(Tier tier, uint32_t missing);

  // The cells promised to a sequence; in total, including the reserve; and in the reserve.
  ByTier of(SeqId seq) const;
  const ByTier& total() const { return total_; }
  const ByTier& reserved() const { return reserved_; }
  const std::vector<Claim>& claims() const { return claims_; }

  Status check_integrity() const;

 private:
  void pass_on_loans(SeqId seq);

  PooledMap<SeqId, ByTier> of_;  // sequences that were promised cells since they last stopped
  ByTier total_{};
  ByTier reserved_{};
  std::vector<Claim> claims_;
};

}  // namespace kvasir
