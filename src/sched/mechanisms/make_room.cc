#include "sched/mechanisms/make_room.h"

#include <algorithm>
#include <cmath>

namespace kvasir {
namespace {

// Cells that an admission takes of those that no sequence holds.
int64_t cells_needed(const View& view, const SeqView& head) {
  const uint32_t has = head.cached_in_use() + head.kv_cells(Tier::kDevice) + head.promised(Tier::kDevice);
  const uint32_t all = view.geometry.most_cells(view.geometry.blocks_for(head.known_tokens));
  return all - std::min(all, has);
}

}  // namespace

uint32_t make_room(const View& view, const SeqView& head, const std::vector<const SeqView*>& running,
                   size_t first, uint32_t spare_blocks, PlanBuilder& builder) {
  // One that streams needs little of the device, and preempting does not free what it needs.
  if (head.stalled || head.tail_busy || builder.kv_placement(head).streams) return 0;
  const int64_t groups = view.geometry.groups();
  const auto room = [&] { return (builder.available_blocks() + builder.coming_blocks()) * groups; };
  const int64_t needed = cells_needed(view, head);
  const int64_t wanted = needed + spare_blocks * groups;
  const auto enough = [&] { return room() >= wanted && builder.running_seqs() < view.limits.max_num_seqs; };
  if (enough()) return 0;
  int64_t most = room();
  for (size_t i = first; i < running.size(); ++i) {
    most += running[i]->own_kv_cells(Tier::kDevice) + running[i]->promised(Tier::kDevice);
  }
  if (first >= running.size() || most < wanted) return 0;
  uint32_t preempted = 0;
  for (size_t end = running.size(); end > first && !enough(); --end) {
    // Of memory, where that is missing, too. Where all that it needs is there, it is what others are to keep.
    const double blocks = std::ceil(static_cast<double>(needed) / static_cast<double>(groups));
    const bool memory = room() < wanted;
    if (!memory || needed > 0) {
      builder.because({Cause::kLowestPriority, running[end - 1]->id, head.id, memory ? blocks : 0});
    }
    builder.preempt_and_drop(*running[end - 1]);
    ++preempted;
  }
  return preempted;
}

}  // namespace kvasir
