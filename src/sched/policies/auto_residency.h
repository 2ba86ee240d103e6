// Where the policy `auto` keeps histories that the device has no room for.
#pragma once

#include <vector>

#include "contract/view.h"
#include "plan/plan_builder.h"
#include "sched/mechanisms/link_share.h"
#include "sched/policies/auto_requests.h"

namespace kvasir {

// Whether it runs with layers away from the device, and not because it is too long for it.
bool is_away(const SeqView& seq, const PlanBuilder& builder);

// Prompts that run before there is room for their histories, for their first tokens' sake: their layers go to
// the slower tier as they are computed, and come back when there is room.
class AutoAway {
 public:
  AutoAway(const View& view, const AutoRequests& requests, PlanBuilder& builder);

  // Admits a request with no layer on the device, if its first token is due soon and the link can bring its
  // history in time for the tokens after it. rows: that the step has time for.
  bool admit(const AutoRequest& r, uint32_t rows);
  // Plans decodes of those that are away, and brings layers back. may_take: cells may be taken for that.
  void serve(bool may_take);

 private:
  const View& view_;
  const AutoRequests& requests_;
  PlanBuilder& builder_;
  LinkShare link_;
};

// Whether it is time for copy_likely_victims(): there is little room, and the link to the slower tier has
// nothing else to do.
bool may_copy_ahead(const View& view, const PlanBuilder& builder);
// Copies full blocks of those that would give up their memory first to the slower tier, as many as the link
// takes in `step_s`: then their eviction need not wait for the link. `order`: as keeps_its_place().
void copy_likely_victims(const View& view, const std::vector<const AutoRequest*>& order, double step_s,
                         PlanBuilder& builder);

}  // namespace kvasir
