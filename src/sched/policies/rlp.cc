// Response length perception and sequence scheduling (Zheng et al., NeurIPS 2023), as CacheOpt compares with
// it: room for the predicted output and 100 tokens, and requests of similar length together.
#include <algorithm>
#include <string>
#include <vector>

#include "base/units.h"
#include "sched/batch_policy.h"
#include "sched/mechanisms/admit_by_demand.h"
#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/mechanisms/rest_of_output.h"
#include "sched/policy_settings.h"

namespace kvasir {
namespace {

// What its predictor was taught to round lengths up to.
constexpr uint32_t kBucketTokens = 50;

// Which request makes way for one that has used up its room: CacheOpt, Section 2.4.
enum class RlpVictim : uint8_t {
  kItself,   // as RLP has it
  kLatest,   // FCFS: the latest arrival
  kLongest,  // SRTF: the most output to come, as it was predicted
  kLeastKv,  // LKVO: the least KV memory in use
};

// A request keeps room for its prompt, the predicted output and a padding. One that needs more is preempted,
// to be recomputed when there is room for it as for a new one; or, with an order of victims, it gets that
// room of what is free, or of the first in the order, which may be itself. The first of the queue is admitted
// with those behind it whose lengths are the most like its own.
class RlpPolicy final : public BatchPolicy {
 public:
  RlpPolicy(uint32_t padding, RlpVictim victim, bool survival)
      : padding_(padding), victim_(victim), survival_(survival) {}

 private:
  void plan_batch(const View& view, PlanBuilder& builder) override {
    if (survival_) rest_.observe(view);
    if (victim_ == RlpVictim::kItself) {
      for (const SeqView* seq : overrun(view, builder)) {
        builder.because(outgrew(view, *seq));
        builder.preempt_and_drop(*seq);
      }
    } else {
      make_room_in_order(view, builder);
    }
    admit_or_go_on(
        view, {similar_first(view), [this](const SeqView& seq) { return demand(seq); }, /*first_fit=*/false},
        builder);
  }

  void make_room_in_order(const View& view, PlanBuilder& builder) const {
    const std::vector<const SeqView*> short_of_room = overrun(view, builder);
    if (short_of_room.empty()) return;
    const std::vector<const SeqView*> order = victims(view);
    const uint32_t groups = view.geometry.groups();
    for (const SeqView* seq : short_of_room) {
      if (builder.preempted(seq->id)) continue;
      const uint32_t all = view.geometry.most_cells(view.geometry.blocks_for(demand(*seq)));
      const uint32_t dead = seq->dead_cells(view.geometry);
      const uint32_t held = builder.blocks(*seq) * groups - dead + builder.promised(*seq);
      const uint32_t cells = all - std::min(all, held);
      for (const SeqView* victim : order) {
        if (builder.available_cells() + builder.coming_cells() >= cells) break;
        if (builder.preempted(victim->id) || !builder.can_stop(*victim)) continue;
        builder.because(why_preempted(*victim, *seq, ceil_div(cells, groups)));
        builder.preempt_and_drop(*victim);
        if (victim == seq) break;
      }
      if (!builder.preempted(seq->id)) builder.promise_own(*seq, cells);
    }
  }

  // The running sequences, the first to be preempted at the front; of equals the latest arrival.
  std::vector<const SeqView*> victims(const View& view) const {
    const auto first = [this](const SeqView& seq) -> int64_t {
      if (victim_ == RlpVictim::kLongest) return -int64_t{rest(seq)};
      if (victim_ == RlpVictim::kLeastKv) return seq.ready_tokens;
      return 0;
    };
    std::vector<const SeqView*> out = by_arrival(view.running);
    std::reverse(out.begin(), out.end());
    std::stable_sort(out.begin(), out.end(),
                     [&](const SeqView* a, const SeqView* b) { return first(*a) < first(*b); });
    return out;
  }
  Reason why_preempted(const SeqView& victim, const SeqView& other, double blocks) const {
    if (victim_ == RlpVictim::kLongest) {
      return {Cause::kMostLeft, victim.id, other.id, blocks, static_cast<double>(rest(victim))};
    }
    if (victim_ == RlpVictim::kLeastKv) {
      return {Cause::kLeastMemory, victim.id, other.id, blocks, static_cast<double>(victim.ready_tokens)};
    }
    return {Cause::kArrivedLast, victim.id, other.id, blocks};
  }
  uint32_t rest(const SeqView& seq) const {
    const uint32_t all = seq.prompt_tokens + output(seq);
    return all - std::min(all, seq.known_tokens);
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
  const RlpVictim victim_;
  const bool survival_;  // lengths are conditioned on it; else the prediction
  RestOfOutput rest_;    // a cache
};

}  // namespace

std::unique_ptr<BatchPolicy> make_rlp(PolicySettings& settings) {
  const uint32_t padding = settings.whole("padding", 100, 0, 100'000);
  const std::string word = settings.word("victim", "itself", {"itself", "fcfs", "srtf", "lkvo"});
  const RlpVictim victim = word == "fcfs"   ? RlpVictim::kLatest
                           : word == "srtf" ? RlpVictim::kLongest
                           : word == "lkvo" ? RlpVictim::kLeastKv
                                            : RlpVictim::kItself;
  return std::make_unique<RlpPolicy>(padding, victim, settings.flag("survival", false));
}

}  // namespace kvasir
