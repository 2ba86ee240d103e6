// eLLM: Chen, Lu, Xu, Ye, Xu, "High Throughput and Low Latency LLM Serving via Adaptive KV Caching", EuroSys
// 2026. Where the rules differ and why: docs/policies/ellm.md.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "sched/batch_policy.h"
#include "sched/mechanisms/admit_prompts.h"
#include "sched/mechanisms/batch_cost.h"
#include "sched/mechanisms/cache_ratio.h"
#include "sched/mechanisms/continue_running.h"
#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/mechanisms/overlap_search.h"
#include "sched/mechanisms/partial_history.h"
#include "sched/mechanisms/prompt_share.h"
#include "sched/mechanisms/refused.h"
#include "sched/mechanisms/step_correction.h"
#include "sched/mechanisms/swap_in.h"
#include "sched/mechanisms/swap_or_recompute.h"
#include "sched/policy_settings.h"

namespace kvasir {
namespace {

struct EllmOptions {
  // What a step is believed to take: by the fitted belief, by the paper's volumes as corrected, or to the
  // letter.
  enum class Cost : uint8_t { kBelief, kCorrected, kLetter };
  Cost cost = Cost::kBelief;
  PublishedShape shape;  // for the latter two
  // What divides the rest between recomputing and the link: the least time of eight ways, or the least
  // bubble of the published six.
  bool least_bubble = false;
  bool slsqp = false;  // the paper's solver in place of the closed form
  // Of what is not kept the first layers are recomputed, in place of the oldest tokens.
  bool by_layers = false;
  bool measured = true;  // times are corrected by measured steps
  PromptTime prompts = PromptTime::kAmortised;
  // The paper's ablations: what is staged comes in its own layer only; rows that recompute pass the
  // weights on their own (hints: executors that know no better ignore them).
  bool overlap = true;
  bool fuse = true;
  // Fused kernels are believed to be as good as can be: BatchCost::fused.
  bool fused_cost = false;
  // For experiments: r, and the share of it that is recomputed, whatever memory has room for. Negative:
  // chosen.
  double ratio = -1;
  double again = -1;
  // By how much a batch with r > 0 must be better than the best one with r = 0: beliefs err, and the change
  // costs. Half of that where something is not kept already, since changing to and fro costs, too.
  double gain = 1.10;
};

// Waiting requests that are looked at beyond those that run.
constexpr size_t kLookAhead = 64;
// Tokens ahead of what is known for which a request is to find room: what is given up comes free steps later.
constexpr uint32_t kAhead = 4;
// The share of the device's blocks that stays free when histories come back to it.
constexpr double kSlack = 0.05;

// What is decided for a step: Equation 1's b and r, and Section 4.3.1's division.
struct Decision {
  RatioChoice batch;
  OverlapConfig overlap;
  // How many may run. With r = 0 as many as the bound on time allows: memory is asked when they come.
  uint32_t most_requests = 0;
};

BatchCost one_pass_cost(const EllmOptions& o, const View& view) {
  switch (o.cost) {
    case EllmOptions::Cost::kCorrected:
      return BatchCost::corrected(o.shape);
    case EllmOptions::Cost::kLetter:
      return BatchCost::letter(o.shape);
    case EllmOptions::Cost::kBelief:
      break;
  }
  return BatchCost::believed(view.costs);
}

BatchCost cost_of(const EllmOptions& o, const View& view) {
  BatchCost cost = one_pass_cost(o, view);
  cost.fused = o.fused_cost;
  return cost;
}

// One step's plan.
class EllmStep {
 public:
  EllmStep(const View& view, const EllmOptions& options, const StepCorrection& correction,
           PlanBuilder& builder)
      : view_(view),
        options_(options),
        builder_(builder),
        block_(view.geometry.block_tokens),
        groups_(view.geometry.groups()),
        watermark_(admission_watermark(view)),
        cost_(cost_of(options, view)),
        running_(by_arrival(view.running)),
        whole_factor_(options.measured ? correction.factor(StepKind::kWhole) : 1),
        partial_factor_(options.measured ? correction.factor(StepKind::kPartial) : 1),
        link_(view.costs.links[index_of(view.slower_tier())][index_of(Tier::kDevice)]),
        any_partial_(std::any_of(running_.begin(), running_.end(),
                                 [](const SeqView* s) { return s->resident_blocks < s->blocks; })),
        decision_(decide()) {}

