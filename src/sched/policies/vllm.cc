#include "sched/policies/vllm.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "contract/plan_builder.h"
#include "sched/mechanisms/admit_prompts.h"
#include "sched/mechanisms/break_standstill.h"
#include "sched/mechanisms/continue_running.h"
#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/mechanisms/pending_time.h"
#include "sched/mechanisms/turn_alone.h"

namespace kvasir {
namespace {

// A step is either prefills or decodes, and prefills go first. A prompt that memory, or the bound on what
// decodes may wait, has cut short is finished beside the decodes before another is admitted.
class VllmPolicy final : public Policy {
 public:
  VllmPolicy(bool demote, BatchRule batch) : demote_(demote), batch_(batch) {}

  StepPlan plan(const View& view) override {
    PlanBuilder builder(view);
    if (take_turn_alone(view, builder)) return builder.take();
    if (anyone_prefilling(view) || !admit(view, builder)) {
      continue_running(in_order(view, view.running), builder, PreemptBy::kRecompute);
    }
    break_standstill(view, builder);
    return builder.take();
  }

 private:
  bool admit(const View& view, PlanBuilder& builder) const {
    if (!demote_ && batch_ == BatchRule::kFree) return admit_prompts(view, builder);
    std::vector<const SeqView*> waiting = in_order(view, view.waiting);
    if (batch_ == BatchRule::kWithinTpot) waiting = batch_within_tpot(view, std::move(waiting));
    return admit_prompts(view, waiting, builder);
  }

  // By arrival; those that are late behind all others if they are demoted.
  std::vector<const SeqView*> in_order(const View& view, const std::vector<SeqView>& sequences) const {
    std::vector<const SeqView*> out = by_arrival(sequences);
    if (demote_) {
      std::stable_partition(out.begin(), out.end(),
                            [&](const SeqView* seq) { return !pends_too_long(*seq, view.now); });
    }
    return out;
  }

  const bool demote_;
  const BatchRule batch_;
};

}  // namespace

std::unique_ptr<Policy> make_vllm_policy(bool demote, BatchRule batch) {
  return std::make_unique<VllmPolicy>(demote, batch);
}

std::unique_ptr<Policy> make_vllm_policy(PolicySettings& settings) {
  const bool demote = settings.flag("demote", false);
  return make_vllm_policy(demote, batch_rule(settings));
}

}  // namespace kvasir
