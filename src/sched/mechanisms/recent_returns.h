// Which requests got their memory back a few steps ago, and should not lose it again at once.
//
// To take a history from the device and to bring it back costs about as much as what it could compute in a
// few steps, so a request that has just returned is not to be the first to make room. It keeps its place for
// min(r, 8) steps, r what is left of it.
//
// Source: hysteresis, as in any controller that switches; the number of steps is ours
// (docs/policies/auto.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "contract/ids.h"

namespace kvasir {

// Deterministic in the calls.
class RecentReturns {
 public:
  // Once for each plan, before the others: forgets those that returned longer ago.
  void begin(StepId step);
  // It was preempted before, and has its memory again from this plan's step on.
  void note(SeqId id);
  // rest_steps: what is left of it, in steps.
  bool just_returned(SeqId id, double rest_steps) const;

  std::string save() const;
  Status restore(std::string_view text);

 private:
  struct Return {
    uint64_t id = 0;
    uint64_t step = 0;
  };

  uint64_t now_ = 0;
  std::vector<Return> returns_;  // by step; of a request the last one counts
};

}  // namespace kvasir
