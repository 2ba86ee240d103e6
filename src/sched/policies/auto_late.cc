#include "sched/policies/auto_late.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/mechanisms/swap_or_recompute.h"
#include "sched/policies/auto_reasons.h"
#include "sched/policies/auto_residency.h"

namespace kvasir {
namespace {

// Requests at the head of the queue for which late ones make way in one step; and the share of the first
// one's cost that a late one must still need, or it is about to end.
constexpr uint32_t kMakeWayFor = 4;
constexpr double kWorthStopping = 0.5;

}  // namespace

void AutoLate::sit_out(const std::vector<AutoRequest*>& queue) {
  BatchGap batch = requests_.empty_batch(state_.margins);
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
  for (size_t i = 0; i < std::min<size_t>(queue.size(), kMakeWayFor) && !queue[i]->late; ++i) {
    add(*queue[i]);
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

bool AutoLate::waits_for_credit(const AutoRequest& r, bool runs) const {
  return r.late && r.turn == 0 && (!runs || r.sits_out || is_away(*r.seq, builder_));
}

void AutoLate::earn_credit() {
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

void AutoLate::spend(const AutoRequest& r) {
  if (r.turn == 0) state_.turns.spend(r.seq->weight, r.busy_s);
  state_.credit.spend(r.seq->id, r.busy_s);
}

void AutoLate::put_credited_first(std::vector<AutoRequest*>& queue) {
  AutoRequest* first = nullptr;
  bool runs = false;
  const auto place = [&](const AutoRequest& r) {
    return std::tuple(r.turn == 0, r.turn, r.turn > 0 ? 0 : state_.turns.had_s(r.seq->weight), r.seq->arrival,
                      raw(r.seq->id));
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
    if (away) preempt_by(PreemptionStrategy::kCheaper, view_, *first->seq, builder_);
    first->sits_out = false;
    builder_.because(why_admitted(*first, /*paid=*/true));
    spend(*first);
    first->turn = state_.credit.turn_of(first->seq->id);
    first->keeps = Keeps::kOnCredit;
    return;
  }
  const auto at = std::find(queue.begin(), queue.end(), first);
  std::rotate(queue.begin(), at, at + 1);
  credited_ = first;
}

void AutoLate::make_way(const std::vector<AutoRequest*>& queue) {
  if (queue.empty() || (queue.front()->late && queue.front() != credited_)) return;
  int64_t need = 0, seqs = 0;
  for (const AutoRequest* r : queue) {
    if ((r->late && r != credited_) || seqs == kMakeWayFor) break;
    ++seqs;
    need += view_.geometry.blocks_for(r->seq->known_tokens + 1);
  }
  int64_t room = builder_.available_blocks() + builder_.coming_blocks() - spare_blocks(view_, builder_);
  int64_t slots = int64_t{view_.limits.max_num_seqs} - builder_.running_seqs();
  if (room >= need && slots >= seqs) return;
  std::vector<const AutoRequest*> late;
  for (const AutoRequest& r : requests_.running) {
    if (r.keeps == Keeps::kLate && !r.returned &&
        r.finish_for_worth() > kWorthStopping * queue.front()->finish_for_worth()) {
      late.push_back(&r);
    }
  }
  std::sort(late.begin(), late.end(),
            [](const AutoRequest* a, const AutoRequest* b) { return keeps_its_place(*b, *a); });
  for (const AutoRequest* r : late) {
    if (room >= need && slots >= seqs) break;
    if (!builder_.can_stop(*r->seq)) continue;
    builder_.because({Cause::kMakesWay, r->seq->id, queue.front()->seq->id,
                      static_cast<double>(std::max<int64_t>(0, need - room)),
                      static_cast<double>(std::max<int64_t>(0, seqs - slots))});
    room += r->seq->own_kv_cells(Tier::kDevice) / view_.geometry.groups();
    ++slots;
    preempt_by(PreemptionStrategy::kCheaper, view_, *r->seq, builder_);
  }
}

}  // namespace kvasir
