#include "sched/mechanisms/hidden_cache.h"

#include <algorithm>

namespace kvasir {
namespace {

constexpr double kProjectionShare = 1.0 / 6;

uint64_t block_bytes(const CacheGeometry& g, Form form) {
  return g.cell_bytes(form) * g.groups();
}

// Of the K and V on the device that it would adopt, those that no sequence uses.
uint32_t idle_cells(const SeqView& seq) {
  return std::min(seq.cached_resident_cells, seq.cached_idle[index_of(Form::kKv)][index_of(Tier::kDevice)]);
}

uint64_t idle_x_bytes(const CacheGeometry& geometry, const SeqView& seq) {
  return seq.cached_idle[index_of(Form::kX)][index_of(Tier::kDevice)] * geometry.cell_bytes(Form::kX);
}

Interval full_blocks(const View& view, const SeqView& seq) {
  return {0, seq.ready_tokens - seq.ready_tokens % view.geometry.block_tokens};
}

double seconds_to_project(const View& view, double tokens) {
  const CostModel& costs = view.costs;
  if (costs.projected_token_s > 0) return costs.projected_token_s * view.geometry.layers * tokens;
  return kProjectionShare * costs.prefill_row_s * tokens;
}

}  // namespace

bool held_as_x(const SeqView& seq) {
  return seq.held(Form::kX, Tier::kDevice) > 0 && !seq.resident();
}

uint64_t bytes_as_kv(const CacheGeometry& geometry, const SeqView& seq) {
  const uint32_t all = geometry.most_cells(geometry.blocks_for(seq.known_tokens));
  return (all - std::min(all, seq.cached_in_use())) * geometry.kv_cell_bytes() + idle_x_bytes(geometry, seq);
}

uint64_t bytes_as_x(const CacheGeometry& geometry, const SeqView& seq) {
  const uint64_t tail = seq.known_tokens % geometry.block_tokens == 0 ? 0 : block_bytes(geometry, Form::kKv);
  const uint32_t fresh = geometry.blocks_for(seq.known_tokens) - seq.cached_tokens / geometry.block_tokens;
  return fresh * block_bytes(geometry, Form::kX) + tail + idle_cells(seq) * geometry.kv_cell_bytes() +
         idle_x_bytes(geometry, seq);
}

uint64_t free_bytes(const View& view, const PlanBuilder& builder) {
  return static_cast<uint64_t>(std::max<int64_t>(builder.available_cells(), 0)) *
         view.geometry.kv_cell_bytes();
}

double projection_seconds(const View& view, const SeqView& seq) {
  const uint32_t kv = seq.blocks == 0 ? seq.cached_resident_cells : seq.kv_cells(Tier::kDevice);
  const uint32_t there = kv / view.geometry.groups() * view.geometry.block_tokens;
  return seconds_to_project(view, seq.known_tokens - std::min(seq.known_tokens, there));
}

double projection_seconds_as_x(const View& view, const SeqView& seq) {
  return seconds_to_project(view, seq.known_tokens - seq.known_tokens % view.geometry.block_tokens);
}

uint64_t bytes_freed_as_x(const CacheGeometry& geometry, const SeqView& seq) {
  const uint64_t own = uint64_t{seq.own_kv_cells(Tier::kDevice)} * geometry.kv_cell_bytes();
  return own - std::min(own, bytes_as_x(geometry, seq));
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

bool ring_passes_as_x(const View& view, const SeqView& seq, uint32_t rows, const PlanBuilder& builder) {
  return view.geometry.blocks_for(rows) + view.geometry.blocks_for(seq.cached_tokens) <= builder.stage_room();
}

bool has_room_as_x(const View& view, const SeqView& seq, uint32_t rows, uint32_t spare_blocks,
                   const PlanBuilder& builder) {
  const uint64_t x = view.geometry.blocks_for(rows) * block_bytes(view.geometry, Form::kX);
  return ring_passes_as_x(view, seq, rows, builder) &&
         x + (1 + spare_blocks) * view.geometry.kv_block_bytes() <= free_bytes(view, builder);
}

bool goes_on_as_x(const SeqView& seq, const PlanBuilder& builder) {
  return held_as_x(seq) && builder.passes_ring(seq) && !builder.kv_placement(seq).streams;
}

uint32_t rows_with_x_cells(const View& view, const SeqView& seq, const PlanBuilder& builder) {
  const int64_t cells = std::max<int64_t>(builder.available_cells(Tier::kDevice, Form::kX), 0);
  const int64_t end = (seq.blocks + cells / view.geometry.groups()) * view.geometry.block_tokens;
  return static_cast<uint32_t>(std::max<int64_t>(end - seq.ready_tokens, 0));
}

bool decode_as_x(const View& view, const SeqView& seq, PlanBuilder& builder) {
  if (!builder.decode(seq, rows_as_x(view))) return false;
  give_up_kv_beside_x(view, seq, builder);
  return true;
}

bool decode_as_kv(const View& view, const SeqView& seq, PlanBuilder& builder) {
  if (!builder.decode(seq)) return false;
  give_up_needless_x(view, seq, builder);
  return true;
}

void give_up_kv_beside_x(const View& view, const SeqView& seq, PlanBuilder& builder) {
  const uint32_t groups = view.geometry.groups();
  const Interval full = full_blocks(view, seq);
  const uint32_t tail = full.end < seq.ready_tokens && seq.tail_resident ? groups : 0;
  const uint32_t kv = seq.kv_cells(Tier::kDevice) - std::min(seq.kv_cells(Tier::kDevice), seq.leaving_cells);
  const uint32_t of_full = kv - std::min(kv, tail);
  const uint32_t all = seq.live_cells(view.geometry), has = of_full + seq.held(Form::kX, Tier::kDevice);
  if (full.empty() || has <= all) return;
  builder.release(seq, full, LayerSet::all(groups), Tier::kDevice, Form::kKv);
}

void give_up_needless_x(const View& view, const SeqView& seq, PlanBuilder& builder) {
  if (seq.held(Form::kX, Tier::kDevice) == 0 || !seq.resident()) return;
  builder.release(seq, {0, seq.ready_tokens}, LayerSet::all(view.geometry.groups()), Tier::kDevice, Form::kX);
}

uint32_t cells_to_upgrade(const View& view, const SeqView& seq) {
  const uint32_t groups = view.geometry.groups();
  const CopyChange back{Verb::kAdd, seq.id,        full_blocks(view, seq), LayerSet::all(groups),
                        Form::kKv,  Tier::kDevice, Trigger::kNow};
  return groups + cells_to_add(view.geometry, seq, seq.blocks, back);
}

bool upgrade_to_kv(const View& view, const SeqView& seq, uint32_t spare_blocks, PlanBuilder& builder) {
  if (seq.stalled || seq.tail_busy || seq.in_flight > 0) return false;
  const LayerSet all = LayerSet::all(view.geometry.groups());
  const int64_t others = int64_t{spare_blocks} * view.geometry.groups();
  if (builder.available_cells() < cells_to_upgrade(view, seq) + others) return false;
  if (!builder.add_copies(seq, {0, seq.ready_tokens}, all, Tier::kDevice, Trigger::kBeforeLayer))
    return false;
  return true;
}

}  // namespace kvasir
