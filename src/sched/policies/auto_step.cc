#include "sched/policies/auto_step.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "sched/mechanisms/batch_gap.h"
#include "sched/mechanisms/chunk_prefills.h"
#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/mechanisms/swap_or_recompute.h"
#include "sched/policies/auto_growth.h"
#include "sched/policies/auto_late.h"
#include "sched/policies/auto_reasons.h"
#include "sched/policies/auto_requests.h"
#include "sched/policies/auto_residency.h"
#include "sched/policies/auto_time.h"

namespace kvasir {
namespace {

// Requests that were refused, until no more are tried.
constexpr uint32_t kMostRefusals = 8;

class AutoStep {
 public:
  AutoStep(const View& view, const AutoOptions& options, AutoState& state, PlanBuilder& builder)
      : view_(view),
        options_(options),
        state_(state),
        builder_(builder),
        requests_(view, options, state),
        late_(view, state, requests_, builder),
        time_(view, options, state, requests_, builder) {
    if (options.away && view.total_cells(view.slower_tier()) > 0) {
      away_.emplace(view, requests_, state.rest, builder);
    }
  }

  // False: rows of the step wait for the link, so its time says nothing of the device.
  bool plan() {
    for (const Reason& why : state_.news.take()) builder_.because(why);
    const double stretch = state_.stretch.factor();
    queue_ = requests_.queue(state_);
    if (state_.stretch.factor() != stretch) {
      builder_.because({.cause = Cause::kStretch, .a = state_.stretch.factor()});
    }
    if (options_.sit_out && view_.costs.known()) late_.sit_out(queue_);
    late_.earn_credit();
    late_.put_credited_first(queue_);
    if (options_.make_way) late_.make_way(queue_);
    const uint32_t preempted = decode();
    prefill_on();
    if (preempted == 0) admit();
    if (away_) {
      const double most_s = time_.allowed_s(builder_.work().prefill_rows);
      waits_for_link_ |= away_->serve(/*may_take=*/preempted == 0, most_s);
    }
    state_.shortages.observe(preempted > 0 ? Refusal::kMemory : refusal_);
    return !waits_for_link_;
  }

 private:
  // ---------------------------------------------------------------- decodes

  // Those that keep their places first, evicting from the back. Returns how many were preempted.
  uint32_t decode() {
    std::vector<const AutoRequest*> order;
    order.reserve(requests_.running.size());
    for (const AutoRequest& r : requests_.running) {
      if (builder_.preempted(r.seq->id) || is_away(*r.seq)) continue;
      order.push_back(&r);
    }
    // Where there is room for all their order does not matter.
    const bool room = builder_.available_blocks() >= blocks_wanted(view_, builder_);
    if (!room) sort_by_place(order);
    std::vector<const SeqView*> seqs;
    seqs.reserve(order.size());
    for (const AutoRequest* r : order) {
      if (!r->sits_out || !room) seqs.push_back(r->seq);
      if (r->sits_out && r->seq->decoding()) builder_.because({Cause::kSitsOut, r->seq->id});
    }
    uint32_t preempted = 0;
    if (!room) {
      preempted = decode_or_preempt(
          seqs, builder_,
          [&](const SeqView& victim, const SeqView& other) {
            builder_.because(why_preempted(victim, other));
            preempt_by(PreemptionStrategy::kCheaper, view_, victim, builder_);
          },
          [&](const SeqView& s) { return requests_.sits_out(s) || builder_.decode(s); });
    } else {
      for (const SeqView* s : seqs) {
        if (s->decoding() && builder_.can_run(*s)) builder_.decode(*s);
      }
    }
    for (const AutoRequest* r : order) {
      if (r->seq->decoding() && builder_.has_rows(r->seq->id)) time_.count_decode(*r);
    }
    time_.end_decodes();
    return preempted;
  }

  Reason why_preempted(const SeqView& victim, const SeqView& other) const {
    if (!options_.victims) return preempted_for_token(Cause::kArrivedLast, victim, other);
    return kvasir::why_preempted(requests_.running[&victim - view_.running.data()], other.id);
  }

  bool is_away(const SeqView& seq) const { return away_ && kvasir::is_away(seq, builder_); }

  void sort_by_place(std::vector<const AutoRequest*>& order) const {
    std::sort(order.begin(), order.end(), [&](const AutoRequest* a, const AutoRequest* b) {
      if (options_.victims) return keeps_its_place(*a, *b);
      return std::pair(a->seq->arrival, raw(a->seq->id)) < std::pair(b->seq->arrival, raw(b->seq->id));
    });
  }

  // ---------------------------------------------------------------- prompts

  // rows: of `wanted`, those for which there is time. False: the builder has no room for any of them.
  bool prefill(const SeqView& seq, uint32_t rows, uint32_t wanted) {
    const bool by_time =
        rows < std::min(wanted, chunk_room(view_, builder_, view_.limits.long_prefill_token_threshold));
    RowOptions write;
    if (is_away(seq)) write.kv = LayerSet{};
    if (builder_.prefill(seq, rows, write) == 0) return false;
    if (by_time && view_.costs.known()) builder_.because(time_.why_short(seq.id, rows));
    return true;
  }

