#include "sched/mechanisms/hidden_cache.h"

#include <algorithm>

namespace kvasir {
namespace {

constexpr double kProjectionShare = 1.0 / 6;

uint64_t block_bytes(const CacheGeometry& g, Form form) {
  return g.cell_bytes(form) * g.groups();
}

Interval full_blocks(const View& view, const SeqView& seq) {
  return {0, seq.ready_tokens - seq.ready_tokens % view.geometry.block_tokens};
}

}  // namespace

bool held_as_x(const SeqView& seq) {
  return seq.held(Form::kX, Tier::kDevice) > 0;
}

uint64_t bytes_as_kv(const CacheGeometry& geometry, const SeqView& seq) {
  return geometry.blocks_for(seq.known_tokens) * block_bytes(geometry, Form::kKv);
}

uint64_t bytes_as_x(const CacheGeometry& geometry, const SeqView& seq) {
  const uint64_t tail = seq.known_tokens % geometry.block_tokens == 0 ? 0 : block_bytes(geometry, Form::kKv);
  return geometry.blocks_for(seq.known_tokens) * block_bytes(geometry, Form::kX) + tail;
}

uint64_t free_bytes(const View& view) {
  const FrameBudget& device = view.device;
  int64_t cells_of_slab = device.per_slab[index_of(Form::kKv)];
  int64_t bytes =
      int64_t{device.spare_slabs} * cells_of_slab * static_cast<int64_t>(view.geometry.cell_bytes(Form::kKv));
  for (Form form : {Form::kKv, Form::kX}) {
    const int64_t cells = int64_t{device.loose[index_of(form)]} - device.promised[index_of(form)];
    bytes += cells * static_cast<int64_t>(view.geometry.cell_bytes(form));
  }
  return static_cast<uint64_t>(std::max<int64_t>(bytes, 0));
}

double projection_seconds(const View& view, const SeqView& seq) {
  const CostModel& costs = view.costs;
  if (costs.projected_token_s > 0) {
    return costs.projected_token_s * view.geometry.layers * seq.known_tokens;
  }
  return kProjectionShare * costs.prefill_row_s * seq.known_tokens;
}

RowOptions rows_as_x(const View& view) {
  RowOptions rows;
  rows.kv = LayerSet();
  rows.x = LayerSet::all(view.geometry.groups());
  rows.slower = LayerSet();
  return rows;
}

AdmitOptions admission_as_x(const View& view, uint32_t spare_blocks) {
  AdmitOptions into;
  into.spare_blocks = spare_blocks;
  into.kv = LayerSet();
  into.x = LayerSet::all(view.geometry.groups());
  return into;
}

void give_up_kv_beside_x(const View& view, const SeqView& seq, PlanBuilder& builder) {
  const uint32_t groups = view.geometry.groups();
  const Interval full = full_blocks(view, seq);
  const uint32_t tail = full.end < seq.ready_tokens && seq.tail_resident ? groups : 0;
  const uint32_t kv = seq.kv_cells(Tier::kDevice) - std::min(seq.kv_cells(Tier::kDevice), seq.leaving_cells);
  const uint32_t of_full = kv - std::min(kv, tail);
  const bool both = of_full + seq.held(Form::kX, Tier::kDevice) > seq.blocks * groups;
  if (full.empty() || of_full == 0 || !both) return;
  builder.release(seq, full, LayerSet::all(groups), Tier::kDevice, Form::kKv);
}

bool upgrade_to_kv(const View& view, const SeqView& seq, uint32_t spare_blocks, PlanBuilder& builder) {
  if (!builder.can_run(seq)) return false;
  const LayerSet all = LayerSet::all(view.geometry.groups());
  const uint32_t missing = cells_to_add(view.geometry, seq, seq.blocks, full_blocks(view, seq), all,
                                        Tier::kDevice, /*tail=*/false);
  const int64_t others = (int64_t{spare_blocks} + 1) * view.geometry.groups();
  if (builder.available_cells() < missing + others) return false;
  if (!builder.add_copies(seq, {0, seq.ready_tokens}, all, Tier::kDevice, Trigger::kBeforeLayer))
    return false;
  builder.release(seq, {0, seq.ready_tokens}, all, Tier::kDevice, Form::kX);
  return true;
}

}  // namespace kvasir