  void plan() {
    keep_less_of_all();
    const bool swapped = any_swapped_out(view_);
    if (swapped || any_prefilling(view_) || !admit()) {
      const uint32_t preempted = decode();
      prefill_on();
      if (swapped && preempted == 0) come_back();
    }
    builder_.set_hints({.overlap = options_.overlap, .fuse = options_.fuse});
  }

  // The step's predicted time; 0 if it is not one of decodes alone.
  double predicted_s() const {
    if (!decodes_alone_ || load_.requests <= 0) return 0;
    const double link_s =
        staged_tokens_ > 0 ? groups_ * link_.latency_s + staged_tokens_ * staged_token_s() : 0;
    return std::max(cost_.seconds(load_), link_s);
  }
  StepKind kind() const {
    return load_.again_tokens + staged_tokens_ > 0 ? StepKind::kPartial : StepKind::kWhole;
  }

 private:
  // ---------------------------------------------------------------- b and r

  Decision decide() const {
    if (options_.ratio >= 0) {
      Decision forced;
      forced.batch.requests = forced.most_requests = view_.limits.max_num_seqs;
      forced.batch.ratio = options_.ratio;
      return forced;
    }
    RatioProblem problem = all_requests();
    problem.most_seconds = seconds_left();
    problem.greatest_ratio = view_.stage_blocks > 0 ? 1 : 0;
    Decision best = options_.least_bubble ? by_least_bubble(problem) : by_least_time(problem);
    if (best.batch.requests > 0) return best;
    // A bound cannot be met: what runs goes on, within its memory, and none joins, unless memory was the
    // bound.
    const uint32_t in_time = all_kept(problem).most_requests;
    problem.most_seconds = kUnbounded;
    problem.lengths.resize(running_.size());
    problem.held_back.resize(running_.size());
    problem.prompts_s.resize(running_.size());
    best = options_.least_bubble ? by_least_bubble(problem) : by_least_time(problem);
    best.batch.requests = std::max<uint32_t>(1, std::min<uint32_t>(best.batch.requests, running()));
    best.most_requests = std::max(in_time, running());
    return best;
  }

  // Those that run, and then those that wait, with the room that each needs: its blocks with the one that its
  // next tokens may begin. A request that decodes may give up full blocks, if no other shares them; one that
  // joins is prefilled on the device, whole. Blocks that several hold are counted for each of them, in what
  // they need and in what there is, and so are the blocks of one that streams.
  RatioProblem all_requests() const {
    RatioProblem p;
    p.cost = cost_;
    const size_t most = std::min<size_t>(view_.limits.max_num_seqs, running_.size() + kLookAhead);
    double cells = static_cast<double>(builder_.available_cells() + builder_.coming_cells());
    uint32_t on_slower = 0;
    for (const SeqView* seq : running_) {
      const uint32_t held = seq->kv_cells(Tier::kDevice);
      const bool gives = seq->decoding() && owns_all(*seq) && !builder_.kv_placement(*seq).streams;
      add(*seq, gives ? seq->ready_tokens / block_ : 0, p);
      cells += builder_.kv_placement(*seq).streams ? p.lengths.back() / block_ * groups_
                                                   : held + seq->promised(Tier::kDevice);
      on_slower += seq->own_kv_cells(view_.slower_tier());
    }
    for (const SeqView& seq : view_.waiting) {
      if (p.lengths.size() >= most) break;
      add(seq, 0, p);
    }
    p.device_tokens = tokens_of(cells) - watermark_ * block_;
    const int64_t slower = builder_.available_cells(view_.slower_tier()) + on_slower;
    p.slower_tokens = tokens_of(static_cast<double>(std::max<int64_t>(slower, 0)));
    p.staged_token_s = staged_token_s();
    p.staging_s = groups_ * link_.latency_s;  // a transfer for each layer group waits for its beginning
    if (view_.scratch_tokens > 0) {
      p.again_tokens = view_.scratch_tokens - std::min(view_.scratch_tokens, running());
    }
    if (const uint32_t beside = view_.limits.max_prefill_beside_decodes; beside > 0) {
      p.again_tokens = std::min<double>(p.again_tokens, beside);
    }
    return p;
  }
  void add(const SeqView& seq, uint32_t free_blocks, RatioProblem& p) const {
    const uint32_t blocks = view_.geometry.blocks_for(seq.known_tokens + kAhead);
    p.lengths.push_back(blocks * block_);
    p.held_back.push_back((blocks - free_blocks) * block_);
    p.prompts_s.push_back(prompt_share_s(options_.prompts, view_.costs, seq));
  }
  static bool owns_all(const SeqView& seq) {
    return seq.own_kv_cells(Tier::kDevice) == seq.kv_cells(Tier::kDevice);
  }
  double staged_token_s() const {
    return static_cast<double>(view_.geometry.kv_block_bytes()) / block_ * link_.seconds_per_byte;
  }
  double tokens_of(double cells) const { return cells / groups_ * block_; }
  uint32_t running() const { return static_cast<uint32_t>(running_.size()); }

