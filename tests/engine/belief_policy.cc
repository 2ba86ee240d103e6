#include "engine/belief_policy.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "sched/batch_policy.h"

namespace kvasir::test {
namespace {

constexpr double kStepBound = 40e-6;  // seconds: forty rows of the shadow executor
// What is believed may be nonsense: whatever it says, some sequence gets so many rows.
constexpr uint32_t kFewestRows = 1;
constexpr double kPromisedShare = 0.1;  // of what is predicted

// Tokens that the sequence is believed to have still to generate; at least one.
double left(const View& view, const SeqView& s) {
  const double made = s.known_tokens - s.prompt_tokens;
  double end = s.predicted.output_tokens;
  if (s.predicted.length_class < view.length_classes.size()) {
    end += view.length_classes[s.predicted.length_class].residual(0.9);
  }
  if (s.predicted.deviation == Deviation::kLonger) end *= 1.5;
  return std::max(1.0, std::min(end - made, static_cast<double>(s.max_total_tokens) - s.known_tokens));
}

class BeliefPolicy final : public BatchPolicy {
  void plan_batch(const View& view, PlanBuilder& builder) override {
    std::vector<const SeqView*> running;
    for (const SeqView& s : view.running) running.push_back(&s);
    const auto shorter = [&](const SeqView* a, const SeqView* b) { return left(view, *a) < left(view, *b); };
    std::stable_sort(running.begin(), running.end(), shorter);
    bool preempted = false;
    for (size_t i = 0; i < running.size(); ++i) {
      if (!running[i]->decoding() || builder.preempted(running[i]->id) || !builder.can_run(*running[i]))
        continue;
      while (!builder.decode(*running[i])) {
        if (builder.coming_blocks() > 0 || running.size() < i + 2) break;
        const SeqView& victim = *running.back();
        if (!builder.has_rows(victim.id)) preempt(view, victim, builder);
        preempted = true;
        running.pop_back();
      }
    }
    for (const SeqView* s : running) {
      if (!s->decoding() && !builder.preempted(s->id)) builder.prefill(*s, rows_in_bound(view, *s, builder));
    }
    if (!preempted) admit(view, builder);
  }

  static void preempt(const View& view, const SeqView& s, PlanBuilder& builder) {
    const double bytes = static_cast<double>(s.own_kv_cells(Tier::kDevice)) *
                         static_cast<double>(view.geometry.cell_bytes(Form::kKv));
    const double swap = view.costs.transfer_seconds(Tier::kDevice, Tier::kHost, bytes) +
                        view.costs.transfer_seconds(Tier::kHost, Tier::kDevice, bytes);
    const bool swaps = view.total_cells(Tier::kHost) > 0 && swap < view.costs.prefill_seconds(s.ready_tokens);
    if (!swaps || !builder.preempt_and_offload(s)) builder.preempt_and_drop(s);
  }

  // The most rows of the sequence with which the step is believed to stay under the bound.
  static uint32_t rows_in_bound(const View& view, const SeqView& s, const PlanBuilder& builder) {
    const uint32_t budget = view.limits.max_num_batched_tokens;
    const uint32_t room = budget - std::min(budget, builder.planned_tokens());
    uint32_t low = 0, high = std::min(room, s.tokens_to_compute());
    while (low < high) {
      const uint32_t rows = (low + high + 1) / 2;
      StepWork work = builder.work();
      work.add_prefill(s.ready_tokens, rows);
      if (view.costs.step_seconds(work) <= kStepBound) {
        low = rows;
      } else {
        high = rows - 1;
      }
    }
    return std::max(low, builder.idle() ? std::min(kFewestRows, room) : 0);
  }

  static void admit(const View& view, PlanBuilder& builder) {
    std::vector<const SeqView*> waiting;
    for (const SeqView& s : view.waiting) waiting.push_back(&s);
    std::stable_sort(waiting.begin(), waiting.end(),
                     [&](const SeqView* a, const SeqView* b) { return left(view, *a) < left(view, *b); });
    for (const SeqView* s : waiting) {
      // A part of it: that is what makes preemptions.
      const double most =
          std::min<double>(s->max_total_tokens, s->known_tokens + std::ceil(kPromisedShare * left(view, *s)));
      const bool alone = view.running.empty() && builder.idle();
      if (!builder.admit(*s, {0, alone ? 0 : static_cast<uint32_t>(most)})) {
        if (alone) continue;
        break;
      }
      if (builder.prefill(*s, rows_in_bound(view, *s, builder)) == 0) break;
    }
  }
};

}  // namespace

std::unique_ptr<Policy> make_belief_policy() {
  return std::make_unique<BeliefPolicy>();
}

}  // namespace kvasir::test
