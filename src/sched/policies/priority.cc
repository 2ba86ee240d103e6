#include "sched/policies/priority.h"

#include <vector>

#include "base/check.h"
#include "contract/plan_builder.h"
#include "sched/mechanisms/admit_prompts.h"
#include "sched/mechanisms/aged_priority.h"
#include "sched/mechanisms/break_standstill.h"
#include "sched/mechanisms/chunk_prefills.h"
#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/mechanisms/make_room.h"
#include "sched/mechanisms/turn_alone.h"

namespace kvasir {
namespace {

// vLLM's priority scheduling over the step of `sarathi`: what goes by arrival there goes by aged priority
// here, chunks of prompts too, and the first of the queue may displace those that run and come after it.
class PriorityPolicy final : public Policy {
 public:
  explicit PriorityPolicy(Nanos per_level) : per_level_(per_level) {}

  StepPlan plan(const View& view) override {
    PlanBuilder builder(view);
    if (take_turn_alone(view, builder)) return builder.take();
    auto running = by_rank(view.running, per_level_);
    RankQueue waiting(view.waiting, per_level_);
    const Displaced displaced = displace(view, waiting, running, builder);
    const bool preempted = decode_or_preempt(running, builder) > 0;
    // After a preemption the blocks given up are for who caused it.
    const bool admits = !preempted && displaced.count == 0;
    prefill(view, running, waiting, admits, displaced.by, builder);
    break_standstill(view, running, builder);
    return builder.take();
  }

 private:
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

std::unique_ptr<Policy> make_priority_policy(Nanos per_level) {
  KV_CHECK(per_level >= 0 && per_level <= 3600 * kNanosPerSecond, "per_level={}", per_level);
  return std::make_unique<PriorityPolicy>(per_level);
}

}  // namespace kvasir
