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

struct Candidate {
  const SeqView* seq;
  LayerSet layers;   // still there
  bool whole;        // every block of each of them is
  uint32_t retains;  // cells
  uint32_t owns;     // of those that come free
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
  // No more than there is: who waits for what does not come waits for ever.
  const uint32_t gone = std::min(c.retains, full.size() / b * out.count());
  const uint32_t come = std::min(gone, c.owns);
  c.retains -= gone;
  c.owns -= come;
  return come;
}

}  // namespace

int64_t offload_newest(const View& view, const std::vector<const SeqView*>& running, int64_t cells,
                       PlanBuilder& builder) {
  if (view.total_cells(view.slower_tier()) == 0) return 0;
  std::vector<Candidate> candidates;
  for (size_t i = running.size(); i-- > 1;) {
    const SeqView& seq = *running[i];
    const uint32_t retains = retained(view, seq, seq.kv_cells(Tier::kDevice));
    // What leaves already is counted as coming.
    if (seq.leaving_cells > 0 || builder.releases(seq.id)) continue;
    if (retains == 0 || builder.has_rows(seq.id)) continue;
    if (builder.preempted(seq.id) || builder.residence(seq).streams) continue;
    // Where copies were lost no layer may be whole, and which have blocks is not known.
    const bool whole = !seq.device_groups.empty();
    candidates.push_back({&seq, whole ? seq.device_groups : LayerSet::all(view.geometry.groups()), whole,
                          retains, retained(view, seq, seq.own_kv_cells(Tier::kDevice))});
  }
  int64_t coming = 0;
  for (Candidate& c : candidates) {
    const uint32_t all = c.layers.count();
    const uint32_t half = c.whole ? (all + 1) / 2 : all;
    for (const uint32_t groups : {half, all - half}) {
      if (coming >= cells) return coming;
      if (groups > 0) coming += offload(view, c, groups, builder);
    }
  }
  return coming;
}

}  // namespace kvasir
