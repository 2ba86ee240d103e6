#include "sched/policies/auto_residency.h"

#include <algorithm>
#include <tuple>

#include "sched/mechanisms/admit_prompts.h"
#include "sched/mechanisms/decode_by_residency.h"
#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/mechanisms/token_due.h"

namespace kvasir {
namespace {

// A prompt runs away from the device when less than this share of its time to the first token is left: until
// then there may be room.
constexpr double kShareOfTtft = 0.5;
// Layers are staged for a token of which at most this share of the bounds is left.
constexpr double kUrgentShareAway = 0.5;

// Of the link, for each of its tokens while no layer is on the device.
double history_seconds(const View& view, const SeqView& seq) {
  const double bytes =
      static_cast<double>(view.geometry.kv_block_bytes()) * view.geometry.blocks_for(seq.known_tokens);
  return view.costs.transfer_seconds(view.slower_tier(), Tier::kDevice, bytes);
}

}  // namespace

bool is_away(const SeqView& seq, const PlanBuilder& builder) {
  return !seq.resident() && !builder.kv_placement(seq).streams;
}

uint32_t spare_blocks(const View& view, const PlanBuilder& builder) {
  return admission_watermark(view) + blocks_wanted(view, builder);
}

AutoAway::AutoAway(const View& view, const AutoRequests& requests, const RestOfOutput& rest,
                   PlanBuilder& builder)
    : view_(view), requests_(requests), rest_(rest), builder_(builder) {
  for (const AutoRequest& r : requests.running) {
    const SeqView& seq = *r.seq;
    if (builder.preempted(seq.id) || !is_away(seq, builder)) continue;
    link_.add(seq.decoding() ? link_seconds(view, seq) : history_seconds(view, seq), allowed_gap(seq.slo));
  }
}

bool AutoAway::admit(const AutoRequest& r, uint32_t rows) {
  const SeqView& seq = *r.seq;
  if (r.late || !view_.costs.known()) return false;
  if (seq.blocks > 0 || seq.known_tokens > seq.prompt_tokens) return false;
  if (seq.slo.ttft_ms == 0 || r.left_s > kShareOfTtft * seq.slo.ttft_ms / 1e3) return false;
  if (builder_.kv_placement(seq).streams || !builder_.passes_ring(seq)) return false;
  const double seconds = history_seconds(view_, seq);
  const double gap_s = allowed_gap(seq.slo);
  if (!link_.fits(seconds, gap_s)) return false;
  const AdmitOptions into{.spare_blocks = blocks_wanted(view_, builder_), .kv = LayerSet{}};
  if (!builder_.admit(seq, into) || builder_.prefill(seq, rows, {.kv = LayerSet{}}) == 0) return false;
  link_.add(seconds, gap_s);
  builder_.because({Cause::kAdmittedAway, seq.id, {}, r.left_s});
  return true;
}

bool AutoAway::serve(bool may_take, double most_s) {
  std::vector<const AutoRequest*> away;
  for (const AutoRequest& r : requests_.running) {
    if (!builder_.preempted(r.seq->id) && is_away(*r.seq, builder_)) away.push_back(&r);
  }
  if (away.empty()) return false;
  std::sort(away.begin(), away.end(), [](const AutoRequest* a, const AutoRequest* b) {
    return std::tuple(a->late, a->left_s, a->seq->arrival, raw(a->seq->id)) <
           std::tuple(b->late, b->left_s, b->seq->arrival, raw(b->seq->id));
  });
  std::vector<const SeqView*> seqs;
  seqs.reserve(away.size());
  for (const AutoRequest* r : away) seqs.push_back(r->seq);
  const int64_t keep = int64_t{spare_blocks(view_, builder_)} * view_.geometry.groups();
  AwayOptions options;
  options.spare_cells = may_take ? std::max<int64_t>(0, builder_.available_cells() - keep) : 0;
  options.urgent_share = kUrgentShareAway;
  options.urgent_s = most_s;
  options.step_s = requests_.step_s();
  options.survival = &rest_;
  decode_away(view_, seqs, options, builder_);
  double staged_s = 0;
  for (const SeqView* seq : seqs) {
    if (builder_.has_rows(seq->id)) staged_s += link_seconds(view_, *seq);
  }
  return staged_s > view_.costs.step_seconds(builder_.work());
}

}  // namespace kvasir
