// When the next token of a request is due, by all of its bounds.
//
//   before the first token   d = min(arrival + ttft; arrival + e2el - r T)
//   afterwards               d = min(last + tbt; first + tpot (n + r05) - r05 T; arrival + e2el - r T)
//
//   symbol             here                                     unit
//   ttft, tpot, ...    Slo                                      ms
//   r, r05             OutputRest::mean, least                  tokens after the next one's step, at least 1
//   T                  `step_s`, a step of those that decode    s
//   n                  tokens after the first, the next included
//
// Source: the second is LayerKV's Equation 1 (mechanisms/allow_prefill_budget.h) for TPOT; JITServe (arXiv
// 2504.20068) gives each request just enough for its bound. While a token is in flight the gap to the one
// after it has not begun.
#pragma once

#include <limits>

#include "contract/view.h"
#include "sched/mechanisms/rest_of_output.h"

namespace kvasir {

struct TokenDue {
  double left_s = std::numeric_limits<double>::infinity();  // from now; infinite without a bound
  // TTFT or E2EL is missed for good, or a gap is or was too long: the request cannot meet all of its bounds.
  bool missed = false;
  // It has tokens, and as it stands its mean gap will be too long or its end too late; it may catch up.
  bool behind = false;
};

TokenDue token_due(const SeqView& seq, Nanos now, double step_s, const OutputRest& rest);

// The longest gap between two tokens that its bounds allow for long: the lesser of tbt and tpot, in seconds;
// infinite without either.
double allowed_gap(const Slo& slo);

}  // namespace kvasir
