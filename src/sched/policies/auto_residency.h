// Where the policy `auto` keeps histories that the device has no room for.
#pragma once

#include "contract/view.h"
#include "plan/plan_builder.h"
#include "sched/mechanisms/link_share.h"
#include "sched/mechanisms/rest_of_output.h"
#include "sched/policies/auto_requests.h"

namespace kvasir {

// Whether some of its history is away from the device, and not because it is too long for it.
bool is_away(const SeqView& seq, const PlanBuilder& builder);

// Blocks that an admission leaves free: for others to end, and those that decodes are about to begin.
uint32_t spare_blocks(const View& view, const PlanBuilder& builder);

// Prompts that run before there is room for their histories, for their first tokens' sake: their layers go to
// the slower tier as they are computed, and come back when there is room.
class AutoAway {
 public:
  // All outlive it. REQUIRES: there is a tier behind the device
  AutoAway(const View& view, const AutoRequests& requests, const RestOfOutput& rest, PlanBuilder& builder);

  // Admits a request with no layer on the device, if its first token is due soon and the link can bring its
  // history in time for the tokens after it. rows: that the step has time for; it may have more, which follow
  // in later steps.
  bool admit(const AutoRequest& r, uint32_t rows);
  // Plans decodes of those that are away, and brings layers back. may_take: cells may be taken for that.
  // most_s: that the step may take, also waiting for the link where a token is due soon. Returns whether it
  // waits for the link.
  bool serve(bool may_take, double most_s);

 private:
  const View& view_;
  const AutoRequests& requests_;
  const RestOfOutput& rest_;
  PlanBuilder& builder_;
  LinkShare link_;
};

}  // namespace kvasir
