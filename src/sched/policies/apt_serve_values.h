// What a request is worth in a step of Apt-Serve: Section 4.2, Equations 5, 6 and 8.
#pragma once

#include <cstdint>

#include "plan/plan_builder.h"
#include "sched/mechanisms/hybrid_knapsack.h"

namespace kvasir {

// It runs with its K and V.
bool has_kv(const SeqView& seq);

class AptServeValues {
 public:
  // `decay`: what is left of the value of a request that pends beyond its bound (Section 6.6); 0: next to
  // nothing. The view must outlive it.
  AptServeValues(const View& view, double decay);

  double requests() const { return requests_; }  // |W| + |R|
  uint64_t device_bytes() const { return device_bytes_; }
  // By the byte of a request that pends too long, without a decay.
  double floor() const { return floor_; }

  // p, in seconds, above 0.
  double pending(const SeqView& seq) const;
  // rho * m: what projecting it takes in a step as X, which it is or would be.
  double x_seconds(const SeqView& seq) const;

  // Equation 8. x_bytes: 0 if it cannot be kept as X. `recompute_s`, which the equation leaves out: the time
  // of recomputing it, which all requests wait for if it is left out or, with K and V, becomes X.
  HybridCandidate candidate(const SeqView& seq, uint64_t kv_bytes, uint64_t x_bytes,
                            double recompute_s = 0) const;

  // m: bytes of K and V of all its known tokens.
  uint64_t kv_bytes(const SeqView& seq) const;
  // Of what it holds on the device, in both forms. Cells that several hold count for each of them.
  uint64_t held_bytes(const SeqView& seq) const;

 private:
  double lowest_value_by_the_byte() const;

  const View& view_;
  const double decay_;
  const double requests_;
  const uint64_t device_bytes_;
  const double floor_;
};

}  // namespace kvasir
