#include "sched/policies/apt_serve.h"

#include <algorithm>
#include <limits>
#include <set>
#include <vector>

#include "contract/plan_builder.h"
#include "sched/mechanisms/admit_prompts.h"
#include "sched/mechanisms/break_standstill.h"
#include "sched/mechanisms/chunk_prefills.h"
#include "sched/mechanisms/continue_running.h"
#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/mechanisms/hidden_cache.h"
#include "sched/mechanisms/hybrid_knapsack.h"
#include "sched/mechanisms/pending_time.h"
#include "sched/mechanisms/turn_alone.h"

namespace kvasir {
namespace {

// Of the least value by the byte that anyone else could have: what one beyond its bound has.
constexpr double kNextToNothing = 1e-4;
// Of who has arrived this very moment.
constexpr double kLeastPending = 1e-6;
// Of a bound on the gap between two tokens: when a token is due, and what projections may take of a step.
constexpr double kShareOfGap = 0.5;

// One step's plan.
class AptServeStep {
 public:
  AptServeStep(const View& view, const AptServeOptions& options, PlanBuilder& builder)
      : view_(view),
        options_(options),
        builder_(builder),
        block_bytes_(view.geometry.kv_block_bytes()),
        requests_(static_cast<double>(view.waiting.size() + view.running.size())),
        floor_(lowest_value_by_the_byte()) {
    for (const SeqView& seq : view.running) {
      if (held_as_x(seq)) count_hidden(seq);
    }
    for (const auto* all : {&view.waiting, &view.running}) {
      for (const SeqView& seq : *all) {
        if (seq.slo.tbt_ms > 0) least_gap_s_ = std::min(least_gap_s_, seq.slo.tbt_ms / 1e3);
      }
    }
  }

  void plan() {
    if (options_.coalesce) {
      const uint32_t preempted = decode();
      prefill_on();
      if (preempted == 0) admit();
    } else if (anyone_prefilling(view_) || !prefills_first() || !admit()) {
      decode();
      prefill_on();
    }
    break_standstill(view_, builder_);
  }

 private:
  bool prefills_first() const { return !options_.adaptive || waiting_is_more_urgent(view_); }

  // ---------------------------------------------------------------- values

  double lowest_value_by_the_byte() const {
    double least = 1;
    for (const auto* all : {&view_.waiting, &view_.running}) {
      for (const SeqView& seq : *all) {
        if (!pends_too_long(seq, view_.now)) least = std::min(least, pending(seq));
      }
    }
    return kNextToNothing * least / static_cast<double>(std::max<uint64_t>(device_bytes(), 1));
  }
  uint64_t device_bytes() const {
    return uint64_t{view_.total_cells(Tier::kDevice)} * view_.geometry.kv_cell_bytes();
  }
  double pending(const SeqView& seq) const {
    return std::max(kLeastPending, pending_seconds(seq, view_.now));
  }

  void count_hidden(const SeqView& seq) {
    hidden_claims_ += bytes_as_kv(view_.geometry, seq);
    hidden_s_ += projection_seconds(view_, seq);
  }

  // Equation 8. x_bytes: 0 if it cannot be kept as X.
  HybridCandidate candidate(const SeqView& seq, uint64_t kv_bytes, uint64_t x_bytes) const {
    HybridCandidate c{pending(seq), requests_ * projection_seconds(view_, seq), kv_bytes, x_bytes};
    if (!pends_too_long(seq, view_.now)) return c;
    if (options_.decay > 0) {
      c.value *= options_.decay;
      c.penalty *= options_.decay;
    } else {
      c.value = floor_ * static_cast<double>(kv_bytes);
      c.penalty = c.value;  // so that X is not for it, unless it has it
    }
    return c;
  }

  // It has no token yet, a step can project it, all that are kept as X can be projected often enough for
  // their bounds, and there will be room for their K and V before long.
  bool may_be_hidden(const SeqView& seq) const {
    if (!options_.hidden || !view_.geometry.has(Form::kX) || builder_.residence(seq).streams) return false;
    if (seq.first_token_time > 0) return false;
    const auto claims = static_cast<double>(hidden_claims_ + bytes_as_kv(view_.geometry, seq));
    return claims <= options_.hidden_share * static_cast<double>(device_bytes()) &&
           view_.geometry.blocks_for(seq.known_tokens) < view_.stage_blocks &&
           hidden_s_ + projection_seconds(view_, seq) <= kShareOfGap * kShareOfGap * least_gap_s_;
  }

  // ---------------------------------------------------------------- prefills

