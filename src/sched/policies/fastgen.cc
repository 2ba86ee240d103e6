// DeepSpeed-FastGen's Dynamic SplitFuse (Holmes et al., 2024), section 3: steps of a fixed number of tokens.
#include "sched/batch_policy.h"
#include "sched/mechanisms/chunk_prefills.h"
#include "sched/mechanisms/decode_in_order.h"
#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/policy_settings.h"

namespace kvasir {
namespace {

// Long prompts are decomposed over steps, short ones composed, so that each step has as nearly as possible
// the same number of tokens; the token of each running request goes first. A request for which there is no
// KV block sits the step out, and none is preempted to decode.
class FastgenPolicy final : public BatchPolicy {
  void plan_batch(const View& view, PlanBuilder& builder) override {
    constexpr uint32_t kNoThreshold = 0;
    const auto running = by_arrival(view.running);
    decode_in_order(running, builder);
    continue_chunks(view, running, kNoThreshold, builder);
    for (const SeqView& seq : view.waiting) {
      if (!admit_chunk(view, seq, kNoThreshold, /*spare_blocks=*/0, builder)) break;
    }
  }
};

}  // namespace

std::unique_ptr<BatchPolicy> make_fastgen(PolicySettings&) {
  return std::make_unique<FastgenPolicy>();
}

}  // namespace kvasir
