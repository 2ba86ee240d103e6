#include "sched/policies/auto_step.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "sched/mechanisms/admit_prompts.h"
#include "sched/mechanisms/batch_gap.h"
#include "sched/mechanisms/chunk_prefills.h"
#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/mechanisms/prefill_time.h"
#include "sched/mechanisms/swap_or_recompute.h"
#include "sched/policies/auto_reasons.h"
#include "sched/policies/auto_requests.h"
#include "sched/policies/auto_residency.h"

namespace kvasir {
namespace {

constexpr double kNoBound = std::numeric_limits<double>::infinity();
// The share of time that prompts need is this times what those that arrive take, so that queues become
// shorter.
constexpr double kAboveArrivals = 2;
constexpr double kLateStep = 0.01;  // the share of steps that exceed the gap of requests that state none
// Before a step has been measured, rows of a prompt that may delay a decode; after so many steps none will
// be.
constexpr uint32_t kCarefulRows = 64;
constexpr uint64_t kFirstSteps = 16;
// Of a prompt beside decodes that state no bound, however long they take.
constexpr uint32_t kFewestRows = 16;
// Requests that were refused, until no more are tried.
constexpr uint32_t kMostRefusals = 8;
// Requests at the head of the queue for which late ones make way in one step; and the share of the first
// one's cost that a late one must still need, or it is about to end.
constexpr uint32_t kMakeWayFor = 4;
constexpr double kWorthStopping = 0.5;

// The first token of those on time that is due.
struct FirstDue {
  double left_s = kNoBound;
  SeqId seq{};             // the request that it belongs to
  bool every_gap = false;  // each gap of that request counts; else the mean of them

  bool any() const { return left_s < kNoBound; }
  void count(const AutoRequest& r) {
    if (!r.on_time_bound() || r.left_s >= left_s) return;
    left_s = r.left_s;
    seq = r.seq->id;
    every_gap = r.seq->slo.tbt_ms > 0;
  }
};

class AutoStep {
 public:
  AutoStep(const View& view, const AutoOptions& options, AutoState& state, PlanBuilder& builder)
      : view_(view),
        options_(options),
        state_(state),
        builder_(builder),
        requests_(view, options, state),
        away_(view, requests_, builder),
        needed_for_prompts_(std::min(
            1.0, kAboveArrivals * view.costs.prefill_row_s * state.arriving.prompt_tokens_per_s())) {}

  // False: rows of the step wait for the link, so its time says nothing of the device.
  bool plan() {
    for (const Reason& why : state_.news.take()) builder_.because(why);
    const double stretch = state_.stretch.factor();
    queue_ = requests_.queue(state_);
    if (state_.stretch.factor() != stretch) {
      builder_.because({.cause = Cause::kStretch, .a = state_.stretch.factor()});
    }
    if (options_.sit_out && view_.costs.known()) sit_out();
    earn_credit();
    put_credited_first();
    if (options_.make_way) make_way();
    const uint32_t preempted = decode();
    prefill_on();
    if (preempted == 0) admit();
    if (keeps_away()) {
      waits_for_link_ |= away_.serve(/*may_take=*/preempted == 0, allowed_s(builder_.work().prefill_rows));
    }
    state_.shortages.observe(preempted > 0 ? Refusal::kMemory : refusal_);
    return !waits_for_link_;
  }

 private:
  // ---------------------------------------------------------------- late requests

  // Late ones that run have no row where it would make the gaps too long of those on time that run, or that
  // head the queue: these could never join a batch that late ones have filled.
  void sit_out() {
    BatchGap batch = no_gaps();
    bool any = false;
    const auto add = [&](const AutoRequest& r) {
      batch.add(r.seq->id, r.seq->known_tokens, r.late ? nullptr : &r.seq->slo);
      any |= r.on_time_bound();
    };
    std::vector<AutoRequest*> late;
    for (AutoRequest& r : requests_.running) {
      if (r.keeps == Keeps::kLate) {
        late.push_back(&r);
      } else {
        add(r);
      }
    }
    if (late.empty()) return;
    for (size_t i = 0; i < std::min<size_t>(queue_.size(), kMakeWayFor) && !queue_[i]->late; ++i) {
      add(*queue_[i]);
    }
    if (!any) return;
    std::sort(late.begin(), late.end(), [](const AutoRequest* a, const AutoRequest* b) {
      return std::pair(a->seq->arrival, raw(a->seq->id)) < std::pair(b->seq->arrival, raw(b->seq->id));
    });
    for (AutoRequest* r : late) {
      r->sits_out = batch.exceeded_with(r->seq->id, r->seq->known_tokens, nullptr).has_value();
      if (!r->sits_out) batch.add(r->seq->id, r->seq->known_tokens, nullptr);
    }
  }

