#include "sched/mechanisms/decode_by_residency.h"

#include <algorithm>
#include <utility>

#include "sched/mechanisms/allow_prefill_budget.h"
#include "sched/mechanisms/availability_forecast.h"
#include "sched/mechanisms/refused.h"
#include "sched/mechanisms/retained_layers.h"

namespace kvasir {
namespace {

// Of the time that a request has waited: the link's, once, for one that needs more than a step's time.
constexpr double kCreditShare = 0.02;

// Of the link, in seconds; the first user of an empty step goes beyond it.
class LinkBudget {
 public:
  LinkBudget(const View& view, double share, double used_s, const PlanBuilder& builder)
      : left_(share * view.costs.step_seconds(builder.work()) - used_s),
        first_goes_(builder.work().empty()) {}
  bool allows(double seconds) const { return seconds <= left_ || first_goes_; }
  double left() const { return std::max(left_, 0.0); }
  void spend(double seconds) {
    left_ -= seconds;
    first_goes_ = false;
  }

 private:
  double left_;
  bool first_goes_;
};

LayerSet groups_away(const View& view, const SeqView& seq) {
  return LayerSet::all(view.geometry.groups()) - seq.device_groups;
}

// Brings layers back, as many as there are cells and time on the link for; they come while the step computes,
// and the next token when all are there. The last of them come only if there is room for what the sequence
// begins then, or they would have to go again for it. Returns the cells that it took.
uint32_t bring_back(const View& view, const SeqView& seq, int64_t spare_cells, uint32_t stages,
                    LinkBudget& link, PlanBuilder& builder) {
  const uint32_t away = cells_away(view, seq);
  if (away == 0 || seq.tail_busy) return 0;
  const uint32_t begins = cells_begun(view, seq, stages);
  const double seconds = link_seconds(view, seq);
  const double room = static_cast<double>(std::max<int64_t>(spare_cells - begins, 0)) / away;
  const double time = link.allows(seconds) ? 1 : link.left() / seconds;
  const LayerSet all = groups_away(view, seq);
  const LayerSet layers =
      spread_evenly(all, static_cast<uint32_t>(std::min({room, time, 1.0}) * all.count()));
  if (layers.empty()) return 0;
  if (!builder.add_copies(seq, {0, seq.ready_tokens}, layers, Tier::kDevice, Trigger::kNow)) return 0;
  const uint32_t cells = std::min(away, layers.count() * seq.blocks);
  link.spend(seconds * cells / away);
  return cells + (layers == all ? begins : 0);
}

// The next token, with the layers that are away read through the stage ring. credit_s: time on the link that
// it has beyond the step's. Returns the time on the link.
double serve(const View& view, const SeqView& seq, double credit_s, LinkBudget& link, PlanBuilder& builder) {
  const double seconds = link_seconds(view, seq);
  if (!link.allows(seconds) && seconds > credit_s) return 0;
  if (builder.has_rows(seq.id) || !builder.can_run(seq) || !builder.decode(seq)) return 0;
  link.spend(seconds);
  return seconds;
}

}  // namespace

uint32_t cells_away(const View& view, const SeqView& seq) {
  const uint32_t all = seq.live_cells(view.geometry);
  return all - std::min(all, seq.kv_cells(Tier::kDevice));
}

double link_seconds(const View& view, const SeqView& seq) {
  const uint32_t away = cells_away(view, seq);
  if (away == 0) return 0;
  const double bytes = static_cast<double>(view.geometry.kv_cell_bytes()) * away;
  return view.costs.transfer_seconds(view.slower_tier(), Tier::kDevice, bytes);
}

uint32_t decode_resident(const View& view, const std::vector<const SeqView*>& running, bool offloads,
                         PlanBuilder& builder) {
  const uint32_t groups = view.geometry.groups();
  uint32_t preempted = 0;
  int64_t awaited = 0;          // cells, of those that come when steps and copies end
  size_t end = running.size();  // those from here on are preempted
  for (size_t i = 0; i < end; ++i) {
    const SeqView& seq = *running[i];
    if (!seq.decoding() || !seq.resident() || !builder.can_run(seq)) continue;
    while (i < end && !builder.decode(seq)) {
      if (offloads || builder.coming_cells() >= awaited + groups) {
        say_no_free_block(seq, builder);
        awaited += groups;
        break;
      }
      if (end == 1 || !builder.can_stop(*running[end - 1])) break;
      const SeqView& last = *running[--end];
      builder.because(preempted_for_token(Cause::kArrivedLast, last, seq));
      if (!builder.preempt_and_offload(last)) builder.preempt_and_drop(last);
      ++preempted;
    }
  }
  return preempted;
}

void decode_away(const View& view, const std::vector<const SeqView*>& running, const AwayOptions& options,
                 PlanBuilder& builder) {
  std::vector<const SeqView*> away;
  for (const SeqView* seq : running) {
    if (seq->decoding() && !seq->resident() && !builder.preempted(seq->id)) away.push_back(seq);
  }
  if (away.empty()) return;
  // Those larger than the device are never on it: no policy can spare them the link.
  double used_s = options.link_used_s;
  for (const SeqView* seq : away) {
    if (!builder.kv_placement(*seq).streams || !builder.can_run(*seq) || !builder.decode(*seq)) continue;
    used_s += link_seconds(view, *seq);
  }
  LinkBudget link(view, options.link_share, used_s, builder);
  std::erase_if(away, [&](const SeqView* seq) { return builder.kv_placement(*seq).streams; });
  int64_t spare_cells = options.spare_cells;
  size_t first = 0;  // of those of which not all comes back
  bool none_comes = true;
  for (; first < away.size(); ++first) {
    const uint32_t taken = bring_back(view, *away[first], spare_cells, options.stages, link, builder);
    none_comes = taken == 0;
    if (taken < cells_away(view, *away[first])) break;
    spare_cells -= taken;
  }
  if (options.all) {
    for (size_t i = first; i < away.size(); ++i)
      serve(view, *away[i], link_seconds(view, *away[i]), link, builder);
    return;
  }
  std::vector<std::pair<double, const SeqView*>> urgent;
  for (size_t i = first; i < away.size(); ++i) {
    const PrefillAllowance a =
        allowed_prefill(*away[i], view.length_classes, view.now, options.step_s, options.survival);
    if (!a.missed && a.share <= options.urgent_share) urgent.push_back({a.seconds, away[i]});
  }
  std::stable_sort(urgent.begin(), urgent.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  double urgent_s = options.urgent_s;
  for (const auto& [seconds, seq] : urgent) urgent_s -= serve(view, *seq, urgent_s, link, builder);
  // The first of them does not starve while newcomers fill what is free: where the link needs longer than a
  // step, it has a small share of the time that the request has waited.
  if (first < away.size() && none_comes) {
    const SeqView& seq = *away[first];
    const double waited_s = seq.last_token_time > 0 ? to_seconds(view.now - seq.last_token_time) : 0;
    serve(view, seq, kCreditShare * options.link_share * waited_s, link, builder);
  }
  for (const SeqView* seq : away) {
    if (!builder.work().empty()) break;
    serve(view, *seq, 0, link, builder);
  }
}

}  // namespace kvasir
