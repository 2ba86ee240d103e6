// Sarathi-Serve (Agrawal et al., OSDI 2024), Algorithm 3: chunked prefills beside all decodes, within a
// budget of tokens.
#include "sched/batch_policy.h"
#include "sched/mechanisms/admit_prompts.h"
#include "sched/mechanisms/chunk_prefills.h"
#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/policy_settings.h"

namespace kvasir {
namespace {

// Every running decode gets its token, running prefills take the rest of the budget in chunks, then waiting
// sequences are admitted in order while the blocks of the whole prompt are free. A step that preempts admits
// none.
class SarathiPolicy final : public BatchPolicy {
  void plan_batch(const View& view, PlanBuilder& builder) override {
    const uint32_t threshold = view.limits.long_prefill_token_threshold;
    const auto running = by_arrival(view.running);
    const bool preempted = decode_or_preempt(running, builder) > 0;
    continue_chunks(view, running, threshold, builder);
    if (preempted) return;
    const uint32_t watermark = admission_watermark(view);
    for (const SeqView& seq : view.waiting) {
      if (!admit_chunk(view, seq, threshold, watermark, builder)) break;
    }
  }
};

}  // namespace

std::unique_ptr<BatchPolicy> make_sarathi(PolicySettings&) {
  return std::make_unique<SarathiPolicy>();
}

}  // namespace kvasir
