// vLLM (Kwon et al., SOSP 2023), as of version 0.5, with preemption by swap: the cells of a preempted
// sequence go to the slower tier and come back.
#include "sched/batch_policy.h"
#include "sched/mechanisms/admit_prompts.h"
#include "sched/mechanisms/batch_bound.h"
#include "sched/mechanisms/continue_running.h"
#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/mechanisms/swap_in.h"
#include "sched/policy_settings.h"

namespace kvasir {
namespace {

// As `vllm`, but a preempted sequence keeps its cells. While any waits to come back no prompt is admitted,
// and none comes back in a step that preempts.
class VllmSwapPolicy final : public BatchPolicy {
 public:
  explicit VllmSwapPolicy(BatchRule batch) : batch_(batch) {}

 private:
  void plan_batch(const View& view, PlanBuilder& builder) override {
    const bool swapped = any_swapped_out(view);
    if (!swapped && !any_prefilling(view) && admit_prompts(view, may_join(view, swapped, batch_), builder)) {
      return;
    }
    const uint32_t preempted = continue_running(view, builder, PreemptBy::kSwap);
    if (!swapped || preempted > 0) return;
    swap_in(view, may_join(view, swapped, batch_), admission_watermark(view) + blocks_wanted(view, builder),
            builder);
  }

  const BatchRule batch_;
};

}  // namespace

std::unique_ptr<BatchPolicy> make_vllm_swap(PolicySettings& settings) {
  return std::make_unique<VllmSwapPolicy>(batch_rule(settings));
}

}  // namespace kvasir
