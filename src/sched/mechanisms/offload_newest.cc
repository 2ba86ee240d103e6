#include "sched/mechanisms/offload_newest.h"

#include <algorithm>

#include "sched/mechanisms/retained_layers.h"

namespace kvasir {
namespace {

// Of `cells` on the device, those of full blocks that nothing takes away yet.
uint32_t retained(const View& view, const SeqView& seq, uint32_t cells) {
  const CacheGeometry& g = view.geometry;
  const uint32_t tail = seq.ready_tokens % g.block_tokens == 0 ? 0 : g.groups();
  return cells - std::min(cells, seq.leaving_cells + tail);
}

// Copies full blocks of so many layer groups of `from` to the slower tier, and gives them up here. False if
// that tier has no room. What stays is spread evenly, as where a prompt is admitted.
bool offload(const View& view, const SeqView& seq, const LayerSet& from, uint32_t groups,
             PlanBuilder& builder) {
  const LayerSet out = from - spread_evenly(from, from.count() - groups);
  const uint32_t b = view.geometry.block_tokens;
  const Interval full = {0, seq.ready_tokens / b * b};
  const Tier slower = view.slower_tier();
  // All of its full blocks are there already: what it holds there may be other layers than these.
  const uint32_t cells = full.size() / b * view.geometry.groups() - seq.dead_cells(view.geometry);
  const bool clean = seq.kv_cells(slower) >= cells;
  if (!builder.add_copies(seq, full, out, slower, Trigger::kNow) && !clean) return false;
  builder.release(seq, full, out, Tier::kDevice);
  return true;
}

}  // namespace

int64_t offload_newest(const View& view, const std::vector<const SeqView*>& running, int64_t cells,
                       PlanBuilder& builder) {
  if (view.total_cells(view.slower_tier()) == 0) return 0;
  int64_t coming = 0;
  for (size_t i = running.size(); i-- > 1 && coming < cells;) {
    const SeqView& seq = *running[i];
    // What leaves already is counted as coming.
    if (seq.leaving_cells > 0 || builder.releases(seq.id) || builder.has_rows(seq.id)) continue;
    if (builder.preempted(seq.id) || builder.kv_placement(seq).streams || !builder.passes_ring(seq)) continue;
    // Only what it holds alone comes free, and nothing while a transfer uses it.
    const uint32_t owns = retained(view, seq, seq.own_kv_cells(Tier::kDevice));
    if (owns == 0) continue;
    // Where copies were lost no layer may be whole, and which have blocks is not known.
    const bool whole = !seq.device_groups.empty();
    const LayerSet from = whole ? seq.device_groups : LayerSet::all(view.geometry.groups());
    const uint32_t all = from.count();
    const uint32_t half = (all + 1) / 2;
    const uint32_t blocks = seq.ready_tokens / view.geometry.block_tokens;
    const uint32_t of_half = std::min(owns, blocks * half);
    const bool half_will_do = whole && coming + of_half >= cells;
    uint32_t stay = 0;
    const auto missing = static_cast<double>(cells - coming);
    if (!half_will_do && offload(view, seq, from, all, builder)) {
      coming += std::min(owns, blocks * all);
    } else if (whole && offload(view, seq, from, half, builder)) {
      coming += of_half;
      stay = all - half;
    } else {
      continue;
    }
    builder.because({Cause::kGivesLayers, seq.id, {}, missing, static_cast<double>(stay)});
  }
  return coming;
}

}  // namespace kvasir
