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
// Of the sequences that run, those that are likely to give up their memory next.
constexpr size_t kLikelyVictims = 4;
// When less of the device's memory is free, a sequence is likely to give up its memory soon.
constexpr int64_t kLittleMemory = 4;  // watermarks

}  // namespace

bool is_away(const SeqView& seq, const PlanBuilder& builder) {
  return seq.decoding() && !seq.resident() && !builder.kv_placement(seq).streams;
}

AutoAway::AutoAway(const View& view, const AutoRequests& requests, PlanBuilder& builder)
    : view_(view), requests_(requests), builder_(builder) {
  for (const AutoRequest& r : requests.running) {
    const SeqView& seq = *r.seq;
    if (builder.preempted(seq.id) || !is_away(seq, builder)) continue;
    link_.add(link_seconds(view, seq), allowed_gap(seq.slo));
  }
}

bool AutoAway::admit(const AutoRequest& r, uint32_t rows) {
  const SeqView& seq = *r.seq;
  const Tier slower = view_.slower_tier();
  if (r.late || !view_.costs.known() || view_.total_cells(slower) == 0) return false;
  if (seq.blocks > 0 || seq.known_tokens > seq.prompt_tokens) return false;
  if (seq.slo.ttft_ms == 0 || r.left_s > kShareOfTtft * seq.slo.ttft_ms / 1e3) return false;
  if (rows < seq.known_tokens - seq.cached_tokens) return false;
  if (builder_.kv_placement(seq).streams || !builder_.passes_ring(seq)) return false;
  const double bytes =
      static_cast<double>(view_.geometry.kv_block_bytes()) * view_.geometry.blocks_for(seq.known_tokens);
  const double seconds = view_.costs.transfer_seconds(slower, Tier::kDevice, bytes);
  const double gap_s = allowed_gap(seq.slo);
  if (!link_.fits(seconds, gap_s)) return false;
  const AdmitOptions into{.spare_blocks = blocks_wanted(view_, builder_), .kv = LayerSet{}};
  RowOptions write;
  write.kv = LayerSet{};
  if (!builder_.admit(seq, into) || builder_.prefill(seq, rows, write) == 0) return false;
  link_.add(seconds, gap_s);
  return true;
}

void AutoAway::serve(bool may_take) {
  std::vector<const AutoRequest*> away;
  for (const AutoRequest& r : requests_.running) {
    if (!builder_.preempted(r.seq->id) && is_away(*r.seq, builder_)) away.push_back(&r);
  }
  if (away.empty()) return;
  std::sort(away.begin(), away.end(), [](const AutoRequest* a, const AutoRequest* b) {
    return std::tuple(a->late, a->left_s, a->seq->arrival, raw(a->seq->id)) <
           std::tuple(b->late, b->left_s, b->seq->arrival, raw(b->seq->id));
  });
  std::vector<const SeqView*> seqs;
  seqs.reserve(away.size());
  for (const AutoRequest* r : away) seqs.push_back(r->seq);
  const int64_t keep =
      (int64_t{blocks_wanted(view_, builder_)} + admission_watermark(view_)) * view_.geometry.groups();
  AwayOptions options;
  options.spare_cells = may_take ? std::max<int64_t>(0, builder_.available_cells() - keep) : 0;
  options.urgent_share = kUrgentShareAway;
  options.step_s = requests_.step_s();
  decode_away(view_, seqs, options, builder_);
}

bool may_copy_ahead(const View& view, const PlanBuilder& builder) {
  const Tier slower = view.slower_tier();
  return view.total_cells(slower) > 0 && view.transfers_in_flight == 0 &&
         view.costs.links[index_of(Tier::kDevice)][index_of(slower)].seconds_per_byte > 0 &&
         builder.available_blocks() <= kLittleMemory * admission_watermark(view);
}

void copy_likely_victims(const View& view, const std::vector<const AutoRequest*>& order, double step_s,
                         PlanBuilder& builder) {
  const Tier slower = view.slower_tier();
  const LinkCost& link = view.costs.links[index_of(Tier::kDevice)][index_of(slower)];
  const double block_s = link.seconds_per_byte * static_cast<double>(view.geometry.kv_block_bytes());
  auto blocks = static_cast<uint32_t>(step_s / block_s);  // what the link takes in a step
  const uint32_t groups = view.geometry.groups(), b = view.geometry.block_tokens;
  size_t tried = 0;
  for (size_t i = order.size(); i-- > 0 && tried < kLikelyVictims && blocks > 0; ++tried) {
    const SeqView& seq = *order[i]->seq;
    if (!seq.resident() || builder.preempted(seq.id)) continue;
    // Copies are made from the beginning on.
    const uint32_t there = seq.kv_cells(slower) / groups;
    const uint32_t full = seq.ready_tokens / b;
    const uint32_t more = std::min(blocks, full - std::min(full, there));
    if (more == 0) continue;
    if (!builder.add_copies(seq, {there * b, (there + more) * b}, LayerSet::all(groups), slower,
                            Trigger::kBackground)) {
      return;
    }
    blocks -= more;
  }
}

}  // namespace kvasir
