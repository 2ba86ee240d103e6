// The costs that beliefs are to come to.
#pragma once

#include "contract/cost_model.h"

namespace kvasir::test {

// Of a small machine: every coefficient counts in some step.
inline CostModel truth() {
  CostModel c;
  c.step_s = 4e-3;
  c.prefill_row_s = 6e-4;
  c.pair_s = 3e-7;
  c.decode_row_s = 1e-3;
  c.context_s = 5e-7;
  c.projected_token_s = 2e-6;
  return c;
}

}  // namespace kvasir::test