  // SLO - WT_max.
  double seconds_left() const {
    double left = kUnbounded;
    const auto bound = [&](const SeqView& seq) {
      if (seq.slo.tpot_ms > 0) left = std::min(left, seq.slo.tpot_ms / 1e3);
    };
    double waited = 0;
    for (const SeqView* seq : running_) {
      bound(*seq);
      if (seq->decoding() && seq->last_token_time > 0) {
        waited = std::max(waited, to_seconds(view_.now - seq->last_token_time));
      }
    }
    if (!view_.waiting.empty()) bound(view_.waiting.front());
    return left - waited;
  }

  // The factor is that of T(b, r): what prompts take is not corrected by steps of decodes.
  static void correct(RatioProblem& p, double factor) {
    p.most_seconds /= factor;
    for (double& s : p.prompts_s) s /= factor;
  }

  // Of batches of which something is not kept, with the times that such steps were measured to take.
  RatioChoice solve(RatioProblem p) const {
    correct(p, partial_factor_);
    RatioChoice choice = options_.slsqp ? choose_ratio_slsqp(p) : choose_ratio(p);
    choice.seconds *= partial_factor_;
    return choice;
  }

  // Of what is not kept the division into recomputed and staged, with what the ring then passes: two
  // layers at a time, so that one comes while the other is attended, or one where nothing comes. This is
  // M_o's feedback.
  bool set_overlap(OverlapConfig c, RatioProblem& p) const {
    if (c.swapped > 0 && (view_.total_cells(view_.slower_tier()) == 0 || link_.seconds_per_byte <= 0))
      return false;
    p.again_share = c.again_share();
    p.passing_tokens = static_cast<double>(view_.stage_blocks) * block_ / (c.swapped > 0 ? 2 : 1);
    return true;
  }

  static bool better(const RatioChoice& a, const RatioChoice& b, double by = 1) {
    return a.requests > 0 && (b.requests == 0 || a.requests * b.seconds > by * b.requests * a.seconds);
  }

  // Without anything that is not kept, and with each division: the best.
  Decision by_least_time(RatioProblem p) const {
    Decision whole = all_kept(p);
    Decision best;
    for (OverlapConfig c : kOverlaps) {
      if (!set_overlap(c, p)) continue;
      const RatioChoice choice = solve(p);
      if (choice.ratio > 0 && better(choice, best.batch)) best = {choice, c};
    }
    return the_better(best, whole);
  }

  // Section 4.3.1, the published way: M_o at its greatest, then what the best of six leaves of it.
  Decision by_least_bubble(RatioProblem p) const {
    Decision whole = all_kept(p);
    Decision best;
    if (!set_overlap(kPublishedOverlaps.back(), p)) {
      best.overlap = {0, 1};
      set_overlap(best.overlap, p);
      best.batch = solve(p);
    } else {
      best = {solve(p), kPublishedOverlaps.back()};
      if (best.batch.requests > 0) {
        best.overlap = least_bubble(overlap_times(p, best.batch));
        set_overlap(best.overlap, p);
        best.batch = solve(p);
      }
    }
    return the_better(best, whole);
  }