  // Who waits, and the order and the forms in which they are to come.
  HybridChoice choose_waiting() const {
    std::vector<HybridCandidate> candidates;
    candidates.reserve(view_.waiting.size());
    for (const SeqView& seq : view_.waiting) {
      const uint64_t kv = bytes_as_kv(view_.geometry, seq) - shared_bytes(seq);
      // One that streams needs next to nothing at a time.
      const uint64_t needs = builder_.residence(seq).streams ? std::min(kv, 2 * block_bytes_) : kv;
      const uint64_t x = may_be_hidden(seq) ? bytes_as_x(view_.geometry, seq) : 0;
      candidates.push_back(candidate(seq, needs, x));
    }
    // Whoever is kept as X is to have its K and V before those that are worth less.
    for (const SeqView& seq : view_.running) {
      if (!held_as_x(seq) || !seq.decoding()) continue;
      HybridCandidate c = candidate(seq, bytes_as_kv(view_.geometry, seq), 0);
      c.value = c.penalty;
      candidates.push_back(c);
    }
    const uint64_t free = free_bytes(view_), kept = spare_blocks() * block_bytes_;
    return choose_batch(candidates, free - std::min(free, kept));
  }
  // Of what is cached, that which others use: adopting it takes no room.
  uint64_t shared_bytes(const SeqView& seq) const {
    const uint32_t idle = seq.cached_idle[index_of(Form::kKv)][index_of(Tier::kDevice)];
    const uint32_t shared = seq.cached_resident_cells - std::min(seq.cached_resident_cells, idle);
    return shared * view_.geometry.kv_cell_bytes();
  }
  uint32_t spare_blocks() const {
    return builder_.running_seqs() == 0 ? 0 : admission_watermark(view_) + blocks_wanted(view_, builder_);
  }

  // True if anyone is prefilled.
  bool admit() {
    const uint32_t before = builder_.planned_tokens();
    if (options_.adaptive) {
      const HybridChoice choice = choose_waiting();
      for (uint32_t i : choice.order) {
        if (i < view_.waiting.size()) admit_one(view_.waiting[i], choice.forms[i] == HybridForm::kX);
      }
    } else {
      for (const SeqView& seq : view_.waiting) {
        if (!admit_one(seq, /*as_x=*/false) && !admit_one(seq, /*as_x=*/true)) break;
      }
    }
    return builder_.planned_tokens() > before;
  }

  bool admit_one(const SeqView& seq, bool as_x) {
    as_x = as_x && may_be_hidden(seq);
    uint32_t rows = seq.known_tokens - seq.cached_tokens;
    if (options_.coalesce) {
      rows = std::min(rows, chunk_room(view_, builder_, view_.limits.long_prefill_token_threshold));
    } else if (builder_.planned_tokens() > 0 &&
               builder_.planned_tokens() + rows > view_.limits.max_num_batched_tokens) {
      return false;
    }
    if (rows == 0) return false;
    const uint32_t spare = spare_blocks();
    if (!builder_.admit(seq, as_x ? admission_as_x(view_, spare) : AdmitOptions{.spare_blocks = spare})) {
      return false;
    }
    if (as_x) count_hidden(seq);
    return builder_.prefill(seq, rows, as_x ? rows_as_x(view_) : RowOptions{}) > 0;
  }

  // Goes on with prompts that were cut short.
  void prefill_on() {
    for (const SeqView& seq : view_.running) {
      if (seq.decoding() || builder_.has_rows(seq.id) || builder_.preempted(seq.id)) continue;
      const uint32_t room = options_.coalesce
                                ? chunk_room(view_, builder_, view_.limits.long_prefill_token_threshold)
                                : seq.tokens_to_compute();
      if (room == 0) break;
      builder_.prefill(seq, room, held_as_x(seq) ? rows_as_x(view_) : RowOptions{});
    }
  }

  // ---------------------------------------------------------------- decodes

  // Returns how many were preempted.
  uint32_t decode() {
    const std::vector<const SeqView*> running = by_arrival(view_.running);
    std::vector<const SeqView*> decoding, order;
    for (const SeqView* seq : running) {
      if (seq->decoding()) decoding.push_back(seq);
    }
    const HybridChoice choice = choose_running(decoding);
    order.reserve(running.size());
    if (options_.adaptive) {
      for (uint32_t i : choice.order) order.push_back(decoding[i]);
    }
    for (uint32_t i = 0; i < decoding.size(); ++i) {
      if (!options_.adaptive || choice.forms[i] == HybridForm::kNone) order.push_back(decoding[i]);
      if (choice.forms[i] == HybridForm::kKv && held_as_x(*decoding[i])) upgrades_.insert(decoding[i]->id);
    }
    for (const SeqView* seq : running) {
      if (!seq->decoding()) order.push_back(seq);
    }
    const uint32_t preempted = decode_or_preempt(order, builder_, PreemptBy::kRecompute,
                                                 [&](const SeqView& seq) { return decode_one(seq); });
    if (builder_.idle()) {
      // Better at its price than nobody.
      for (const SeqView* seq : order) {
        if (seq->decoding() && held_as_x(*seq) && builder_.can_run(*seq) && decode_as_x(*seq)) break;
      }
    }
    return preempted;
  }

