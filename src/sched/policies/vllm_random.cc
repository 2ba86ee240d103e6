#include "sched/policies/vllm_random.h"

#include <charconv>
#include <utility>
#include <vector>

#include "base/random.h"
#include "contract/plan_builder.h"
#include "sched/mechanisms/admit_prompts.h"
#include "sched/mechanisms/break_standstill.h"
#include "sched/mechanisms/continue_running.h"
#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/mechanisms/turn_alone.h"

namespace kvasir {
namespace {

// The paper draws who is scheduled and says no more. Here the queue alone is drawn: who runs goes on, and
// where blocks run out the latest arrival is preempted, as in `vllm`.
class VllmRandomPolicy final : public Policy {
 public:
  explicit VllmRandomPolicy(uint64_t seed) : random_(seed) {}

  StepPlan plan(const View& view) override {
    PlanBuilder builder(view);
    if (take_turn_alone(view, builder)) return builder.take();
    if (anyone_prefilling(view) || !admit_prompts(view, drawn(view.waiting), builder)) {
      continue_running(view, builder, PreemptBy::kRecompute);
    }
    break_standstill(view, builder);
    return builder.take();
  }

  // How much has been drawn.
  std::string save_state() const override { return std::to_string(random_.counter()); }
  Status restore_state(std::string_view state) override {
    uint64_t counter = 0;
    const auto [end, problem] = std::from_chars(state.data(), state.data() + state.size(), counter);
    if (problem != std::errc() || end != state.data() + state.size()) {
      return error(ErrorCode::kInvalidArgument, "'{}' is not how much a policy has drawn", state);
    }
    random_ = Random(random_.seed(), counter);
    return {};
  }

 private:
  std::vector<const SeqView*> drawn(const std::vector<SeqView>& waiting) {
    std::vector<const SeqView*> order;
    for (const SeqView& seq : waiting) order.push_back(&seq);
    for (size_t left = order.size(); left > 1; --left) std::swap(order[left - 1], order[random_.below(left)]);
    return order;
  }

  Random random_;
};

}  // namespace

std::unique_ptr<Policy> make_vllm_random_policy(uint64_t seed) {
  return std::make_unique<VllmRandomPolicy>(seed);
}

}  // namespace kvasir
