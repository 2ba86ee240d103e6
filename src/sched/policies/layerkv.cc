// LayerKV (Xiong et al., 2024): prompts are prefilled as soon as the bounds of those that decode allow, and
// the layers of their keys and values for which the device has no room go to the host while they are
// computed. Without a tier behind the device it admits as the device has room.
#include <algorithm>
#include <vector>

#include "sched/batch_policy.h"
#include "sched/mechanisms/admit_prompts.h"
#include "sched/mechanisms/allow_prefill_budget.h"
#include "sched/mechanisms/availability_forecast.h"
#include "sched/mechanisms/decode_by_residency.h"
#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/mechanisms/offload_newest.h"
#include "sched/mechanisms/prefill_time.h"
#include "sched/mechanisms/retained_layers.h"
#include "sched/mechanisms/swap_in.h"
#include "sched/policy_settings.h"

namespace kvasir {
namespace {

constexpr uint32_t kMostStages = 64;
// The share of the least bound on the time between two tokens that a prefill may take, since beliefs err.
constexpr double kShareOfGap = 0.5;

// docs/policies/layerkv.md has them by the names that users give them.
struct LayerKvOptions {
  // Equation 2 bounds prefills; without it they wait for memory only: the paper's ablation.
  bool slo = true;
  // Prompts are prefilled beside the decodes of a step; without it a step is prefills or decodes, as in vLLM
  // 0.5.
  bool mixed = true;
  double threshold = 0.01;    // share of the device's cells below which layers are offloaded
  uint32_t stages = 1;        // of a block's tokens: how far Equation 5 looks ahead
  double link_share = 1;      // of the time that a step computes, for what the link brings meanwhile
  double urgent_share = 0.3;  // of its bounds: with less than that left, layers are staged for its next token
  double beta = 1;            // Equation 4
  PublishedPrefillTime published{};  // Equation 3 to the letter
  bool survival = false;             // Equations 1 and 5 by what is left of outputs that live so long
};

// One step's plan.
class LayerKvStep {
 public:
  // survival: null for the paper's lengths.
  LayerKvStep(const View& view, const LayerKvOptions& options, const RestOfOutput* survival,
              PlanBuilder& builder)
      : view_(view),
        options_(options),
        survival_(survival),
        builder_(builder),
        groups_(view.geometry.groups()),
        running_(by_arrival(view.running)),
        threshold_(static_cast<int64_t>(options.threshold * view.total_cells(Tier::kDevice))) {
    StepWork decodes;
    for (const SeqView* seq : running_) {
      if (!seq->decoding()) continue;
      if (seq->resident()) {
        decodes.add_decode(seq->known_tokens);
      } else {
        away_cells_ += cells_away(view, *seq);
      }
    }
    step_s_ = view.costs.step_seconds(decodes);
    spare_cells_ = AvailabilityForecast(view, builder, options.stages, survival).least() - threshold_;
    for (const SeqView* seq : running_) allow(*seq);
  }

  void plan() {
    const bool offloads = spare_cells_ < 0 && offload_newest(view_, running_, -spare_cells_, builder_) > 0;
    const bool swapped = any_swapped_out(view_);
    if (!options_.mixed && !swapped && !any_cut_short() && admit()) return;
    const uint32_t preempted = decode_resident(view_, running_, offloads, builder_);
    decodes_s_ = view_.costs.step_seconds(builder_.work());
    prefill_on();
    if (options_.mixed && !swapped && preempted == 0) admit();
    AwayOptions away;
    away.spare_cells = preempted > 0 ? 0 : spare_cells_;
    away.link_share = options_.link_share;
    away.urgent_share = options_.urgent_share;
    away.step_s = step_s_;
    away.link_used_s = link_used_s_;
    away.stages = options_.stages;
    away.survival = survival_;
    decode_away(view_, running_, away, builder_);
    if (swapped && preempted == 0)
      swap_in(view_, admission_watermark(view_) + blocks_wanted(view_, builder_), builder_);
  }