  // Those of the late that wait, those that sit out, and those that run with layers away from the device,
  // which others may keep away for ever.
  bool waits_for_credit(const AutoRequest& r, bool runs) const {
    return r.late && r.turn == 0 && (!runs || r.sits_out || is_away(*r.seq, builder_));
  }

  void earn_credit() {
    double most_s = 0;
    std::vector<float> weights;
    const auto count = [&](const AutoRequest& r, bool runs) {
      if (r.turn > 0) state_.credit.note_cost(r.seq->id, r.busy_s);
      if (!waits_for_credit(r, runs)) return;
      most_s = std::max(most_s, r.busy_s);
      const float weight = r.seq->weight;
      if (std::find(weights.begin(), weights.end(), weight) == weights.end()) weights.push_back(weight);
    };
    for (const AutoRequest& r : requests_.running) count(r, true);
    for (const AutoRequest& r : requests_.waiting) count(r, false);
    state_.credit.earn(view_.now, most_s);
    state_.turns.observe(weights);
  }

  // The credit pays for the turn of a late one.
  void spend(const AutoRequest& r) {
    if (r.turn == 0) state_.turns.spend(r.seq->weight, r.busy_s);
    state_.credit.spend(r.seq->id, r.busy_s);
  }

  // The first late one, when the credit covers it: of each weight by arrival, and of the weights by their
  // turns. Before that those that were preempted on credit.
  void put_credited_first() {
    AutoRequest* first = nullptr;
    bool runs = false;
    const auto place = [&](const AutoRequest& r) {
      return std::tuple(r.turn == 0, r.turn, r.turn > 0 ? 0 : state_.turns.had_s(r.seq->weight),
                        r.seq->arrival, raw(r.seq->id));
    };
    for (AutoRequest& r : requests_.waiting) {
      if ((r.turn > 0 || waits_for_credit(r, false)) && (!first || place(r) < place(*first))) first = &r;
    }
    for (AutoRequest& r : requests_.running) {
      if (!waits_for_credit(r, true) || (first && place(r) > place(*first))) continue;
      first = &r;
      runs = true;
    }
    if (!first) return;
    if (first->turn == 0 && !state_.credit.has_turn(first->seq->id, first->busy_s)) {
      builder_.because({Cause::kWaitsOnCredit, first->seq->id, {}, state_.credit.balance_s(), first->busy_s});
      return;
    }
    if (runs) {
      // From the queue it comes back as a whole.
      const bool away = is_away(*first->seq, builder_);
      if (away && !builder_.can_stop(*first->seq)) return;
      if (away) preempt(*first->seq);
      first->sits_out = false;
      builder_.because(why_admitted(*first, /*paid=*/true));
      spend(*first);
      first->turn = state_.credit.turn_of(first->seq->id);
      first->keeps = Keeps::kOnCredit;
      return;
    }
    const auto at = std::find(queue_.begin(), queue_.end(), first);
    std::rotate(queue_.begin(), at, at + 1);
    credited_ = first;
  }

  // Late ones that run make way for those at the head of the queue, the most expensive first.
  void make_way() {
    if (queue_.empty() || (queue_.front()->late && queue_.front() != credited_)) return;
    int64_t need = 0, seqs = 0;
    for (const AutoRequest* r : queue_) {
      if ((r->late && r != credited_) || seqs == kMakeWayFor) break;
      ++seqs;
      need += view_.geometry.blocks_for(r->seq->known_tokens + 1);
    }
    int64_t room = builder_.available_blocks() + builder_.coming_blocks() - spare_blocks();
    int64_t slots = int64_t{view_.limits.max_num_seqs} - builder_.running_seqs();
    if (room >= need && slots >= seqs) return;
    std::vector<const AutoRequest*> late;
    for (const AutoRequest& r : requests_.running) {
      if (r.keeps == Keeps::kLate &&
          r.finish_for_worth() > kWorthStopping * queue_.front()->finish_for_worth())
        late.push_back(&r);
    }
    std::sort(late.begin(), late.end(),
              [](const AutoRequest* a, const AutoRequest* b) { return keeps_its_place(*b, *a); });
    for (const AutoRequest* r : late) {
      if (room >= need && slots >= seqs) break;
      if (!builder_.can_stop(*r->seq)) continue;
      builder_.because({Cause::kMakesWay, r->seq->id, queue_.front()->seq->id,
                        static_cast<double>(std::max<int64_t>(0, need - room)),
                        static_cast<double>(std::max<int64_t>(0, seqs - slots))});
      room += r->seq->own_kv_cells(Tier::kDevice) / view_.geometry.groups();
      ++slots;
      preempt(*r->seq);
    }
  }

