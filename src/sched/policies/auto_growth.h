// Whether the policy `auto` has memory for what a batch will grow to.
#pragma once

#include "contract/view.h"
#include "plan/plan_builder.h"
#include "sched/mechanisms/memory_peak.h"
#include "sched/policies/auto_requests.h"

namespace kvasir {

// One plan's admissions. Counted are requests on time whose every gap is bounded: preempting one makes it
// late. Others give up their memory for these, and lose work at the most.
class AutoGrowth {
 public:
  // Call it when the plan's decodes and preemptions are known. REQUIRES: all outlive this.
  AutoGrowth(const View& view, const AutoRequests& requests, const PlanBuilder& builder,
             uint32_t spare_blocks);

  // It counts, with it those that count are believed to need more than there is, and enough of them are
  // believed to end before its first token is due.
  bool outgrown_by(const AutoRequest& r) const;
  // It has been admitted.
  void add(const AutoRequest& r);

  // Tokens that those that count are believed to need with it, and those that there are.
  double peak_with(const AutoRequest& r) const;
  double room() const { return room_; }

  // On time, and every gap of it is bounded.
  static bool counts(const AutoRequest& r);

 private:
  double owned_if_admitted(const AutoRequest& r) const;

  const View& view_;
  const AutoRequests& requests_;
  MemoryPeak peak_;
  double room_ = 0;
};

}  // namespace kvasir
