// What prompts add to each decode step in the long run.
//
// Source: eLLM bounds T(b, r) + WT_max by the SLO (Section 4.1, Equation 1), where T is the time of a step
// of decodes alone, and promises that "the TPOT SLOs for the entire inference process are met" (Section 4).
// But the prompts of those that come go between the decodes, and TPOT counts that time. Our addition: each
// request of the batch is followed by one like it, whose prompt takes p_i seconds once in o_i decode steps.
// So a step of the batch takes
//
//   T(b, r) + sum_{i <= b} p_i / o_i
//
//   symbol   here                                                                unit
//   p_i      CostModel::prefill_seconds() of the prompt, as a step of its own       s
//   o_i      the predicted output, at least what there is of it                   tokens
//
// A request of which nothing is predicted adds nothing.
#pragma once

#include <algorithm>
#include <cstdint>

#include "contract/view.h"
#include "sched/policy_settings.h"

namespace kvasir {

enum class PromptTime : uint8_t {
  kApart,      // a step's time is that of its decodes: Equation 1 to the letter
  kAmortised,  // and the share of the prompts
};

// The setting "prompts": "amortised" (the default) or "apart".
inline PromptTime prompt_time(PolicySettings& settings) {
  const std::string prompts = settings.word("prompts", "amortised", {"amortised", "apart"});
  return prompts == "apart" ? PromptTime::kApart : PromptTime::kAmortised;
}

// p_i / o_i, in seconds a step; 0 where prompts count apart or nothing is predicted.
inline double prompt_share_s(PromptTime prompts, const CostModel& costs, const SeqView& seq) {
  if (prompts == PromptTime::kApart || seq.predicted.output_tokens == 0) return 0;
  const auto generated = static_cast<double>(seq.known_tokens - seq.prompt_tokens);
  return costs.prefill_seconds(seq.prompt_tokens) / std::max<double>(generated, seq.predicted.output_tokens);
}

}  // namespace kvasir