 private:
  // The minimum in Equation 2.
  void allow(const SeqView& seq) {
    if (!options_.slo || !seq.decoding() || !seq.slo.any()) return;
    const PrefillAllowance a = allowed_prefill(seq, view_.length_classes, view_.now, step_s_, survival_);
    if (a.missed) return;
    allowed_s_ = std::min(allowed_s_, a.seconds);
    if (seq.slo.tbt_ms == 0) return;
    longest_s_ = std::min(longest_s_, kShareOfGap * seq.slo.tbt_ms / 1e3);
    allowed_s_ = std::min(allowed_s_, longest_s_);
  }

  bool any_cut_short() const {
    return std::any_of(running_.begin(), running_.end(),
                       [](const SeqView* s) { return !s->decoding() && !s->stalled; });
  }

  // Algorithm 1: admits the longest prefix of the queue for whose prefills there is time. True if it admits
  // any.
  bool admit() {
    double published_s = decodes_s_;
    for (const SeqView& seq : view_.waiting) {
      const uint32_t cached = seq.cached_tokens;
      const uint32_t rows = seq.known_tokens - cached;
      const bool first = admitted_ == 0;
      if (!first && builder_.planned_tokens() + rows > view_.limits.max_num_batched_tokens) break;
      StepWork work = builder_.work();
      work.add_prefill(cached, rows);
      published_s += options_.published.seconds(rows);
      const double prefill_s = options_.published.used() ? published_s : view_.costs.step_seconds(work);
      uint32_t chunk = rows;
      if (!(prefill_s < allowed_s_ + decodes_s_)) chunk = first ? cut_to_allowed(cached, rows) : 0;
      if (chunk == 0 || !admit_one(seq, rows, chunk)) break;
      ++admitted_;
      if (chunk < rows) break;
    }
    return admitted_ > 0;
  }

  // A prompt that takes longer than a gap between two tokens ever allows is cut to what the gaps allow now,
  // unless that is less than half of what they would allow at another time.
  uint32_t cut_to_allowed(uint32_t history, uint32_t rows) const {
    if (longest_s_ == kNoLimit) return 0;
    const uint32_t ever = rows_within(longest_s_, history, rows);
    const uint32_t now = rows_within(allowed_s_, history, rows);
    return ever < rows && now >= ever / 2 ? in_blocks(now) : 0;
  }

  // Rows that may go beside the decodes so that these wait no longer than `seconds`.
  uint32_t rows_within(double seconds, uint32_t history, uint32_t most) const {
    return prefill_rows_within(view_.costs, builder_.work(), seconds + decodes_s_, history, most);
  }

  // A chunk that has a full block ends with one, so that no block has to stay on the device in all layers.
  uint32_t in_blocks(uint32_t rows) const {
    const uint32_t b = view_.geometry.block_tokens;
    return rows < b ? rows : rows / b * b;
  }

  bool admit_one(const SeqView& seq, uint32_t rows, uint32_t chunk) {
    const bool alone = builder_.running_seqs() == 0;
    AdmitOptions into{.spare_blocks =
                          alone ? 0 : admission_watermark(view_) + blocks_wanted(view_, builder_)};
    RowOptions write;
    const uint32_t b = view_.geometry.block_tokens;
    const uint32_t full = (seq.known_tokens - seq.cached_tokens) / b;
    uint32_t keeps = groups_;
    if (may_be_away(seq)) {
      const int64_t room = spare_cells_ - away_cells_ - groups_;
      if (!alone && full > 0) keeps = static_cast<uint32_t>(std::clamp<int64_t>(room / full, 0, groups_));
      const double prefill_s = view_.costs.prefill_seconds(rows, seq.cached_tokens);
      const LinkCost& link = view_.costs.links[index_of(Tier::kDevice)][index_of(view_.slower_tier())];
      if (keeps < least_retained_groups(view_.geometry, link, rows, prefill_s, options_.beta)) return false;
      if (keeps < groups_) write.kv = into.kv = spread_evenly(LayerSet::all(groups_), keeps);
    }
    if (!builder_.admit(seq, into)) return false;
    if (builder_.prefill(seq, chunk, write) == 0) return false;
    spare_cells_ -= full * keeps + groups_;
    away_cells_ += full * (groups_ - keeps);
    return true;
  }

  // Whether layers of it may be elsewhere: there is a slower tier, and a ring through which they are read.
  bool may_be_away(const SeqView& seq) const {
    return !builder_.kv_placement(seq).streams && builder_.passes_ring(seq) &&
           view_.total_cells(view_.slower_tier()) > 0;
  }

