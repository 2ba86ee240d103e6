// Views for tests of Apt-Serve's policies. Blocks have 16 tokens and two cells; one of K and V takes 1,024
// bytes, one of X half of that.
#pragma once

#include <string>

#include "plan/forms_views.h"
#include "sched/plans.h"

namespace kvasir::test {

constexpr Nanos kAptNow = 100 * kNanosPerSecond;

// It has waited for so long.
inline SeqView waits(uint64_t id, uint32_t prompt, double seconds, Slo slo = {}) {
  SeqView s = waiting_seq(id, prompt);
  s.arrival = kAptNow - from_seconds(seconds);
  s.slo = slo;
  return s;
}
inline SeqView timed(SeqView s, double since_last_token, Slo slo = {}) {
  s.arrival = 1;
  s.first_token_time = 2;
  s.last_token_time = kAptNow - from_seconds(since_last_token);
  s.slo = slo;
  return s;
}
// Decodes, with X of all its blocks and K and V of the last one, which is not full.
inline SeqView hidden(uint64_t id, uint32_t known, double since_last_token, Slo slo = {}) {
  SeqView s = timed(decoding_seq(id, 10, known), since_last_token, slo);
  set_cells(s, Tier::kDevice, kViewGroups);
  hold(s, Form::kX, Tier::kDevice, s.blocks * kViewGroups);
  s.resident_blocks = 1;
  s.device_groups = {};
  return s;
}

inline View apt_view(uint32_t total_blocks, uint32_t free_blocks, uint32_t ring = 16) {
  View view = forms_view(total_blocks, free_blocks, ring);
  view.now = kAptNow;
  view.limits.max_num_batched_tokens = 1000;
  return view;
}

// The first of a plan's reasons, or nothing.
inline std::string first_reason(const char* policy, const View& view) {
  const StepPlan plan = make_policy(policy).value()->plan(view);
  return plan.reasons.empty() ? "" : name(plan.reasons[0].cause);
}

}  // namespace kvasir::test
