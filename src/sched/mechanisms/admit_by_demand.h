// Admits whole prompts, each with room for its expected output.
//
// Source: S^3 (Jin et al., NeurIPS 2023), Section 3 (packing by predicted length), and response length
// perception (Zheng et al., NeurIPS 2023), both as CacheOpt, Section 2.1, runs them. Used by every policy
// that reserves room by a prediction and does not lend it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "contract/view.h"
#include "plan/plan_builder.h"

namespace kvasir {

// How waiting sequences are admitted.
struct AdmissionByDemand {
  std::vector<const SeqView*> order;
  // Tokens of prompt and output for which a sequence is promised room.
  std::function<uint32_t(const SeqView&)> total_tokens;
  bool first_fit = false;  // a sequence that does not fit is passed over; otherwise it ends the admissions
};

// Plans a step: admits prompts within the token budget (a larger prompt goes alone), or, if none is admitted,
// continues the running sequences. A preempted sequence that kept its cells continues where it was.
void admit_or_go_on(const View& view, const AdmissionByDemand& admission, PlanBuilder& builder);

// The running sequences that have used up their promises and need more.
std::vector<const SeqView*> overrun(const View& view, const PlanBuilder& builder);
// Why one of them is preempted.
Reason outgrew(const View& view, const SeqView& seq);

}  // namespace kvasir
