// vLLM (Kwon et al., SOSP 2023), as of version 0.5: first come, first served; whole prompts before decodes;
// preemption by recomputation.
#include <algorithm>
#include <utility>
#include <vector>

#include "sched/batch_policy.h"
#include "sched/mechanisms/admit_prompts.h"
#include "sched/mechanisms/batch_bound.h"
#include "sched/mechanisms/continue_running.h"
#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/mechanisms/pending_time.h"
#include "sched/policy_settings.h"

namespace kvasir {
namespace {

// A step is either prefills or decodes, and prefills go first. A prompt that memory, or the bound on what
// decodes may wait, has cut short is finished beside the decodes before another is admitted.
//
// Two settings are not vLLM's. With `demote` a request that pends beyond a bound comes behind all that do
// not, and is preempted first: comparisons with policies that give up on such requests need it. `batch` is
// what eLLM's authors gave their vLLM.
class VllmPolicy final : public BatchPolicy {
 public:
  VllmPolicy(bool demote, BatchRule batch) : demote_(demote), batch_(batch) {}

 private:
  void plan_batch(const View& view, PlanBuilder& builder) override {
    if (any_prefilling(view) || !admit(view, builder)) {
      continue_running(
          by_lateness(view, view.running), builder, PreemptBy::kRecompute, [&](const SeqView& seq) {
            return demote_ && pends_too_long(seq, view.now) ? Cause::kIsLate : Cause::kArrivedLast;
          });
    }
  }

  bool admit(const View& view, PlanBuilder& builder) const {
    if (!demote_ && !batch_.within_tpot) return admit_prompts(view, builder);
    std::vector<const SeqView*> waiting = by_lateness(view, view.waiting);
    if (batch_.within_tpot) waiting = batch_within_tpot(view, std::move(waiting), batch_.prompts);
    return admit_prompts(view, waiting, builder);
  }

  // By arrival; those that are late behind all others if they are demoted.
  std::vector<const SeqView*> by_lateness(const View& view, const std::vector<SeqView>& sequences) const {
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

std::unique_ptr<BatchPolicy> make_vllm(PolicySettings& settings) {
  const bool demote = settings.flag("demote", false);
  return std::make_unique<VllmPolicy>(demote, batch_rule(settings));
}

}  // namespace kvasir
