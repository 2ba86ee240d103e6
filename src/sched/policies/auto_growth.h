// Whether the policy `auto` has memory for what a batch will grow to.
#pragma once

#include "contract/view.h"
#include "plan/plan_builder.h"
#include "sched/mechanisms/memory_peak.h"
#include "sched/policies/auto_requests.h"

namespace kvasir {

// One plan's admissions. Counted are requests on time of two kinds. Where every gap is bounded, preempting
// the request makes it late. Where the time per token is bounded, but neither the first token nor the end,
// the bounds begin with the first token: the request loses nothing while it waits, and much when it is
// preempted. Others give up their memory for these, and lose work at the most.
class AutoGrowth {
 public:
  // Call it when the plan's decodes and preemptions are known. REQUIRES: all outlive this.
  AutoGrowth(const View& view, const AutoRequests& requests, const PlanBuilder& builder,
             uint32_t spare_blocks);

  // It counts, with it those that count are believed to need more than there is, and either enough of them
  // are believed to end before its first token is due, or that is never due.
  bool outgrown_by(const AutoRequest& r) const;
  // It has been admitted.
  void add(const AutoRequest& r);

  // Tokens that those that count are believed to need with it, and those that there are.
  double peak_with(const AutoRequest& r) const;
  double room() const { return room_; }

  // On time, and of one of those two kinds.
  static bool counts(const AutoRequest& r);

 private:
  double owned_if_admitted(const AutoRequest& r) const;

  const View& view_;
  const AutoRequests& requests_;
  MemoryPeak peak_;
  double room_ = 0;
};

}  // namespace kvasir
