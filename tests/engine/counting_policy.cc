#include "engine/counting_policy.h"

#include <algorithm>

namespace kvasir::test {
namespace {

bool is_interval(const LayerSet& layers, uint32_t groups) {
  uint32_t runs = 0;
  for (uint32_t g = 0; g < groups; ++g) runs += layers.contains(g) && (g == 0 || !layers.contains(g - 1));
  return runs <= 1;
}

}  // namespace

PlanCounts& PlanCounts::operator+=(const PlanCounts& other) {
  plans += other.plans;
  dead_blocks += other.dead_blocks;
  partial_steps += other.partial_steps;
  decode_steps += other.decode_steps;
  staged_decode_steps += other.staged_decode_steps;
  partial_decode_steps += other.partial_decode_steps;
  ragged_copies += other.ragged_copies;
  x_decode_steps += other.x_decode_steps;
  disk_decode_steps += other.disk_decode_steps;
  again_decode_steps += other.again_decode_steps;
  x_restores += other.x_restores;
  switches_to_x += other.switches_to_x;
  switches_to_kv += other.switches_to_kv;
  returned_as_x += other.returned_as_x;
  for (size_t k = 0; k < promises.size(); ++k) promises[k] += other.promises[k];
  claims_called += other.claims_called;
  loans_due += other.loans_due;
  return *this;
}

StepPlan CountingPolicy::plan(const View& view) {
  StepPlan plan = policy_->plan(view);
  const uint32_t groups = view.geometry.groups();
  const auto has_rows = [&](const SeqView& s) {
    return std::any_of(plan.rows.begin(), plan.rows.end(), [&](const Rows& r) { return r.seq == s.id; });
  };
  const bool partial = std::any_of(view.running.begin(), view.running.end(), [&](const SeqView& s) {
    return !s.device_groups.empty() && s.device_groups != LayerSet::all(groups) && has_rows(s);
  });
  const bool decodes = std::any_of(plan.rows.begin(), plan.rows.end(),
                                   [](const Rows& r) { return r.kind == RowKind::kDecode; });
  const bool stages = std::any_of(plan.copies.begin(), plan.copies.end(),
                                  [](const CopyChange& c) { return c.verb == Verb::kStage; });
  for (const SeqView& s : view.running) counts_.dead_blocks += s.dead_blocks;
  for (const SeqView& s : view.waiting) {
    const uint32_t kv = s.kv_cells(Tier::kDevice) + s.kv_cells(Tier::kHost) + s.kv_cells(Tier::kDisk);
    counts_.x_restores +=
        has_rows(s) && s.x_elsewhere() && kv + s.dropped_cells < s.live_cells(view.geometry);
  }
  for (const Reason& reason : plan.reasons) {
    counts_.switches_to_x += reason.cause == Cause::kBecomesX;
    counts_.switches_to_kv += reason.cause == Cause::kBecomesKv;
  }
  bool x = false, disk = false, again = false;
  for (const Rows& r : plan.rows) {
    counts_.returned_as_x +=
        !r.writes.x.empty() && std::any_of(view.waiting.begin(), view.waiting.end(), [&](const SeqView& s) {
          return s.id == r.seq && s.blocks == 0 && s.first_token_time > 0;
        });
    for (const auto* list : {&view.running, &view.waiting}) {
      const auto it =
          std::find_if(list->begin(), list->end(), [&](const SeqView& s) { return s.id == r.seq; });
      if (it == list->end() || !it->decoding()) continue;
      const bool lacks = it->blocks * groups > it->kv_cells(Tier::kDevice);
      x |= lacks && it->held(Form::kX, Tier::kDevice) > 0;
      disk |= lacks && it->kv_cells(Tier::kDisk) + it->held(Form::kX, Tier::kDisk) > 0;
      again |= r.kind == RowKind::kRestore && r.tokens.end <= it->ready_tokens;
    }
  }
  for (const Promise& p : plan.promises) ++counts_.promises[static_cast<size_t>(p.kind)];
  for (const Claim& c : view.claims) {
    counts_.claims_called += c.called;
    const auto host = std::find_if(view.running.begin(), view.running.end(),
                                   [&](const SeqView& s) { return s.id == c.creditor; });
    counts_.loans_due +=
        !c.called && c.due_tokens > 0 && host != view.running.end() && host->known_tokens >= c.due_tokens;
  }
  counts_.x_decode_steps += x;
  counts_.disk_decode_steps += disk;
  counts_.again_decode_steps += again;
  ++counts_.plans;
  counts_.partial_steps += partial;
  counts_.decode_steps += decodes;
  counts_.staged_decode_steps += decodes && stages;
  counts_.partial_decode_steps += decodes && partial;
  counts_.ragged_copies +=
      static_cast<uint64_t>(std::count_if(plan.copies.begin(), plan.copies.end(), [&](const CopyChange& c) {
        return !is_interval(c.layers, groups);
      }));
  return plan;
}

}  // namespace kvasir::test
