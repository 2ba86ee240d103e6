// vLLM's priority scheduling (0.6): the lower value goes first, and may displace those that run. A request
// that waits ages; the ageing is ours.
#include <vector>

#include "base/clock.h"
#include "sched/batch_policy.h"
#include "sched/mechanisms/admit_prompts.h"
#include "sched/mechanisms/aged_priority.h"
#include "sched/mechanisms/chunk_prefills.h"
#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/mechanisms/make_room.h"
#include "sched/policy_settings.h"

namespace kvasir {
namespace {

// The step of `sarathi`: what goes by arrival there goes by aged priority here, chunks of prompts, too, and
// the first of the queue may displace those that run and come after it.
class PriorityPolicy final : public BatchPolicy {
 public:
  explicit PriorityPolicy(Nanos per_level) : per_level_(per_level) {}

 private:
  void plan_batch(const View& view, PlanBuilder& builder) override {
    auto running = by_rank(view.running, per_level_);
    RankQueue waiting(view.waiting, per_level_);
    const Displaced displaced = displace(view, waiting, running, builder);
    const auto rule = [](const SeqView&) { return Cause::kLowestPriority; };
    const bool preempted = decode_or_preempt(running, builder, PreemptBy::kRecompute, rule) > 0;
    // After a preemption the blocks given up are for the sequence that caused it.
    const bool admits = !preempted && displaced.count == 0;
    prefill(view, running, waiting, admits, displaced.by, builder);
  }

  std::vector<const SeqView*> in_order(const View& view) const override {
    return by_rank(view.running, per_level_);
  }

  struct Displaced {
    uint32_t count = 0;
    const SeqView* by = nullptr;  // admitted, and without rows yet
  };

  // Where the first of the queue cannot be admitted, those that run and come after it make room.
  Displaced displace(const View& view, const RankQueue& waiting, std::vector<const SeqView*>& running,
                     PlanBuilder& builder) const {
    if (waiting.empty() || running.empty()) return {};
    const RankedSeq& head = waiting.front();
    size_t first = running.size();  // of those that come after it
    while (first > 0 && head.rank < rank_of(*running[first - 1], per_level_)) --first;
    if (first == running.size()) return {};
    // The decodes before it need their blocks, too.
    uint32_t spare = admission_watermark(view);
    for (size_t i = 0; i < first; ++i) spare += wants_block(view, *running[i]) ? 1 : 0;
    Displaced out;
    out.count = make_room(view, *head.seq, running, first, spare, builder);
    if (out.count == 0) return out;
    running.resize(running.size() - out.count);
    // With a step in flight the room comes later, and it is admitted then.
    if (builder.admit(*head.seq, {builder.running_seqs() == 0 ? 0 : spare})) out.by = head.seq;
    return out;
  }

  // Chunks in the order of the ranks, of those that run and of those that are admitted.
  void prefill(const View& view, const std::vector<const SeqView*>& running, RankQueue& waiting, bool admits,
               const SeqView* admitted, PlanBuilder& builder) const {
    const uint32_t threshold = view.limits.long_prefill_token_threshold;
    const uint32_t watermark = admission_watermark(view);
    const auto join_those_before = [&](const Rank* bound) {
      while (!waiting.empty() && (!bound || waiting.front().rank < *bound)) {
        const SeqView& next = *waiting.front().seq;
        if (&next == admitted) {
          const uint32_t room = chunk_room(view, builder, threshold);
          if (room > 0) builder.prefill(next, room);
          admitted = nullptr;
        } else if (!admits || !admit_chunk(view, next, threshold, watermark, builder)) {
          admits = false;
          return;
        }
        waiting.pop();
      }
    };
    for (const SeqView* seq : running) {
      if (seq->decoding() || builder.preempted(seq->id)) continue;
      const Rank rank = rank_of(*seq, per_level_);
      join_those_before(&rank);
      const uint32_t room = chunk_room(view, builder, threshold);
      if (room > 0) builder.prefill(*seq, room);
    }
    join_those_before(nullptr);
  }

  const Nanos per_level_;
};

}  // namespace

std::unique_ptr<BatchPolicy> make_priority(PolicySettings& settings) {
  // Without ageing (0) the order is strict, and a request of a high value may starve.
  const double ageing = settings.number("ageing", kAgeingSeconds, 0, 3600);
  return std::make_unique<PriorityPolicy>(from_seconds(ageing));
}

}  // namespace kvasir
