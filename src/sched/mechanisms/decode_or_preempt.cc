#include "sched/mechanisms/decode_or_preempt.h"

#include <algorithm>
#include <tuple>

namespace kvasir {

std::vector<const SeqView*> by_arrival(const std::vector<SeqView>& sequences) {
  std::vector<const SeqView*> out;
  out.reserve(sequences.size());
  for (const SeqView& s : sequences) out.push_back(&s);
  std::sort(out.begin(), out.end(), [](const SeqView* a, const SeqView* b) {
    return std::tuple(a->arrival, raw(a->id)) < std::tuple(b->arrival, raw(b->id));
  });
  return out;
}

uint32_t blocks_wanted(const View& view) {
  uint32_t wanted = 0;
  for (const SeqView& s : view.running) {
    if (s.decoding() && view.geometry.blocks_for(s.known_tokens) >
                            s.blocks + s.promised(Tier::kDevice) / view.geometry.groups())
      ++wanted;
  }
  return wanted;
}

uint32_t decode_or_preempt(const std::vector<const SeqView*>& running, PlanBuilder& builder, PreemptBy by) {
  uint32_t preempted = 0;
  int64_t awaited = 0;          // blocks, of those that come when the steps in flight end
  size_t end = running.size();  // those from here on are preempted
  for (size_t i = 0; i < end; ++i) {
    if (!running[i]->decoding() || !builder.can_run(*running[i])) continue;
    while (i < end && !builder.decode(*running[i])) {
      if (builder.coming_blocks() > awaited) {
        ++awaited;
        break;
      }
      if (end == 1) break;
      const SeqView& last = *running[--end];
      if (by != PreemptBy::kSwap || !builder.preempt_and_offload(last)) builder.preempt_and_drop(last);
      ++preempted;
    }
  }
  return preempted;
}

}  // namespace kvasir
