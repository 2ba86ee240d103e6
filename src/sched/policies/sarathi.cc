#include "sched/policies/sarathi.h"

#include <algorithm>

#include "contract/plan_builder.h"
#include "sched/mechanisms/break_standstill.h"
#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/mechanisms/turn_alone.h"

namespace kvasir {
namespace {

// Sarathi-Serve (Agrawal et al., OSDI 2024), Algorithm 3: every running decode gets its token, running
// prefills take the rest of the budget in chunks, then waiting sequences are admitted in order while the
// blocks of the whole prompt are free. After a preemption nobody is admitted in the same step.
class SarathiPolicy final : public Policy {
 public:
  StepPlan plan(const View& view) override {
    PlanBuilder builder(view);
    if (take_turn_alone(view, builder)) return builder.take();
    const auto running = by_arrival(view.running);
    const bool preempted = decode_or_preempt(running, builder) > 0;
    for (const SeqView* seq : running) {
      if (seq->decoding() || builder.preempted(seq->id)) continue;
      if (chunk(view, builder) == 0) break;
      builder.prefill(*seq, chunk(view, builder));
    }
    if (!preempted) admit(view, builder);
    break_standstill(view, builder);
    return builder.take();
  }

 private:
  static void admit(const View& view, PlanBuilder& builder) {
    for (const SeqView& seq : view.waiting) {
      if (chunk(view, builder) == 0 || !builder.admit(seq)) break;
      builder.prefill(seq, chunk(view, builder));
    }
  }

  // The largest chunk that the rest of the budget and the threshold allow.
  static uint32_t chunk(const View& view, const PlanBuilder& builder) {
    const uint32_t budget = view.limits.max_num_batched_tokens;
    const uint32_t left = budget - std::min(budget, builder.planned_tokens());
    const uint32_t threshold = view.limits.long_prefill_token_threshold;
    return threshold == 0 ? left : std::min(left, threshold);
  }
};

}  // namespace

std::unique_ptr<Policy> make_sarathi_policy() {
  return std::make_unique<SarathiPolicy>();
}

}  // namespace kvasir