  void preempt(const SeqView& seq) { preempt_by(PreemptionStrategy::kCheaper, view_, seq, builder_); }

  // ---------------------------------------------------------------- decodes

  // Those that keep their places first, evicting from the back. Returns how many were preempted.
  uint32_t decode() {
    std::vector<const AutoRequest*> order;
    order.reserve(requests_.running.size());
    for (const AutoRequest& r : requests_.running) {
      if (builder_.preempted(r.seq->id) || (keeps_away() && is_away(*r.seq, builder_))) continue;
      order.push_back(&r);
    }
    // Where there is room for all their order does not matter.
    const bool room = builder_.available_blocks() >= blocks_wanted(view_, builder_);
    if (!room) sort_by_place(order);
    std::vector<const SeqView*> seqs;
    seqs.reserve(order.size());
    for (const AutoRequest* r : order) {
      if (!r->sits_out || !room) seqs.push_back(r->seq);
    }
    uint32_t preempted = 0;
    if (!room) {
      preempted = decode_or_preempt(
          seqs, builder_,
          [&](const SeqView& victim, const SeqView& other) {
            builder_.because(why_preempted(victim, other));
            preempt(victim);
          },
          [&](const SeqView& s) { return requests_.sits_out(s) || builder_.decode(s); });
    } else {
      for (const SeqView* s : seqs) {
        if (s->decoding() && builder_.can_run(*s)) builder_.decode(*s);
      }
    }
    note_decodes(order);
    return preempted;
  }

  Reason why_preempted(const SeqView& victim, const SeqView& other) const {
    if (!options_.victims) return {Cause::kNeedsBlock, victim.id, other.id};
    return kvasir::why_preempted(requests_.running[&victim - view_.running.data()], other.id);
  }

  bool keeps_away() const { return options_.away && view_.total_cells(view_.slower_tier()) > 0; }

  void sort_by_place(std::vector<const AutoRequest*>& order) const {
    std::sort(order.begin(), order.end(), [&](const AutoRequest* a, const AutoRequest* b) {
      if (options_.victims) return keeps_its_place(*a, *b);
      return std::pair(a->seq->arrival, raw(a->seq->id)) < std::pair(b->seq->arrival, raw(b->seq->id));
    });
  }

  // ---------------------------------------------------------------- prompts

  // Of those that decode in this step: until the first token is due that may not be missed.
  void note_decodes(const std::vector<const AutoRequest*>& order) {
    for (const AutoRequest* r : order) {
      if (!r->seq->decoding() || !builder_.has_rows(r->seq->id)) continue;
      any_decodes_ = true;
      any_unbounded_ |= !r->bounded;
      first_due_.count(*r);
    }
    decodes_s_ = view_.costs.step_seconds(builder_.work());
  }

  // By which what is left until then is divided; fixed_s: what the step takes in any case.
  double margin(double prefill_rows, double fixed_s, const FirstDue& first) const {
    if (!options_.margins) return state_.margins.quantile(prefill_rows, 1);
    const double steps = first.every_gap ? requests_.steps_of_one() : 1;
    return state_.margins.priced(prefill_rows, fixed_s / first.left_s, steps, needed_for_prompts_);
  }

  // Seconds that the step may take by belief, with so many rows of prompts in it.
  double allowed_s(double prefill_rows) const {
    double allowed = kNoBound;
    if (any_unbounded_) {
      allowed = requests_.without_bounds_s() / state_.margins.quantile(prefill_rows, 1 - kLateStep);
    }
    if (!first_due_.any()) return allowed;
    return std::min(allowed, first_due_.left_s / margin(prefill_rows, decodes_s_, first_due_));
  }

