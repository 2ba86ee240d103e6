#include "sched/policies/auto_time.h"

#include <algorithm>

#include "sched/mechanisms/chunk_prefills.h"
#include "sched/mechanisms/prefill_time.h"

namespace kvasir {
namespace {

// The share of time that prompts need is this times what those that arrive take, so that queues become
// shorter.
constexpr double kAboveArrivals = 2;
constexpr double kLateStep = 0.01;  // the share of steps that exceed the gap of requests that state none
// Before a step has been measured, rows of a prompt that may delay a decode; after so many steps none will
// be.
constexpr uint32_t kCarefulRows = 64;
constexpr uint64_t kFirstSteps = 16;
// Of a prompt beside decodes that state no bound, however long they take.
constexpr uint32_t kFewestRows = 16;

}  // namespace

AutoTime::AutoTime(const View& view, const AutoOptions& options, const AutoState& state,
                   const AutoRequests& requests, const PlanBuilder& builder)
    : view_(view),
      options_(options),
      margins_(state.margins),
      requests_(requests),
      builder_(builder),
      needed_for_prompts_(
          std::min(1.0, kAboveArrivals * view.costs.prefill_row_s * state.arriving.prompt_tokens_per_s())) {}

void AutoTime::count_decode(const AutoRequest& r) {
  any_decodes_ = true;
  any_unbounded_ |= !r.bounded;
  if (!r.on_time_bound() || r.left_s >= first_due_.left_s) return;
  first_due_ = {r.left_s, r.seq->id, r.seq->slo.tbt_ms > 0};
}

// By which what is left until the first token is due is divided.
double AutoTime::margin(double prefill_rows) const {
  if (!options_.margins) return margins_.quantile(prefill_rows, 1);
  const double steps = first_due_.every_gap ? requests_.steps_of_one() : 1;
  return margins_.priced(prefill_rows, decodes_s_ / first_due_.left_s, steps, needed_for_prompts_);
}

double AutoTime::allowed_s(double prefill_rows) const {
  double allowed = std::numeric_limits<double>::infinity();
  if (any_unbounded_) {
    allowed = requests_.without_bounds_s() / margins_.quantile(prefill_rows, 1 - kLateStep);
  }
  if (!first_due_.any()) return allowed;
  return std::min(allowed, first_due_.left_s / margin(prefill_rows));
}

uint32_t AutoTime::chunk(uint32_t history, uint32_t most) const {
  const uint32_t threshold = view_.limits.long_prefill_token_threshold;
  most = std::min(most, chunk_room(view_, builder_, threshold));
  if (!any_decodes_) return most;
  if (!view_.costs.known()) {
    return raw(view_.next_step) < kFirstSteps ? std::min(most, kCarefulRows) : most;
  }
  uint32_t rows = most;
  // The margin depends on the rows: a few rounds, since it falls with them.
  for (int round = 0; round < 3; ++round) {
    const double s = allowed_s(builder_.work().prefill_rows + rows);
    const uint32_t next = prefill_rows_within(view_.costs, builder_.work(), s, history, most);
    if (next >= rows && round > 0) break;
    rows = next;
  }
  // Where no bound is at stake prompts get on, however long the decodes take.
  const bool must = !first_due_.any() && builder_.work().prefill_rows == 0;
  return must ? std::max(rows, std::min(most, kFewestRows)) : rows;
}

Reason AutoTime::why_short(SeqId seq, uint32_t rows) const {
  const bool bound =
      first_due_.any() && (!any_unbounded_ || first_due_.left_s < requests_.without_bounds_s());
  if (bound) {
    return {Cause::kShortChunk, seq, first_due_.seq, static_cast<double>(rows), first_due_.left_s};
  }
  return {Cause::kShortChunkForAll, seq, {}, static_cast<double>(rows), requests_.without_bounds_s()};
}

}  // namespace kvasir
