#include "sched/policies/vllm.h"

#include <algorithm>

#include "contract/plan_builder.h"
#include "sched/mechanisms/admit_prompts.h"
#include "sched/mechanisms/break_standstill.h"
#include "sched/mechanisms/continue_running.h"
#include "sched/mechanisms/turn_alone.h"

namespace kvasir {
namespace {

// A step is either prefills or decodes, and prefills go first. A prompt that memory, or the bound on what
// decodes may wait, has cut short is finished beside the decodes before another is admitted.
class VllmPolicy final : public Policy {
 public:
  StepPlan plan(const View& view) override {
    PlanBuilder builder(view);
    if (take_turn_alone(view, builder)) return builder.take();
    if (anyone_prefilling(view) || !admit_prompts(view, builder)) {
      continue_running(view, builder, PreemptBy::kRecompute);
    }
    break_standstill(view, builder);
    return builder.take();
  }
};

}  // namespace

std::unique_ptr<Policy> make_vllm_policy() {
  return std::make_unique<VllmPolicy>();
}

}  // namespace kvasir
