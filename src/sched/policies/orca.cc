// Orca (Yu et al., OSDI 2022), Algorithm 1: iteration-level scheduling, with KV reserved at admission for the
// greatest length of a request.
#include "sched/batch_policy.h"
#include "sched/mechanisms/decode_in_order.h"
#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/mechanisms/refused.h"
#include "sched/policy_settings.h"

namespace kvasir {
namespace {

// In every iteration the requests that came first, up to the batch size, each of which advances by one
// iteration: its whole prompt, or one token. A request joins if the slots for all that it may become can be
// reserved; otherwise none behind it does.
class OrcaPolicy final : public BatchPolicy {
  void plan_batch(const View& view, PlanBuilder& builder) override {
    const auto running = by_arrival(view.running);
    decode_in_order(running, builder);
    // The stall budget or the scratch may have cut a prompt short.
    for (const SeqView* seq : running) {
      if (!seq->decoding()) builder.prefill(*seq, seq->tokens_to_compute());
    }
    for (const SeqView& seq : view.waiting) {
      AdmitOptions whole;
      whole.total_tokens = seq.max_total_tokens;
      if (!builder.admit(seq, whole)) {
        refused(view, seq, whole, builder);
        break;
      }
      if (builder.prefill(seq, seq.known_tokens) == 0) break;
    }
  }
};

}  // namespace

std::unique_ptr<BatchPolicy> make_orca(PolicySettings&) {
  return std::make_unique<OrcaPolicy>();
}

}  // namespace kvasir
