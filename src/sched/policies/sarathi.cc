#include "sched/policies/sarathi.h"

#include "contract/plan_builder.h"
#include "sched/mechanisms/admit_prompts.h"
#include "sched/mechanisms/break_standstill.h"
#include "sched/mechanisms/chunk_prefills.h"
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
    const uint32_t threshold = view.limits.long_prefill_token_threshold;
    const auto running = by_arrival(view.running);
    const bool preempted = decode_or_preempt(running, builder) > 0;
    continue_chunks(view, running, threshold, builder);
    if (!preempted) {
      const uint32_t watermark = admission_watermark(view);
      for (const SeqView& seq : view.waiting) {
        if (!admit_chunk(view, seq, threshold, watermark, builder)) break;
      }
    }
    break_standstill(view, running, builder);
    return builder.take();
  }
};

}  // namespace

std::unique_ptr<Policy> make_sarathi_policy() {
  return std::make_unique<SarathiPolicy>();
}

}  // namespace kvasir
