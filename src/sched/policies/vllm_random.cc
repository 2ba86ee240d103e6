// As vLLM, but waiting requests are admitted in an order drawn anew for every step: the question that
// Apt-Serve (Gao et al., SIGMOD 2025; Section 3.2, Fig. 4) asks of first come, first served.
#include <charconv>
#include <utility>
#include <vector>

#include "base/random.h"
#include "sched/batch_policy.h"
#include "sched/mechanisms/admit_prompts.h"
#include "sched/mechanisms/continue_running.h"
#include "sched/policy_settings.h"

namespace kvasir {
namespace {

// The paper draws which requests are scheduled and says no more. Here only the queue is drawn: what runs goes
// on, and where blocks run out the latest arrival is preempted, as in `vllm`.
class VllmRandomPolicy final : public BatchPolicy {
 public:
  explicit VllmRandomPolicy(uint64_t seed) : random_(seed) {}

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
  void plan_batch(const View& view, PlanBuilder& builder) override {
    if (any_prefilling(view) || !admit_prompts(view, drawn(view.waiting), builder)) {
      continue_running(view, builder, PreemptBy::kRecompute);
    }
  }

  std::vector<const SeqView*> drawn(const std::vector<SeqView>& waiting) {
    std::vector<const SeqView*> order;
    for (const SeqView& seq : waiting) order.push_back(&seq);
    for (size_t left = order.size(); left > 1; --left) std::swap(order[left - 1], order[random_.below(left)]);
    return order;
  }

  Random random_;
};

}  // namespace

std::unique_ptr<BatchPolicy> make_vllm_random(PolicySettings& settings) {
  return std::make_unique<VllmRandomPolicy>(settings.whole("seed", 0, 0, UINT32_MAX));
}

}  // namespace kvasir
