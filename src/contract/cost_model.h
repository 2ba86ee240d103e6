// Estimates of what work costs: the coefficients that the papers' formulas need, as data.
//
// A policy reads them in the View. A profile fits them and real steps refine them. They may be wrong: then a
// policy must stay correct, and may only be slower. The true times of a simulated device are another object.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "contract/ids.h"

namespace kvasir {

// What a step does, as sums: the work of two slices is the sum of theirs.
struct StepWork {
  double prefill_rows = 0;
  // Pairs of a row and a position that it attends to, of rows of prefill and recomputation: a chunk of s rows
  // behind a history of p has s * p + s (s + 1) / 2.
  double prefill_pairs = 0;
  double decode_rows = 0;
  double decode_context = 0;    // positions that those attend to
  double projected_tokens = 0;  // times layers: K and V made from X

  bool empty() const { return prefill_rows + decode_rows + projected_tokens == 0; }
  // Of all rows those beyond the first so many.
  double rows_above(double rows) const { return std::max(0.0, prefill_rows + decode_rows - rows); }
  void add_prefill(double history, double rows) {
    prefill_rows += rows;
    prefill_pairs += rows * history + rows * (rows + 1) / 2;
  }
  void add_decode(double context) {
    decode_rows += 1;
    decode_context += context;
  }
  // The work of the same rows if they pass through this share of the layers.
  StepWork scaled(double share) const {
    return {share * prefill_rows, share * prefill_pairs, share * decode_rows, share * decode_context,
            share * projected_tokens};
  }
  StepWork& operator+=(const StepWork& o) {
    prefill_rows += o.prefill_rows;
    prefill_pairs += o.prefill_pairs;
    decode_rows += o.decode_rows;
    decode_context += o.decode_context;
    projected_tokens += o.projected_tokens;
    return *this;
  }
};

struct LinkCost {
  double latency_s = 0;
  double seconds_per_byte = 0;
  double seconds(double bytes) const { return latency_s + bytes * seconds_per_byte; }
  friend bool operator==(const LinkCost&, const LinkCost&) = default;
};

// Seconds; every coefficient is at least 0. A prompt of s tokens alone takes a + b s + c s^2 with a = step_s,
// b = prefill_row_s + pair_s / 2, c = pair_s / 2, fitted (docs/beliefs.md: the published equation of this
// form); a step that decodes, step_s + decode_row_s * batch + context_s * the sum of contexts. Where a step
// has more than knee_rows rows, each further one takes above_knee_s more: with fewer rows a device computes
// while it reads the weights (Williams et al., Roofline, CACM 2009). Without experts the time is convex in
// the rows: the greater of two sums without a knee.
struct CostModel {
  double step_s = 0;  // of any step: it reads the weights once, but for experts
  double prefill_row_s = 0;
  double pair_s = 0;
  double decode_row_s = 0;
  double context_s = 0;
  double projected_token_s = 0;  // of one layer
  double knee_rows = 0;          // of prefill and of decodes together
  double above_knee_s = 0;       // 0: no knee
  // Of a model with experts: a step of n rows reads some E (1 - (1 - k / E)^n) of the E experts of a layer,
  // as if each row chose its k of them at random, and takes that share of experts_s.
  double expert_share = 0;  // k / E; 0: the model has no experts
  double experts_s = 0;     // to read all experts
  // [from][to], by tier; 0 seconds per byte: unknown.
  std::array<std::array<LinkCost, kTiers>, kTiers> links{};
  uint64_t steps_seen = 0;  // real steps that refined it

  // False: nothing has been measured, and the model means nothing.
  bool known() const { return step_s + prefill_row_s + decode_row_s > 0; }

  // The share of the experts that a step of so many rows reads.
  double experts_read(double rows) const {
    return expert_share > 0 ? 1 - std::pow(1 - std::min(expert_share, 1.0), rows) : 0;
  }
  // What a step takes whatever its rows do: with all experts, or with those that so many rows read.
  double weights_s() const { return step_s + experts_s; }
  double weights_s(double rows) const {
    return step_s + (experts_s > 0 ? experts_s * experts_read(rows) : 0);
  }
  double step_seconds(const StepWork& w) const {
    if (w.empty()) return 0;
    return weights_s(w.prefill_rows + w.decode_rows) + prefill_row_s * w.prefill_rows +
           pair_s * w.prefill_pairs + decode_row_s * w.decode_rows + context_s * w.decode_context +
           projected_token_s * w.projected_tokens + above_knee_s * w.rows_above(knee_rows);
  }
  // The time of a step with `rows` tokens of one prompt alone, after a history of `history` tokens.
  double prefill_seconds(double rows, double history = 0) const {
    StepWork w;
    w.add_prefill(history, rows);
    return step_seconds(w);
  }
  // What these rows add to a step that runs in any case.
  double rows_seconds(double rows, double history = 0) const {
    return prefill_seconds(rows, history) - weights_s(rows);
  }
  double decode_seconds(double batch, double context) const {
    StepWork w;
    w.decode_rows = batch;
    w.decode_context = context;
    return step_seconds(w);
  }
  double transfer_seconds(Tier from, Tier to, double bytes) const {
    return links[index_of(from)][index_of(to)].seconds(bytes);
  }
  // The model of a device that takes `factor` times as long for everything: for tests of wrong estimates.
  CostModel scaled(double factor) const {
    CostModel out = *this;
    for (double* c : {&out.step_s, &out.prefill_row_s, &out.pair_s, &out.decode_row_s, &out.context_s,
                      &out.projected_token_s, &out.above_knee_s, &out.experts_s}) {
      *c *= factor;
    }
    for (auto& row : out.links) {
      for (LinkCost& link : row) {
        link.latency_s *= factor;
        link.seconds_per_byte *= factor;
      }
    }
    return out;
  }
  friend bool operator==(const CostModel&, const CostModel&) = default;
};

}  // namespace kvasir
