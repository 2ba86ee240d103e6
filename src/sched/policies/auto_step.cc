#include "sched/policies/auto_step.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "sched/mechanisms/admit_prompts.h"
#include "sched/mechanisms/batch_gap.h"
#include "sched/mechanisms/chunk_prefills.h"
#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/mechanisms/prefill_time.h"
#include "sched/mechanisms/swap_or_recompute.h"
#include "sched/policies/auto_requests.h"
#include "sched/policies/auto_residency.h"

namespace kvasir {
namespace {

constexpr double kNoBound = std::numeric_limits<double>::infinity();
// The share of time that prompts need is this times what those that arrive take, so that queues become
// shorter.
constexpr double kAboveArrivals = 2;
constexpr double kLateStep = 0.01;  // the share of steps that exceed a gap that nobody states
// Requests that were refused, until no more are tried.
constexpr uint32_t kMostRefusals = 8;
// Requests at the head of the queue for which late ones make way in one step; and the share of the first
// one's cost that a late one must still need, or it is about to end.
constexpr uint32_t kMakeWayFor = 4;
constexpr double kWorthStopping = 0.5;
// The first token of those on time that is due.
struct FirstDue {
  double left_s = kNoBound;
  bool every_gap = false;  // each gap of that request counts; else the mean of them

  bool any() const { return left_s < kNoBound; }
  void count(const AutoRequest& r) {
    if (!r.on_time_bound() || r.left_s >= left_s) return;
    left_s = r.left_s;
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
    earn_credit();
    queue_ = requests_.queue(state_);
    put_credited_first();
    if (options_.make_way) make_way();
    const uint32_t preempted = decode();
    prefill_on();
    if (preempted == 0) admit();
    if (keeps_away()) away_.serve(/*may_take=*/preempted == 0);
    if (options_.copies && may_copy_ahead(view_, builder_)) copy_victims();
    state_.shortages.observe(preempted > 0 ? Refusal::kMemory : refusal_);
    return !waits_for_link_;
  }

 private:
  // ---------------------------------------------------------------- late requests

  void earn_credit() {
    double most_s = 0;
    for (const AutoRequest& r : requests_.waiting) {
      if (r.late) most_s = std::max(most_s, r.busy_s);
    }
    state_.credit.earn(view_.now, most_s);
  }

  void put_credited_first() {
    AutoRequest* late = requests_.first_late();
    if (!late || !state_.credit.has_turn(late->seq->id, late->busy_s)) return;
    const auto at = std::find(queue_.begin(), queue_.end(), late);
    std::rotate(queue_.begin(), at, at + 1);
    credited_ = late;
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
      if (r.keeps == Keeps::kLate && r.finish_s > kWorthStopping * queue_.front()->finish_s)
        late.push_back(&r);
    }
    std::sort(late.begin(), late.end(),
              [](const AutoRequest* a, const AutoRequest* b) { return keeps_its_place(*b, *a); });
    for (const AutoRequest* r : late) {
      if (room >= need && slots >= seqs) break;
      if (!builder_.can_stop(*r->seq)) continue;
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
    for (const AutoRequest* r : order) seqs.push_back(r->seq);
    uint32_t preempted = 0;
    if (!room) {
      preempted = decode_or_preempt(
          seqs, builder_, [&](const SeqView& s) { preempt(s); },
          [&](const SeqView& s) { return builder_.decode(s); });
    } else {
      for (const SeqView* s : seqs) {
        if (s->decoding() && builder_.can_run(*s)) builder_.decode(*s);
      }
    }
    note_decodes(order);
    return preempted;
  }

  bool keeps_away() const { return options_.away && view_.total_cells(view_.slower_tier()) > 0; }

  void copy_victims() {
    std::vector<const AutoRequest*> order;
    for (const AutoRequest& r : requests_.running) order.push_back(&r);
    sort_by_place(order);
    copy_likely_victims(view_, order, view_.costs.step_seconds(builder_.work()), builder_);
  }

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
    if (!any_decodes_ || !view_.costs.known()) return most;
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
    return must ? std::max(rows, std::min(most, view_.geometry.block_tokens)) : rows;
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
      if (rows > 0) builder_.prefill(*r->seq, rows);
    }
  }

  // ---------------------------------------------------------------- admission

  uint32_t spare_blocks() const { return admission_watermark(view_) + blocks_wanted(view_, builder_); }

  // The gaps of all that run, against which those that join are judged.
  BatchGap gaps() const {
    BatchGap out(view_.costs, state_.margins,
                 {.steps = requests_.steps_of_one(), .otherwise_s = requests_.without_bounds_s()});
    for (const AutoRequest& r : requests_.running) {
      if (!builder_.preempted(r.seq->id)) out.add(r.seq->known_tokens, r.late ? nullptr : &r.seq->slo);
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
      if (!alone && options_.batch && view_.costs.known() && !batch.fits(seq.known_tokens, slo)) {
        why = Refusal::kTime;
      } else {
        why = admit_one(*r, alone ? 0 : spare);
      }
      if (why == Refusal::kNone) {
        batch.add(seq.known_tokens, slo);
        if (paid) state_.credit.spend(seq.id, r->busy_s);
        continue;
      }
      ++refused;
      if (refusal_ == Refusal::kNone && (!r->late || paid)) refusal_ = why;
      // What becomes free is for the one that the credit pays for.
      if (!options_.order || r->late || why == Refusal::kSlots) break;
    }
  }

  // kNone: it has rows in this step.
  Refusal admit_one(const AutoRequest& r, uint32_t spare) {
    const SeqView& seq = *r.seq;
    if (builder_.running_seqs() >= view_.limits.max_num_seqs) return Refusal::kSlots;
    const uint32_t held =
        std::min(seq.blocks > 0 ? seq.ready_tokens : seq.cached_tokens, seq.known_tokens - 1);
    const uint32_t rows = seq.decoding() ? 1 : chunk(held, seq.known_tokens - held);
    if (rows == 0) return Refusal::kTime;
    if (!builder_.admit(seq, {.spare_blocks = spare})) {
      return keeps_away() && away_.admit(r, rows) ? Refusal::kNone : Refusal::kMemory;
    }
    if (seq.decoding()) {
      builder_.decode(seq);
    } else {
      builder_.prefill(seq, rows);
    }
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
