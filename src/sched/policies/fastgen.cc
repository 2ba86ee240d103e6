#include "sched/policies/fastgen.h"

#include "contract/plan_builder.h"
#include "sched/mechanisms/break_standstill.h"
#include "sched/mechanisms/chunk_prefills.h"
#include "sched/mechanisms/decode_in_order.h"
#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/mechanisms/turn_alone.h"

namespace kvasir {
namespace {

// DeepSpeed-FastGen (Holmes et al., 2024), section 3: long prompts are decomposed over steps, short ones
// composed, so that each step has as near as can be the same number of tokens; the token of each running
// request goes first. A request without a KV block is left out of the step; where that leaves nobody, one
// starts again.
class FastgenPolicy final : public Policy {
 public:
  StepPlan plan(const View& view) override {
    constexpr uint32_t kNoThreshold = 0;
    PlanBuilder builder(view);
    if (take_turn_alone(view, builder)) return builder.take();
    const auto running = by_arrival(view.running);
    decode_in_order(running, builder);
    continue_chunks(view, running, kNoThreshold, builder);
    for (const SeqView& seq : view.waiting) {
      if (!admit_chunk(view, seq, kNoThreshold, /*spare_blocks=*/0, builder)) break;
    }
    break_standstill(view, running, builder);
    return builder.take();
  }
};

}  // namespace

std::unique_ptr<Policy> make_fastgen_policy() {
  return std::make_unique<FastgenPolicy>();
}

}  // namespace kvasir
