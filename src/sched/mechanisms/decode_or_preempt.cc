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
    if (s.decoding() && view.geometry.blocks_for(s.known_tokens) > s.device_blocks + s.promised_blocks)
      ++wanted;
  }
  return wanted;
}

uint32_t decode_or_preempt(const std::vector<const SeqView*>& running, PlanBuilder& builder) {
  uint32_t preempted = 0;
  int64_t awaited = 0;          // blocks, of those that come when the steps in flight end
  size_t end = running.size();  // those from here on are preempted
  for (size_t i = 0; i < end; ++i) {
    if (!running[i]->decoding()) continue;
    while (i < end && !builder.decode(*running[i])) {
      if (builder.coming_blocks() > awaited) {
        ++awaited;
        break;
      }
      if (end == 1) break;
      builder.preempt_and_drop(*running[--end]);
      ++preempted;
    }
  }
  return preempted;
}

}  // namespace kvasir
