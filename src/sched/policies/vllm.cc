#include "sched/policies/vllm.h"

#include "contract/plan_builder.h"
#include "sched/mechanisms/decode_or_preempt.h"

namespace kvasir {
namespace {

// A step is either prefills or decodes. Waiting sequences are admitted in order of arrival while the blocks
// of the whole prompt are free, less a watermark of 1 % that keeps admission from causing preemption at
// once (vLLM 0.5: BlockSpaceManagerV1, watermark=0.01). A prompt larger than the token budget goes alone.
class VllmPolicy final : public Policy {
 public:
  StepPlan plan(const View& view) override {
    PlanBuilder builder(view);
    if (!admit_prompts(view, builder)) continue_running(view, builder);
    return builder.take();
  }

 private:
  static bool admit_prompts(const View& view, PlanBuilder& builder) {
    const uint32_t total_blocks =
        view.device.total[static_cast<size_t>(FrameClass::kKvPlane)] / view.geometry.kv_frames_per_block();
    // With a step in flight, the blocks of a preempted sequence come one step later than the decode that they
    // are for: without this, the sequence would be admitted into them again.
    const uint32_t awaited = view.steps_in_flight > 0 ? blocks_wanted(view) : 0;
    for (const SeqView& seq : view.waiting) {
      const uint32_t tokens = seq.known_tokens - seq.cached_tokens;
      const bool first = builder.planned_tokens() == 0;
      if (!first && builder.planned_tokens() + tokens > view.limits.max_num_batched_tokens) break;
      // Beside nothing else even a sequence that needs every block is admitted.
      const uint32_t watermark = builder.running_seqs() == 0 ? 0 : total_blocks / 100;
      if (!builder.admit(seq, watermark + awaited)) break;
      builder.prefill(seq, tokens);
    }
    return builder.planned_tokens() > 0;
  }

  static void continue_running(const View& view, PlanBuilder& builder) {
    const auto running = by_arrival(view.running);
    decode_or_preempt(running, builder);
    // Whole prompts leave no prefill behind, unless another policy started it.
    for (const SeqView* seq : running) {
      if (seq->decoding() || builder.has_rows(seq->id) || builder.preempted(seq->id)) continue;
      builder.prefill(*seq, seq->tokens_to_compute());
    }
  }
};

}  // namespace

std::unique_ptr<Policy> make_vllm_policy() {
  return std::make_unique<VllmPolicy>();
}

}  // namespace kvasir
