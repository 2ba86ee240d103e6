// How long a step of the policy `auto` may take, and how many rows of a prompt it has time for.
#pragma once

#include <cstdint>
#include <limits>

#include "contract/reason.h"
#include "contract/view.h"
#include "plan/plan_builder.h"
#include "sched/policies/auto_requests.h"
#include "sched/policies/auto_state.h"

namespace kvasir {

class AutoTime {
 public:
  // All outlive it.
  AutoTime(const View& view, const AutoOptions& options, const AutoState& state, const AutoRequests& requests,
           const PlanBuilder& builder);

  // One of those that decode in this step.
  void count_decode(const AutoRequest& r);
  // When the last one has been counted.
  void end_decodes() { decodes_s_ = view_.costs.step_seconds(builder_.work()); }

  // Seconds that the step may take by belief, with so many rows of prompts in it.
  double allowed_s(double prefill_rows) const;
  // Rows of `most` behind `history` for which the step has time and budget.
  uint32_t chunk(uint32_t history, uint32_t most) const;
  // Why a prompt gets no more than so many rows, for want of time.
  Reason why_short(SeqId seq, uint32_t rows) const;

 private:
  // The first token of those on time that is due.
  struct FirstDue {
    double left_s = std::numeric_limits<double>::infinity();
    SeqId seq{};             // the request that it belongs to
    bool every_gap = false;  // each gap of that request counts; else the mean of them

    bool any() const { return left_s < std::numeric_limits<double>::infinity(); }
  };

  double margin(double prefill_rows) const;

  const View& view_;
  const AutoOptions& options_;
  const StepMargins& margins_;
  const AutoRequests& requests_;
  const PlanBuilder& builder_;
  const double needed_for_prompts_;  // a share of the time
  bool any_decodes_ = false;
  bool any_unbounded_ = false;
  FirstDue first_due_;
  double decodes_s_ = 0;  // what the step takes in any case
};

}  // namespace kvasir