  Decision the_better(Decision partial, const Decision& whole) const {
    partial.most_requests = partial.batch.requests;
    const double gain = any_partial_ ? (1 + options_.gain) / 2 : options_.gain;
    return partial.batch.ratio > 0 && better(partial.batch, whole.batch, gain) ? partial : whole;
  }

  Decision all_kept(RatioProblem p) const {
    p.greatest_ratio = 0;
    correct(p, whole_factor_);
    RatioChoice choice = choose_ratio(p);
    choice.seconds *= whole_factor_;
    p.device_tokens = kUnbounded;
    return {choice, {}, choose_ratio(p).requests};
  }

  static OverlapTimes overlap_times(const RatioProblem& p, const RatioChoice& choice) {
    BatchLoad load;
    double tokens = 0;
    for (uint32_t i = 0; i < choice.requests; ++i) {
      const double away = choice.ratio * (p.lengths[i] - p.held_back[i]);
      tokens += away;
      load.again_squares += away * away;
    }
    load.again_tokens = tokens;
    return {/*layers=*/1, p.staging_s + tokens * p.staged_token_s, p.cost.compute.again(load)};
  }

  // ---------------------------------------------------------------- rows

  // Whole prompts, in order, while the batch has room. True if any was planned.
  bool admit() {
    // What is given up comes free a step later: those that wait for it have it before a newcomer does.
    const uint32_t awaited = any_partial_ ? blocks_wanted(view_) : awaited_blocks(view_);
    for (const SeqView& seq : view_.waiting) {
      const uint32_t tokens = seq.known_tokens - seq.cached_tokens;
      const bool alone = builder_.running_seqs() == 0;
      if (!alone && builder_.running_seqs() >= decision_.most_requests) break;
      if (builder_.planned_tokens() > 0 &&
          builder_.planned_tokens() + tokens > view_.limits.max_num_batched_tokens) {
        break;
      }
      const AdmitOptions into{.spare_blocks = (alone ? 0 : watermark_) + awaited};
      if (!builder_.admit(seq, into)) {
        refused(view_, seq, into, builder_);
        break;
      }
      builder_.prefill(seq, tokens);
    }
    decodes_alone_ = builder_.planned_tokens() == 0;
    return !decodes_alone_;
  }

  // Returns how many were preempted: the latest, where there is no block and none comes free.
  uint32_t decode() {
    uint32_t preempted = 0;
    int64_t awaited = 0;  // blocks, of those that come when this step and its transfers have ended
    size_t end = running_.size();
    for (size_t i = 0; i < end; ++i) {
      const SeqView& seq = *running_[i];
      if (!seq.decoding() || !builder_.can_run(seq)) continue;
      while (i < end && !decode_one(seq)) {
        if (builder_.coming_blocks() > awaited) {
          say_no_free_block(seq, builder_);
          ++awaited;
          break;
        }
        // Where the batch is to be as large as it is, r makes room in a step or two: the latest wait for it.
        if (!giving_up_.empty() && !builder_.work().empty() && decision_.batch.requests >= running()) break;
        if (end == 1 || !builder_.can_stop(*running_[end - 1]) || gives_up(*running_[end - 1])) break;
        const SeqView& last = *running_[--end];
        builder_.because(preempted_for_token(Cause::kArrivedLast, last, seq));
        preempt_by(PreemptionStrategy::kCheaper, view_, last, builder_);
        ++preempted;
      }
    }
    return preempted;
  }

  // This plan has copies of it.
  bool gives_up(const SeqView& seq) const {
    return std::find(giving_up_.begin(), giving_up_.end(), seq.id) != giving_up_.end();
  }

  bool decode_one(const SeqView& seq) {
    RowOptions rows;
    if (!gives_up(seq) && comes_back(seq)) {
      const int64_t room = std::min<int64_t>(excess_blocks_, spare_blocks_beside_slack());
      if (room > 0)
        excess_blocks_ -= keep_more(view_, seq, static_cast<uint32_t>(room), builder_, &rows.restore);
    }
    if (!builder_.decode(seq, rows) && !(rows.restore.kv.count() > 0 && builder_.decode(seq))) return false;
    load_.requests += 1;
    load_.context += seq.known_tokens;
    const auto again = static_cast<double>(seq.dropped.size()) * seq.dropped_end_group / groups_;
    load_.again_tokens += again;
    load_.again_squares += again * seq.dropped.size();
    const double away = static_cast<double>(seq.blocks - seq.resident_blocks) * block_;
    staged_tokens_ += std::max(0.0, away - again);
    return true;
  }

