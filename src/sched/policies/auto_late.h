// What the policy `auto` does about late requests in one step: which of them have no row, when the credit has
// paid for the turn of one, and which make way for those on time.
#pragma once

#include <vector>

#include "contract/view.h"
#include "plan/plan_builder.h"
#include "sched/policies/auto_requests.h"
#include "sched/policies/auto_state.h"

namespace kvasir {

class AutoLate {
 public:
  // All outlive it.
  AutoLate(const View& view, AutoState& state, AutoRequests& requests, PlanBuilder& builder)
      : view_(view), state_(state), requests_(requests), builder_(builder) {}

  // Late ones that run have no row where it would make the gaps too long of those on time that run, or that
  // head the queue: these could never join a batch that late ones have filled.
  void sit_out(const std::vector<AutoRequest*>& queue);
  // Once for each plan.
  void earn_credit();
  // The first late one, when the credit covers it: of each weight by arrival, and of the weights by their
  // turns. Before that those that were preempted on credit. One that waits becomes the head of the queue.
  void put_credited_first(std::vector<AutoRequest*>& queue);
  // The one that has been put at the head of the queue; null: none.
  const AutoRequest* credited() const { return credited_; }
  // The credit pays for the turn of a late one.
  void spend(const AutoRequest& r);
  // Late ones that run make way for those at the head of the queue, the most expensive first.
  void make_way(const std::vector<AutoRequest*>& queue);

 private:
  // Those of the late that wait, those that sit out, and those that run with layers away from the device,
  // which others may keep away for ever.
  bool waits_for_credit(const AutoRequest& r, bool runs) const;

  const View& view_;
  AutoState& state_;
  AutoRequests& requests_;
  PlanBuilder& builder_;
  const AutoRequest* credited_ = nullptr;
};

}  // namespace kvasir
