#include "sched/mechanisms/decode_or_preempt.h"

#include <algorithm>
#include <tuple>

#include "sched/mechanisms/refused.h"

namespace kvasir {

std::vector<const SeqView*> by_arrival(const std::vector<SeqView>& sequences) {
  std::vector<const SeqView*> out;
  out.reserve(sequences.size());
  for (const SeqView& s : sequences) out.push_back(&s);
  const auto earlier = [](const SeqView* a, const SeqView* b) {
    return std::tuple(a->arrival, raw(a->id)) < std::tuple(b->arrival, raw(b->id));
  };
  // With first come, first served they are in this order already.
  if (!std::is_sorted(out.begin(), out.end(), earlier)) std::sort(out.begin(), out.end(), earlier);
  return out;
}

bool wants_block(const View& view, const SeqView& seq) {
  const uint32_t has = seq.blocks + seq.promised(Tier::kDevice) / view.geometry.groups();
  return seq.decoding() && view.geometry.blocks_for(seq.known_tokens) > has;
}

uint32_t blocks_wanted(const View& view) {
  return static_cast<uint32_t>(std::count_if(view.running.begin(), view.running.end(),
                                             [&](const SeqView& s) { return wants_block(view, s); }));
}

uint32_t blocks_wanted(const View& view, const PlanBuilder& builder) {
  return static_cast<uint32_t>(std::count_if(view.running.begin(), view.running.end(), [&](const SeqView& s) {
    return wants_block(view, s) && !builder.has_rows(s.id) && !builder.preempted(s.id);
  }));
}

uint32_t decode_or_preempt(const std::vector<const SeqView*>& running, PlanBuilder& builder, PreemptBy by,
                           const VictimRule& rule) {
  const auto preempt = [&](const SeqView& seq, const SeqView& other) {
    builder.because(preempted_for_token(rule ? rule(seq) : Cause::kArrivedLast, seq, other));
    if (by != PreemptBy::kSwap || !builder.preempt_and_offload(seq)) builder.preempt_and_drop(seq);
  };
  return decode_or_preempt(running, builder, preempt,
                           [&](const SeqView& seq) { return builder.decode(seq); });
}

uint32_t decode_or_preempt(const std::vector<const SeqView*>& running, PlanBuilder& builder,
                           const Preempt& preempt, const std::function<bool(const SeqView&)>& decode) {
  uint32_t preempted = 0;
  int64_t awaited = 0;          // blocks, of those that come when the steps in flight end
  size_t end = running.size();  // those from here on are preempted
  for (size_t i = 0; i < end; ++i) {
    if (!running[i]->decoding() || !builder.can_run(*running[i])) continue;
    while (i < end && !decode(*running[i])) {
      if (builder.coming_blocks() > awaited) {
        say_no_free_block(*running[i], builder);
        ++awaited;
        break;
      }
      if (end == 1 || !builder.can_stop(*running[end - 1])) break;
      preempt(*running[--end], *running[i]);
      ++preempted;
    }
  }
  return preempted;
}

}  // namespace kvasir