  // Rows of `most` behind `history` for which the step has time and budget.
  uint32_t chunk(uint32_t history, uint32_t most) const {
    const uint32_t threshold = view_.limits.long_prefill_token_threshold;
    most = std::min(most, chunk_room(view_, builder_, threshold));
    if (!any_decodes_) return most;
    if (!view_.costs.known()) {
      return raw(view_.next_step) < kFirstSteps ? std::min(most, kCarefulRows) : most;
    }
    uint32_t rows = most;
    // The margin depends on the rows: a few rounds, since it falls with them.
    for (int round = 0; round < 3; ++round) {
      const double s = allowed_s(builder_.work().prefill_rows + rows);
      const uint32_t next = prefill_rows_within(view_.costs, builder_.work(), s, history, most);
      if (next >= rows && round > 0) break;
      rows = next;
    }
    // Where no bound is at stake prompts get on, however long the decodes take.
    const bool must = !first_due_.any() && builder_.work().prefill_rows == 0;
    return must ? std::max(rows, std::min(most, kFewestRows)) : rows;
  }

  // rows: of `wanted`, those for which there is time. False: the builder has no room for any of them.
  bool prefill(const SeqView& seq, uint32_t rows, uint32_t wanted) {
    const bool by_time =
        rows < std::min(wanted, chunk_room(view_, builder_, view_.limits.long_prefill_token_threshold));
    RowOptions write;
    if (keeps_away() && is_away(seq, builder_)) write.kv = LayerSet{};
    if (builder_.prefill(seq, rows, write) == 0) return false;
    if (!by_time || !view_.costs.known()) return true;
    const bool bound =
        first_due_.any() && (!any_unbounded_ || first_due_.left_s < requests_.without_bounds_s());
    builder_.because({bound ? Cause::kShortChunk : Cause::kShortChunkForAll, seq.id,
                      bound ? first_due_.seq : SeqId{}, static_cast<double>(rows),
                      bound ? first_due_.left_s : requests_.without_bounds_s()});
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
      const uint32_t rows = chunk(r->seq->ready_tokens, r->seq->tokens_to_compute());
      if (rows > 0) prefill(*r->seq, rows, r->seq->tokens_to_compute());
    }
  }

  // ---------------------------------------------------------------- admission

  uint32_t spare_blocks() const { return admission_watermark(view_) + blocks_wanted(view_, builder_); }

  BatchGap no_gaps() const {
    return {view_.costs,
            state_.margins,
            {.steps = requests_.steps_of_one(), .otherwise_s = requests_.without_bounds_s()}};
  }
  // The gaps of all that run, against which those that join are judged.
  BatchGap gaps() const {
    BatchGap out = no_gaps();
    for (const AutoRequest& r : requests_.running) {
      if (builder_.preempted(r.seq->id) || r.sits_out) continue;
      out.add(r.seq->id, r.seq->known_tokens, r.late ? nullptr : &r.seq->slo);
    }
    return out;
  }

  void admit() {
    BatchGap batch = gaps();
    const uint32_t spare = spare_blocks();
    uint32_t refused = 0;
    for (AutoRequest* r : queue_) {
      const SeqView& seq = *r->seq;
      const bool paid = r == credited_;
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
      } else {
        why = admit_one(*r, alone ? 0 : spare);
      }
      if (why == Refusal::kNone) {
        batch.add(seq.id, seq.known_tokens, slo);
        if (!away_admitted_) builder_.because(why_admitted(*r, paid));
        if (paid) spend(*r);
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
    const uint32_t rows = seq.decoding() ? 1 : chunk(held, seq.known_tokens - held);
    if (rows == 0) return Refusal::kTime;
    if (!builder_.admit(seq, {.spare_blocks = spare})) {
      away_admitted_ = keeps_away() && away_.admit(r, rows);
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
  AutoAway away_;
  const double needed_for_prompts_;  // a share of the time
  std::vector<AutoRequest*> queue_;
  const AutoRequest* credited_ = nullptr;  // late, and the credit covers it
  Refusal refusal_ = Refusal::kNone;       // of the first that is on time
  bool waits_for_link_ = false;
  bool away_admitted_ = false;  // the last one that was admitted
  bool any_decodes_ = false;
  bool any_unbounded_ = false;
  FirstDue first_due_;  // of those that decode in this step
  double decodes_s_ = 0;
};

}  // namespace

bool plan_auto_step(const View& view, const AutoOptions& options, AutoState& state, PlanBuilder& builder) {
  return AutoStep(view, options, state, builder).plan();
}

}  // namespace kvasir