  // More is not kept than is to be, and some of it is this one's.
  bool comes_back(const SeqView& seq) const {
    return options_.ratio < 0 && excess_blocks_ > 0 && may_be_partial(seq, builder_) &&
           partial_history(seq, view_.geometry).blocks() > 0;
  }
  int64_t spare_blocks_beside_slack() const {
    const auto slack = static_cast<int64_t>(kSlack * view_.total_cells(Tier::kDevice) / groups_);
    return builder_.available_blocks() - std::max<int64_t>(slack, running());
  }

  void prefill_on() {
    for (const SeqView* seq : running_) {
      if (seq->decoding() || builder_.has_rows(seq->id) || builder_.preempted(seq->id)) continue;
      if (builder_.prefill(*seq, seq->tokens_to_compute()) > 0) decodes_alone_ = false;
    }
  }

  // Those that were preempted and kept their cells, before any new prompt.
  void come_back() {
    if (builder_.running_seqs() > 0 && builder_.running_seqs() >= decision_.most_requests) return;
    if (swap_in(view_, watermark_ + blocks_wanted(view_, builder_), builder_) > 0) decodes_alone_ = false;
  }

  // ---------------------------------------------------------------- histories

  // Of full blocks: the share that r is of them.
  uint32_t share_of(uint32_t full) const {
    return std::min(full, static_cast<uint32_t>(std::ceil(decision_.batch.ratio * full - 1e-9)));
  }

  // Oldest tokens first, of each request its share, until all together have given up r of what they have (a
  // block of each would be far more than that where histories are short), and as far as the ring passes them.
  // What they give up comes free when this step has ended: a request that needs a block may wait for that.
  void keep_less_of_all() {
    const bool forced = options_.ratio >= 0;
    const double again = options_.again >= 0 ? options_.again : decision_.overlap.again_share();
    const bool host = view_.total_cells(view_.slower_tier()) > 0;
    uint32_t full = 0, now = 0, passing = 0;
    for (const SeqView* seq : running_) {
      const uint32_t away = partial_history(*seq, view_.geometry).blocks();
      passing += away;
      if (!seq->decoding() || builder_.kv_placement(*seq).streams) continue;
      full += seq->ready_tokens / block_;
      now += away;
    }
    const uint32_t wanted = share_of(full);
    excess_blocks_ = forced ? 0 : now - std::min(now, wanted);
    if (decision_.batch.ratio <= 0 || (!forced && wanted <= now)) return;
    uint32_t left = view_.stage_blocks / (again < 1 && host && !forced ? 2 : 1);
    left -= std::min(left, passing);
    if (!forced) left = std::min(left, wanted - now);
    for (const SeqView* seq : running_) {
      if (left == 0) return;
      if (!seq->decoding() || !may_be_partial(*seq, builder_) || (!forced && !owns_all(*seq))) continue;
      const uint32_t before = partial_history(*seq, view_.geometry).blocks();
      const uint32_t away = std::min(share_of(seq->ready_tokens / block_), before + left);
      if (away <= before) continue;
      const auto dropped = static_cast<uint32_t>(std::lround((host ? again : 1) * away));
      const uint32_t more =
          keep_less(view_, *seq, {dropped, away - dropped}, dropped_groups(*seq, host ? again : 1), builder_);
      left -= more;
      if (more > 0) {
        builder_.because(
            {Cause::kGivesBegin, seq->id, {}, static_cast<double>(more), static_cast<double>(before + more)});
      }
      giving_up_.push_back(seq->id);
    }
  }

  // By layers: those in which what is not kept is dropped, as they were before for this request. 0: by
  // tokens.
  uint32_t dropped_groups(const SeqView& seq, double again) const {
    if (!options_.by_layers) return 0;
    if (!seq.dropped.empty()) return seq.dropped_end_group;
    return std::min(groups_, static_cast<uint32_t>(std::lround(again * groups_)));
  }

