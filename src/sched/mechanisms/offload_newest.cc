#include "sched/mechanisms/offload_newest.h"

#include <algorithm>

#include "sched/mechanisms/retained_layers.h"

namespace kvasir {
namespace {

// Cells of full blocks on the device that nothing takes away yet.
uint32_t retained_cells(const View& view, const SeqView& seq) {
  const CacheGeometry& g = view.geometry;
  const uint32_t tail = seq.ready_tokens % g.block_tokens == 0 ? 0 : g.groups();
  const uint32_t held = seq.kv_cells(Tier::kDevice);
  return held - std::min(held, seq.leaving_cells + tail);
}

struct Candidate {
  const SeqView* seq;
  LayerSet layers;  // still there
  uint32_t own;     // cells that come free at the most
};

int64_t offload(const View& view, Candidate& c, uint32_t groups, PlanBuilder& builder) {
  const LayerSet out = spread_evenly(c.layers, groups);
  const uint32_t b = view.geometry.block_tokens;
  const Interval full = {0, c.seq->ready_tokens / b * b};
  const Tier slower = view.slower_tier();
  // All of its full blocks are there already: what it holds there may be other layers than these.
  const bool clean = c.seq->kv_cells(slower) >= full.size() / b * view.geometry.groups();
  if (!builder.add_copies(*c.seq, full, out, slower, Trigger::kNow) && !clean) return 0;
  builder.release(*c.seq, full, out, Tier::kDevice);
  c.layers = c.layers - out;
  const uint32_t freed = std::min(c.own, full.size() / b * out.count());
  c.own -= freed;
  return freed;
}

}  // namespace

int64_t offload_newest(const View& view, const std::vector<const SeqView*>& running, int64_t cells,
                       PlanBuilder& builder) {
  if (view.total_cells(view.slower_tier()) == 0) return 0;
  std::vector<Candidate> candidates;
  for (size_t i = running.size(); i-- > 1;) {
    const SeqView& seq = *running[i];
    // What leaves already is counted as coming.
    if (seq.leaving_cells > 0 || builder.releases(seq.id) || retained_cells(view, seq) == 0 || builder.has_rows(seq.id)) continue;
    if (builder.preempted(seq.id) || builder.residence(seq).streams) continue;
    const LayerSet some = seq.device_groups;
    // The block that is not full is nobody else's, and stays.
    const uint32_t tail = seq.ready_tokens % view.geometry.block_tokens == 0 ? 0 : view.geometry.groups();
    const uint32_t own = seq.own_kv_cells(Tier::kDevice);
    candidates.push_back(
        {&seq, some.empty() ? LayerSet::all(view.geometry.groups()) : some, own - std::min(own, tail)});
  }
  int64_t coming = 0;
  for (Candidate& c : candidates) {
    for (const uint32_t groups : {(c.layers.count() + 1) / 2, c.layers.count() / 2}) {
      if (coming >= cells) return coming;
      if (groups > 0) coming += offload(view, c, groups, builder);
    }
  }
  return coming;
}

}  // namespace kvasir
