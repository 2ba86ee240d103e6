// LayerKV (Xiong et al., 2024): prompts are prefilled as soon as the bounds of those that decode allow, and
// the layers of their keys and values for which the device has no room go to the host while they are
// computed. Without a tier behind the device it admits as the device has room.
#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <vector>

#include "sched/batch_policy.h"
#include "sched/mechanisms/admit_prompts.h"
#include "sched/mechanisms/allow_prefill_budget.h"
#include "sched/mechanisms/availability_forecast.h"
#include "sched/mechanisms/decode_by_residency.h"
#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/mechanisms/measured_tpot.h"
#include "sched/mechanisms/offload_newest.h"
#include "sched/mechanisms/prefill_time.h"
#include "sched/mechanisms/refused.h"
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
  // Equation 1's current TPOT as it is measured; without it, the believed time of a step.
  bool measured = true;
  double age_s = 60;  // a prompt goes, whatever others' bounds allow, if none has gone for so long
  // Every request decodes in each step, and the layers that are away come for it: Section 4 to the letter.
  bool reload_all = false;
};

// What one plan knows of those before it.
struct LayerKvPast {
  double tpot_s = 0;   // 0: nothing is measured
  Nanos admitted = 0;  // when the last prompt was
};

// One step's plan.
class LayerKvStep {
 public:
  // survival: null for the paper's lengths.
  LayerKvStep(const View& view, const LayerKvOptions& options, const LayerKvPast& past,
              const RestOfOutput* survival, PlanBuilder& builder)
      : view_(view),
        options_(options),
        past_(past),
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

  // Returns whether a prompt was admitted.
  bool plan() {
    plan_rows();
    return admitted_ > 0;
  }

 private:
  void plan_rows() {
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
    away.all = options_.reload_all;
    decode_away(view_, running_, away, builder_);
    if (swapped && preempted == 0)
      swap_in(view_, admission_watermark(view_) + blocks_wanted(view_, builder_), builder_);
  }

  // The minimum in Equation 2. A request that is late allows nothing; a prompt that has begun goes on as the
  // others allow.
  void allow(const SeqView& seq) {
    if (!options_.slo || !seq.decoding() || !seq.slo.any() || beyond_reach(seq, view_.costs)) return;
    const DecodePace pace(step_s_, past_.tpot_s > 0 ? past_.tpot_s : step_s_);
    const PrefillAllowance a = allowed_prefill(seq, view_.length_classes, view_.now, pace, survival_);
    allowed_s_ = std::min(allowed_s_, a.seconds);
    if (!a.missed) goes_on_s_ = std::min(goes_on_s_, a.seconds);
    if (seq.slo.tbt_ms > 0) longest_s_ = std::min(longest_s_, kShareOfGap * seq.slo.tbt_ms / 1e3);
    if (a.missed || seq.slo.tbt_ms == 0) return;
    allowed_s_ = std::min(allowed_s_, longest_s_);
    goes_on_s_ = std::min(goes_on_s_, longest_s_);
  }

  // So that no prompt starves behind requests that never catch up.
  bool aged(const SeqView& first) const {
    return to_seconds(view_.now - std::max(past_.admitted, first.arrival)) >= options_.age_s;
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
      if (!(prefill_s < allowed_s_ + decodes_s_)) {
        chunk = !first ? 0 : aged(seq) ? cut_to_gap(cached, rows) : cut_to_allowed(cached, rows);
      }
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

  // An aged prompt takes what a gap between two tokens ever allows, and all of it where none is bounded.
  uint32_t cut_to_gap(uint32_t history, uint32_t rows) const {
    if (longest_s_ == kNoLimit) return rows;
    const uint32_t ever = rows_within(longest_s_, history, rows);
    return ever < rows ? std::max(in_blocks(ever), std::min(rows, view_.geometry.block_tokens)) : rows;
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
    if (!builder_.admit(seq, into)) return refused(view_, seq, into, builder_);
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
      if (goes_on_s_ < kNoLimit && !builder_.work().empty()) {
        const uint32_t cut = rows_within(goes_on_s_, seq->ready_tokens, rows);
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
  const LayerKvPast past_;
  const RestOfOutput* const survival_;
  PlanBuilder& builder_;
  const uint32_t groups_;
  const std::vector<const SeqView*> running_;  // by arrival
  const int64_t threshold_;
  int64_t away_cells_ = 0;   // of those that run, not on the device
  int64_t spare_cells_ = 0;  // cells that the coming stages do not need
  uint32_t admitted_ = 0;
  double step_s_ = 0;     // a step of all that are on the device
  double decodes_s_ = 0;  // what the decodes of this step take, of those planned before prefills
  double link_used_s_ = 0;
  double allowed_s_ = kNoLimit;
  double goes_on_s_ = kNoLimit;  // the same without those that are late
  double longest_s_ = kNoLimit;  // that a prefill may ever take
};

class LayerKvPolicy final : public BatchPolicy {
 public:
  explicit LayerKvPolicy(const LayerKvOptions& options) : options_(options) {}

  std::string save_state() const override { return fmt::format("{}; {}", admitted_, tpot_.save()); }
  Status restore_state(std::string_view state) override {
    const size_t semicolon = state.find(';');
    std::istringstream in{std::string(state.substr(0, semicolon))};
    Nanos admitted = 0;
    if (semicolon == std::string_view::npos || !(in >> admitted)) return Policy::restore_state(state);
    KV_RETURN_IF_ERROR(tpot_.restore(state.substr(semicolon + 1)));
    admitted_ = admitted;
    return {};
  }

 private:
  void begin_step(const View& view, PlanBuilder& /*builder*/) override { tpot_.observe(view); }

  void plan_batch(const View& view, PlanBuilder& builder) override {
    if (options_.survival) rest_.observe(view);
    const LayerKvPast past{options_.measured ? tpot_.seconds(0) : 0, admitted_};
    const RestOfOutput* survival = options_.survival ? &rest_ : nullptr;
    if (LayerKvStep(view, options_, past, survival, builder).plan()) admitted_ = view.now;
  }

  const LayerKvOptions options_;
  MeasuredTpot tpot_;
  Nanos admitted_ = 0;  // when the last prompt was
  RestOfOutput rest_;   // a cache
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
  o.measured = settings.flag("measured", o.measured);
  o.age_s = settings.number("age", o.age_s, 0, 1e6);
  o.reload_all = settings.flag("reload-all", o.reload_all);
  o.published.parameters = settings.number("n-param", 0, 0, 1e15);
  o.published.hidden = settings.number("n-hidden", 0, 0, 1e9);
  o.published.flops_per_s = settings.number("flops", 1, 1, 1e20);
  o.published.alpha = settings.number("alpha", 1, 0, 1e6);
  settings.needs("n-param", {"n-hidden", "flops"});
  for (const char* key : {"n-hidden", "flops", "alpha"}) settings.needs(key, {"n-param"});
  return std::make_unique<LayerKvPolicy>(o);
}

}  // namespace kvasir
