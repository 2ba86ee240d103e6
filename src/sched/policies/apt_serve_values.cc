#include "sched/policies/apt_serve_values.h"

#include <algorithm>
#include <cmath>

#include "sched/mechanisms/hidden_cache.h"
#include "sched/mechanisms/pending_time.h"

namespace kvasir {
namespace {

// The value by the byte of a request beyond its bound, as a share of the least that any other could have.
constexpr double kNextToNothing = 1e-4;
// Seconds: the pending time of a request that has just arrived, or has a token on its way.
constexpr double kLeastPending = 1e-6;

}  // namespace

bool has_kv(const SeqView& seq) {
  return seq.decoding() && seq.resident();
}

AptServeValues::AptServeValues(const View& view, double decay)
    : view_(view),
      decay_(decay),
      requests_(static_cast<double>(view.waiting.size() + view.running.size())),
      device_bytes_(uint64_t{view.total_cells(Tier::kDevice)} * view.geometry.kv_cell_bytes()),
      floor_(lowest_value_by_the_byte()) {}

// A power of two: then the quotient of value and bytes is exactly this for any size, and late requests keep
// the order of arrival.
double AptServeValues::lowest_value_by_the_byte() const {
  double least = 1;
  for (const auto* all : {&view_.waiting, &view_.running}) {
    for (const SeqView& seq : *all) {
      if (!pends_too_long(seq, view_.now)) least = std::min(least, pending(seq));
    }
  }
  const auto bytes = static_cast<double>(std::max<uint64_t>(device_bytes_, 1));
  return std::ldexp(1.0, std::ilogb(kNextToNothing * least / bytes));
}

double AptServeValues::pending(const SeqView& seq) const {
  return std::max(kLeastPending, pending_seconds(seq, view_.now));
}

double AptServeValues::x_seconds(const SeqView& seq) const {
  return has_kv(seq) ? projection_seconds_as_x(view_, seq) : projection_seconds(view_, seq);
}

HybridCandidate AptServeValues::candidate(const SeqView& seq, uint64_t kv_bytes, uint64_t x_bytes,
                                          double recompute_s) const {
  HybridCandidate c{pending(seq), requests_ * x_seconds(seq), kv_bytes, x_bytes};
  c.value += requests_ * recompute_s;
  if (has_kv(seq)) c.penalty += requests_ * recompute_s;
  if (!pends_too_long(seq, view_.now)) return c;
  if (decay_ > 0) {
    c.value *= decay_;
    c.penalty *= decay_;
  } else {
    c.value = floor_ * static_cast<double>(kv_bytes);
    c.penalty = c.value;  // as X it is worth nothing
  }
  return c;
}

uint64_t AptServeValues::kv_bytes(const SeqView& seq) const {
  return view_.geometry.blocks_for(seq.known_tokens) * view_.geometry.kv_block_bytes();
}

uint64_t AptServeValues::held_bytes(const SeqView& seq) const {
  return uint64_t{seq.kv_cells(Tier::kDevice)} * view_.geometry.kv_cell_bytes() +
         uint64_t{seq.held(Form::kX, Tier::kDevice)} * view_.geometry.cell_bytes(Form::kX);
}

}  // namespace kvasir
