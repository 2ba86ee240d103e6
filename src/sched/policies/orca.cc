#include "sched/policies/orca.h"

#include "contract/plan_builder.h"
#include "sched/mechanisms/break_standstill.h"
#include "sched/mechanisms/decode_in_order.h"
#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/mechanisms/turn_alone.h"

namespace kvasir {
namespace {

// Orca (Yu et al., OSDI 2022), Algorithm 1: in every iteration the requests that came first, up to the batch
// size, each of which advances by one iteration: its whole prompt, or one token. A request joins if the slots
// for all that it may become can be reserved; otherwise nobody behind it does.
class OrcaPolicy final : public Policy {
 public:
  StepPlan plan(const View& view) override {
    PlanBuilder builder(view);
    if (take_turn_alone(view, builder)) return builder.take();
    const auto running = by_arrival(view.running);
    decode_in_order(running, builder);
    // The stall budget or the scratch may have cut a prompt short.
    for (const SeqView* seq : running) {
      if (!seq->decoding()) builder.prefill(*seq, seq->tokens_to_compute());
    }
    for (const SeqView& seq : view.waiting) {
      AdmitOptions whole;
      whole.total_tokens = seq.max_total_tokens;
      if (!builder.admit(seq, whole) || builder.prefill(seq, seq.known_tokens) == 0) break;
    }
    break_standstill(view, builder);
    return builder.take();
  }
};

}  // namespace

std::unique_ptr<Policy> make_orca_policy() {
  return std::make_unique<OrcaPolicy>();
}

}  // namespace kvasir
