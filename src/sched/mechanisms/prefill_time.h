// The time of a prompt's prefill.
//
// Source: LayerKV, Section 3.1, Equation 3,
//
//   T_prefill = alpha * seqlen * (2 * n_param + 2 * seqlen * n_hidden) / FLOP per second of the device.
//
// The term in seqlen^2 lacks the number of layers, and no alpha corrects both terms
// (docs/policies/layerkv.md). So the View's cost model is used instead: a + b s + c s^2, fitted to profiles.
// The published equation is kept for comparison.
//
//   symbol                       here                         unit
//   seqlen                       rows, behind a history        tokens
//   n_param, n_hidden            PublishedPrefillTime          parameters, width
//   FLOP per second of device    PublishedPrefillTime          FLOP/s, the vendor's peak
//   alpha                        PublishedPrefillTime          a factor fitted by profiling
#pragma once

#include "contract/cost_model.h"

namespace kvasir {

struct PublishedPrefillTime {
  double parameters = 0;  // 0: the belief is used
  double hidden = 0;
  double flops_per_s = 0;
  double alpha = 1;

  bool used() const { return parameters > 0; }
  double seconds(double rows) const {
    return alpha * rows * (2 * parameters + 2 * rows * hidden) / flops_per_s;
  }
};

// The number of rows after `history`, at most `most`, that a step with `work` can add and still end within
// `seconds`.
uint32_t prefill_rows_within(const CostModel& costs, const StepWork& work, double seconds, uint32_t history,
                             uint32_t most);

}  // namespace kvasir
