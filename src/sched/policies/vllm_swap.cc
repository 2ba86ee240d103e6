#include "sched/policies/vllm_swap.h"

#include "contract/plan_builder.h"
#include "sched/mechanisms/admit_prompts.h"
#include "sched/mechanisms/break_standstill.h"
#include "sched/mechanisms/continue_running.h"
#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/mechanisms/swap_in.h"
#include "sched/mechanisms/turn_alone.h"

namespace kvasir {
namespace {

// As `vllm`, but a preempted sequence keeps its cells, on the host. While any waits to come back no prompt is
// admitted, and none comes back in a step that preempts.
class VllmSwapPolicy final : public Policy {
 public:
  explicit VllmSwapPolicy(BatchRule batch) : batch_(batch) {}

  StepPlan plan(const View& view) override {
    PlanBuilder builder(view);
    if (take_turn_alone(view, builder)) return builder.take();
    const bool swapped = anyone_swapped_out(view);
    if (!swapped && !anyone_prefilling(view) &&
        admit_prompts(view, may_join(view, swapped, batch_), builder)) {
      return builder.take();
    }
    const uint32_t preempted = continue_running(view, builder, PreemptBy::kSwap);
    if (swapped && preempted == 0) {
      swap_in(view, may_join(view, swapped, batch_), admission_watermark(view) + blocks_wanted(view, builder),
              builder);
    }
    break_standstill(view, builder);
    return builder.take();
  }

 private:
  const BatchRule batch_;
};

}  // namespace

std::unique_ptr<Policy> make_vllm_swap_policy(BatchRule batch) {
  return std::make_unique<VllmSwapPolicy>(batch);
}

std::unique_ptr<Policy> make_vllm_swap_policy(PolicySettings& settings) {
  return make_vllm_swap_policy(batch_rule(settings));
}

}  // namespace kvasir
