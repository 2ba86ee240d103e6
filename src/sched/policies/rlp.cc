// Response length perception and sequence scheduling (Zheng et al., NeurIPS 2023), as CacheOpt compares with
// it: room for the predicted output and 100 tokens, and requests of similar length together.
#include <algorithm>
#include <vector>

#include "sched/batch_policy.h"
#include "sched/mechanisms/admit_by_demand.h"
#include "sched/mechanisms/rest_of_output.h"
#include "sched/policy_settings.h"

namespace kvasir {
namespace {

// What its predictor was taught to round lengths up to.
constexpr uint32_t kBucketTokens = 50;

// A request keeps room for its prompt, the predicted output and a padding. One that needs more is preempted,
// to be recomputed when there is room for it as for a new one. The first of the queue is admitted with those
// behind it whose lengths are the most like its own.
class RlpPolicy final : public BatchPolicy {
 public:
  RlpPolicy(uint32_t padding, bool survival) : padding_(padding), survival_(survival) {}

 private:
  void plan_batch(const View& view, PlanBuilder& builder) override {
    if (survival_) rest_.observe(view);
    for (const SeqView* seq : overrun(view, builder)) builder.preempt_and_drop(*seq);
    admit_or_go_on(
        view, {similar_first(view), [this](const SeqView& seq) { return demand(seq); }, /*first_fit=*/false},
        builder);
  }

  uint32_t demand(const SeqView& seq) const {
    const uint32_t predicted = seq.prompt_tokens + output(seq);
    return std::min(seq.max_total_tokens, std::max(seq.known_tokens, predicted) + padding_);
  }

  uint32_t output(const SeqView& seq) const {
    return survival_ ? rest_.output(seq) : seq.predicted.output_tokens;
  }
  uint32_t bucket(const SeqView& seq) const { return (output(seq) + kBucketTokens - 1) / kBucketTokens; }
  std::vector<const SeqView*> similar_first(const View& view) const {
    std::vector<const SeqView*> out;
    out.reserve(view.waiting.size());
    for (const SeqView& seq : view.waiting) out.push_back(&seq);
    if (out.size() < 3) return out;
    const uint32_t of_first = bucket(*out.front());
    const auto distance = [&](const SeqView* seq) {
      const uint32_t b = bucket(*seq);
      return b > of_first ? b - of_first : of_first - b;
    };
    std::stable_sort(out.begin() + 1, out.end(),
                     [&](const SeqView* a, const SeqView* b) { return distance(a) < distance(b); });
    return out;
  }

  const uint32_t padding_;
  const bool survival_;  // lengths are conditioned on it; else the prediction
  RestOfOutput rest_;    // a cache
};

}  // namespace

std::unique_ptr<BatchPolicy> make_rlp(PolicySettings& settings) {
  const uint32_t padding = settings.whole("padding", 100, 0, 100'000);
  return std::make_unique<RlpPolicy>(padding, settings.flag("survival", false));
}

}  // namespace kvasir