  HybridChoice choose_running(const std::vector<const SeqView*>& decoding) const {
    std::vector<HybridCandidate> candidates;
    candidates.reserve(decoding.size());
    uint64_t room = free_bytes(view_);
    for (const SeqView* seq : decoding) {
      room += held_bytes(*seq);
      const uint64_t x = held_as_x(*seq) ? bytes_as_x(view_.geometry, *seq) : 0;
      candidates.push_back(candidate(*seq, bytes_as_kv(view_.geometry, *seq), x));
    }
    return choose_batch(candidates, room);
  }
  uint64_t held_bytes(const SeqView& seq) const {
    return uint64_t{seq.own_kv_cells(Tier::kDevice)} * view_.geometry.kv_cell_bytes() +
           uint64_t{seq.own(Form::kX, Tier::kDevice)} * view_.geometry.cell_bytes(Form::kX);
  }

  bool decode_one(const SeqView& seq) {
    if (!held_as_x(seq)) return builder_.decode(seq);
    const double projection_s = projection_seconds(view_, seq);
    if (projected_s_ > 0 && projected_s_ + projection_s > kShareOfGap * least_gap_s_) return true;
    if (upgrades_.contains(seq.id) && upgrade_to_kv(view_, seq, spare_blocks(), builder_)) {
      projected_s_ += projection_s;
      return builder_.decode(seq);
    }
    // It sits out while its token would cost the others more than it has waited.
    const double waited = pending(seq);
    const bool due = seq.slo.tbt_ms > 0 && waited > kShareOfGap * seq.slo.tbt_ms / 1e3;
    if (!due && waited < requests_ * projection_s) return true;
    return decode_as_x(seq);
  }

  bool decode_as_x(const SeqView& seq) {
    if (!builder_.decode(seq, rows_as_x(view_))) return false;
    projected_s_ += projection_seconds(view_, seq);
    give_up_kv_beside_x(view_, seq, builder_);
    return true;
  }

  const View& view_;
  const AptServeOptions& options_;
  PlanBuilder& builder_;
  const uint64_t block_bytes_;
  const double requests_;       // |W| + |R|
  const double floor_;          // s a byte: of one beyond its bound
  uint64_t hidden_claims_ = 0;  // of all that are kept as X: bytes of their K and V,
  double hidden_s_ = 0;         // and what projecting them takes
  double projected_s_ = 0;      // and those of this step
  double least_gap_s_ = std::numeric_limits<double>::infinity();  // between two tokens, that anyone allows
  std::set<SeqId> upgrades_;
};

class AptServePolicy final : public Policy {
 public:
  explicit AptServePolicy(const AptServeOptions& options) : options_(options) {}

  StepPlan plan(const View& view) override {
    PlanBuilder builder(view);
    if (take_turn_alone(view, builder)) return builder.take();
    AptServeStep(view, options_, builder).plan();
    return builder.take();
  }

  bool keeps(Form form) const override { return form == Form::kKv || (form == Form::kX && options_.hidden); }

 private:
  const AptServeOptions options_;
};

std::unique_ptr<Policy> make(PolicySettings& settings, bool coalesce) {
  AptServeOptions o;
  o.coalesce = coalesce;
  o.hidden = settings.flag("hidden", o.hidden);
  o.adaptive = settings.word("order", "adaptive", {"adaptive", "fcfs"}) == "adaptive";
  o.hidden_share = settings.number("hidden-share", o.hidden_share, 0, 1);
  o.decay = settings.number("decay", o.decay, 0, 1);
  return make_apt_serve_policy(o);
}

}  // namespace

std::unique_ptr<Policy> make_apt_serve_policy(const AptServeOptions& options) {
  return std::make_unique<AptServePolicy>(options);
}

std::unique_ptr<Policy> make_apt_serve_policy(PolicySettings& settings) {
  return make(settings, /*coalesce=*/false);
}

std::unique_ptr<Policy> make_apt_serve_s_policy(PolicySettings& settings) {
  return make(settings, /*coalesce=*/true);
}

}  // namespace kvasir