  const View& view_;
  const EllmOptions& options_;
  PlanBuilder& builder_;
  const uint32_t block_;
  const uint32_t groups_;
  const uint32_t watermark_;
  const BatchCost cost_;
  const std::vector<const SeqView*> running_;  // by arrival
  const double whole_factor_;                  // by which steps take longer than is believed
  const double partial_factor_;                // and those of which something is not kept
  const LinkCost link_;                        // to the device
  const bool any_partial_;                     // of those that run
  const Decision decision_;
  std::vector<SeqId> giving_up_;
  uint32_t excess_blocks_ = 0;  // that are not kept beyond what is to be
  bool decodes_alone_ = true;
  BatchLoad load_;  // of the decodes planned so far
  double staged_tokens_ = 0;
};

class EllmPolicy final : public BatchPolicy {
 public:
  explicit EllmPolicy(const EllmOptions& options) : options_(options) {}

  std::string save_state() const override { return correction_.save(); }
  Status restore_state(std::string_view state) override { return correction_.restore(state); }

 private:
  // Unless plan_batch() says more, the step has no predicted time.
  void begin_step(const View& view, PlanBuilder& /*builder*/) override {
    correction_.begin(view.now, !view.running.empty());
    correction_.end(view.now, StepKind::kWhole, 0);
  }

  void plan_batch(const View& view, PlanBuilder& builder) override {
    EllmStep step(view, options_, correction_, builder);
    step.plan();
    correction_.end(view.now, step.kind(), step.predicted_s());
  }

  const EllmOptions options_;
  StepCorrection correction_;
};

}  // namespace

std::unique_ptr<BatchPolicy> make_ellm(PolicySettings& settings) {
  EllmOptions o;
  const std::string cost = settings.word("cost", "belief", {"belief", "corrected", "letter"});
  o.cost = cost == "letter"
               ? EllmOptions::Cost::kLetter
               : (cost == "corrected" ? EllmOptions::Cost::kCorrected : EllmOptions::Cost::kBelief);
  PublishedShape& shape = o.shape;
  shape.hidden = settings.number("hidden", 1, 1, 1e6);
  shape.layers = settings.number("layers", 1, 1, 1e4);
  shape.vocabulary = settings.number("vocabulary", 1, 1, 1e7);
  shape.feed_forward = settings.number("feed-forward", 0, 0, 1e7);
  shape.kv_hidden = settings.number("kv-hidden", 0, 0, 1e6);
  shape.flops_per_s = settings.number("flops", 1, 1, 1e20);
  shape.bytes_per_s = settings.number("bandwidth", 0, 0, 1e16);
  shape.weight_bytes = settings.number("weight-bytes", 0, 0, 1e15);
  shape.kv_bytes_per_token = settings.number("kv-bytes", 0, 0, 1e12);
  for (const char* key : {"hidden", "layers", "vocabulary", "flops"}) {
    if (o.cost != EllmOptions::Cost::kBelief) settings.needs("cost", {key});
    settings.needs(key, {"cost"});
  }
  for (const char* key : {"feed-forward", "kv-hidden", "weight-bytes", "kv-bytes", "bandwidth"}) {
    settings.needs(key, {"cost"});
  }
  o.least_bubble = settings.word("divide", "time", {"time", "bubble"}) == "bubble";
  o.slsqp = settings.word("solver", "scan", {"scan", "slsqp"}) == "slsqp";
  o.by_layers = settings.word("mix", "tokens", {"tokens", "layers"}) == "layers";
  o.measured = settings.flag("measured", o.measured);
  o.prompts = prompt_time(settings);
  o.overlap = settings.flag("overlap", o.overlap);
  const std::string fusion = settings.word("fusion", "on", {"on", "off", "ideal"});
  o.fuse = fusion != "off";
  o.fused_cost = fusion == "ideal";
  o.ratio = settings.number("ratio", o.ratio, 0, 1);
  o.again = settings.number("again", o.again, 0, 1);
  settings.needs("again", {"ratio"});
  o.gain = settings.number("gain", o.gain, 1, 10);
  return std::make_unique<EllmPolicy>(o);
}

}  // namespace kvasir