  // Prompts that have begun: on time before late, the first that is due first.
  void prefill_on() {
    std::vector<const AutoRequest*> begun;
    for (const AutoRequest& r : requests_.running) {
      const SeqView& s = *r.seq;
      if (!s.decoding() && !builder_.preempted(s.id) && !builder_.has_rows(s.id)) begun.push_back(&r);
    }
    std::sort(begun.begin(), begun.end(), [](const AutoRequest* a, const AutoRequest* b) {
      return std::tuple(a->late, a->slack_s(), a->seq->arrival, raw(a->seq->id)) <
             std::tuple(b->late, b->slack_s(), b->seq->arrival, raw(b->seq->id));
    });
    for (const AutoRequest* r : begun) {
      const uint32_t rows = time_.chunk(r->seq->ready_tokens, r->seq->tokens_to_compute());
      if (rows > 0) prefill(*r->seq, rows, r->seq->tokens_to_compute());
    }
  }

  // ---------------------------------------------------------------- admission

  // The gaps of all that run, against which those that join are judged.
  BatchGap gaps() const {
    BatchGap out = requests_.empty_batch(state_.margins);
    for (const AutoRequest& r : requests_.running) {
      if (builder_.preempted(r.seq->id) || r.sits_out) continue;
      out.add(r.seq->id, r.seq->known_tokens, r.late ? nullptr : &r.seq->slo);
    }
    return out;
  }

  void admit() {
    BatchGap batch = gaps();
    const uint32_t spare = spare_blocks(view_, builder_);
    std::optional<AutoGrowth> growth;
    const auto counts = [](const AutoRequest* r) { return AutoGrowth::counts(*r); };
    if (options_.growth && view_.costs.known() && std::any_of(queue_.begin(), queue_.end(), counts)) {
      growth.emplace(view_, requests_, builder_, spare);
    }
    uint32_t refused = 0;
    for (AutoRequest* r : queue_) {
      const SeqView& seq = *r->seq;
      const bool paid = r == late_.credited();
      if (r->late && !paid && refusal_ != Refusal::kNone) break;
      if (refused >= kMostRefusals || chunk_room(view_, builder_, 0) == 0) break;
      if (builder_.preempted(seq.id) || seq.stalled || seq.tail_busy) continue;
      const bool alone = builder_.running_seqs() == 0;
      const Slo* slo = r->late ? nullptr : &seq.slo;
      Refusal why = Refusal::kNone;
      std::optional<GapBound> exceeded;
      if (!alone && options_.batch && view_.costs.known()) {
        exceeded = batch.exceeded_with(seq.id, seq.known_tokens, slo);
      }
      if (exceeded) {
        why = Refusal::kTime;
        builder_.because(why_no_time(seq.id, *exceeded));
      } else if (!alone && growth && growth->outgrown_by(*r)) {
        why = Refusal::kMemory;
        builder_.because({Cause::kOutgrows, seq.id, {}, growth->peak_with(*r), growth->room()});
      } else {
        why = admit_one(*r, alone ? 0 : spare);
      }
      if (why == Refusal::kNone) {
        batch.add(seq.id, seq.known_tokens, slo);
        if (seq.preemptions > 0) state_.returns.note(seq.id);
        if (growth) growth->add(*r);
        if (!away_admitted_) builder_.because(why_admitted(*r, paid));
        if (paid) late_.spend(*r);
        continue;
      }
      ++refused;
      if (refusal_ == Refusal::kNone && (!r->late || paid)) refusal_ = why;
      // What becomes free is for the one that the credit pays for.
      if (!options_.order || r->late || why == Refusal::kSlots) break;
    }
  }

  // kNone: it has rows in this step. Says why.
  Refusal admit_one(const AutoRequest& r, uint32_t spare) {
    const Refusal refusal = try_to_admit(r, spare);
    if (refusal == Refusal::kTime) {
      builder_.because({Cause::kStepIsFull, r.seq->id});
    } else if (refusal != Refusal::kNone) {
      builder_.because(why_refused(refusal, r, spare, view_, builder_));
    }
    return refusal;
  }

  Refusal try_to_admit(const AutoRequest& r, uint32_t spare) {
    away_admitted_ = false;
    const SeqView& seq = *r.seq;
    if (builder_.running_seqs() >= view_.limits.max_num_seqs) return Refusal::kSlots;
    const uint32_t held =
        std::min(seq.blocks > 0 ? seq.ready_tokens : seq.cached_tokens, seq.known_tokens - 1);
    const uint32_t rows = seq.decoding() ? 1 : time_.chunk(held, seq.known_tokens - held);
    if (rows == 0) return Refusal::kTime;
    if (!builder_.admit(seq, {.spare_blocks = spare})) {
      away_admitted_ = away_ && away_->admit(r, rows);
      return away_admitted_ ? Refusal::kNone : Refusal::kMemory;
    }
    // An admission without rows is void, and so is its promise.
    const bool has_rows = seq.decoding() ? builder_.decode(seq) : prefill(seq, rows, seq.known_tokens - held);
    if (!has_rows) return Refusal::kMemory;
    waits_for_link_ |= seq.blocks > 0 && !seq.resident();
    return Refusal::kNone;
  }

  const View& view_;
  const AutoOptions& options_;
  AutoState& state_;
  PlanBuilder& builder_;
  AutoRequests requests_;
  AutoLate late_;
  AutoTime time_;
  std::optional<AutoAway> away_;  // where histories may be kept away from the device
  std::vector<AutoRequest*> queue_;
  Refusal refusal_ = Refusal::kNone;  // of the first that is on time
  bool waits_for_link_ = false;
  bool away_admitted_ = false;  // the last one that was admitted
};

}  // namespace

bool plan_auto_step(const View& view, const AutoOptions& options, AutoState& state, PlanBuilder& builder) {
  return AutoStep(view, options, state, builder).plan();
}

}  // namespace kvasir