  // Goes on with prompts that were cut short, beside the decodes.
  void prefill_on() {
    for (const SeqView* seq : running_) {
      if (seq->decoding() || builder_.has_rows(seq->id) || builder_.preempted(seq->id)) continue;
      uint32_t rows = seq->tokens_to_compute();
      if (allowed_s_ < kNoLimit && !builder_.work().empty()) {
        const uint32_t cut = rows_within(allowed_s_, seq->ready_tokens, rows);
        if (cut < rows) rows = in_blocks(cut);
      }
      if (rows == 0) continue;
      // Where the slower tier is full it goes on as the device has room.
      if (builder_.prefill(*seq, rows, writes_on(*seq)) > 0 || builder_.prefill(*seq, rows) > 0) {
        link_used_s_ += link_seconds(view_, *seq);
      }
    }
  }

  // The layers with which it was admitted: what is left of its promise says how many.
  RowOptions writes_on(const SeqView& seq) const {
    RowOptions out;
    if (!may_be_away(seq)) return out;
    const uint32_t b = view_.geometry.block_tokens;
    const uint32_t full = seq.known_tokens / b - std::min(seq.known_tokens / b, seq.blocks);
    const uint32_t last = view_.geometry.blocks_for(seq.known_tokens) > seq.blocks + full ? groups_ : 0;
    const uint32_t promised = builder_.promised(seq);
    if (full == 0 || promised >= full * groups_ + last) return out;
    const uint32_t keeps = (promised - std::min(promised, last)) / full;
    out.kv = spread_evenly(LayerSet::all(groups_), std::min(keeps, groups_));
    return out;
  }

  const View& view_;
  const LayerKvOptions& options_;
  const RestOfOutput* const survival_;
  PlanBuilder& builder_;
  const uint32_t groups_;
  const std::vector<const SeqView*> running_;  // by arrival
  const int64_t threshold_;
  int64_t away_cells_ = 0;   // of those that run, not on the device
  int64_t spare_cells_ = 0;  // cells that the coming stages do not need
  uint32_t admitted_ = 0;
  double step_s_ = 0;     // a step of all that are on the device: the current TPOT
  double decodes_s_ = 0;  // what the decodes of this step take, of those planned before prefills
  double link_used_s_ = 0;
  double allowed_s_ = kNoLimit;
  double longest_s_ = kNoLimit;  // that a prefill may ever take
};

class LayerKvPolicy final : public BatchPolicy {
 public:
  explicit LayerKvPolicy(const LayerKvOptions& options) : options_(options) {}

 private:
  void plan_batch(const View& view, PlanBuilder& builder) override {
    if (options_.survival) rest_.observe(view);
    LayerKvStep(view, options_, options_.survival ? &rest_ : nullptr, builder).plan();
  }

  const LayerKvOptions options_;
  RestOfOutput rest_;  // a cache
};

}  // namespace

std::unique_ptr<BatchPolicy> make_layerkv(PolicySettings& settings) {
  LayerKvOptions o;
  o.slo = settings.flag("slo", o.slo);
  o.mixed = settings.flag("mixed", o.mixed);
  o.threshold = settings.number("threshold", o.threshold, 0, 0.5);
  o.stages = settings.whole("stages", o.stages, 1, kMostStages);
  o.link_share = settings.number("link-share", o.link_share, 0.01, 10);
  o.urgent_share = settings.number("urgent", o.urgent_share, 0, 1);
  o.beta = settings.number("beta", o.beta, 0, 1000);
  o.survival = settings.flag("survival", o.survival);
  o.published.parameters = settings.number("n-param", 0, 0, 1e15);
  o.published.hidden = settings.number("n-hidden", 0, 0, 1e9);
  o.published.flops_per_s = settings.number("flops", 1, 1, 1e20);
  o.published.alpha = settings.number("alpha", 1, 0, 1e6);
  settings.needs("n-param", {"n-hidden", "flops"});
  for (const char* key : {"n-hidden", "flops", "alpha"}) settings.needs(key, {"n-param"});
  return std::make_unique<LayerKvPolicy>(o);
}

}  // namespace kvasir
