// S^3 (Jin et al., NeurIPS 2023): room for the upper end of the predicted bucket, packed the largest first; a
// request that needs more is swapped out and asks for twice as much.
#include <algorithm>
#include <utility>
#include <vector>

#include "sched/batch_policy.h"
#include "sched/mechanisms/admit_by_demand.h"
#include "sched/mechanisms/rest_of_output.h"
#include "sched/policy_settings.h"

namespace kvasir {
namespace {

// Decreasing first fit: of the requests that wait, the one that needs most and fits. Where there is no slower
// tier, a request that has overrun its room is recomputed.
class S3Policy final : public BatchPolicy {
 public:
  // bucket: tokens of output.
  S3Policy(uint32_t bucket, bool survival) : bucket_(bucket), survival_(survival) {}

 private:
  void plan_batch(const View& view, PlanBuilder& builder) override {
    if (survival_) rest_.observe(view);
    for (const SeqView* seq : overrun(view, builder)) {
      builder.because(outgrew(view, *seq));
      if (!builder.preempt_and_offload(*seq)) builder.preempt_and_drop(*seq);
    }
    admit_or_go_on(
        view, {largest_first(view), [this](const SeqView& seq) { return demand(seq); }, /*first_fit=*/true},
        builder);
  }

  // Twice as much each time that it was not enough.
  uint32_t demand(const SeqView& seq) const {
    const uint32_t expected = survival_ ? rest_.output(seq) : seq.predicted.output_tokens;
    const uint32_t buckets = std::max(1u, (expected + bucket_ - 1) / bucket_);
    const uint64_t generated = seq.known_tokens - std::min(seq.known_tokens, seq.prompt_tokens);
    uint64_t output = uint64_t{buckets} * bucket_;
    while (output <= generated) output *= 2;
    return static_cast<uint32_t>(std::min<uint64_t>(seq.max_total_tokens, seq.prompt_tokens + output));
  }

  std::vector<const SeqView*> largest_first(const View& view) const {
    std::vector<std::pair<uint32_t, const SeqView*>> by_demand;
    by_demand.reserve(view.waiting.size());
    for (const SeqView& seq : view.waiting) by_demand.emplace_back(demand(seq), &seq);
    std::stable_sort(by_demand.begin(), by_demand.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    std::vector<const SeqView*> out;
    out.reserve(by_demand.size());
    for (const auto& [tokens, seq] : by_demand) out.push_back(seq);
    return out;
  }

  const uint32_t bucket_;
  const bool survival_;  // lengths are conditioned on it; else the prediction
  RestOfOutput rest_;    // a cache
};

}  // namespace

std::unique_ptr<BatchPolicy> make_s3(PolicySettings& settings) {
  const uint32_t bucket = settings.whole("bucket", 50, 1, 100'000);
  return std::make_unique<S3Policy>(bucket, settings.flag("survival", false));
}

}  // namespace kvasir
