#include "sched/mechanisms/refused.h"

#include <algorithm>

namespace kvasir {

uint32_t blocks_missing(const View& view, const SeqView& seq, uint32_t tokens) {
  const uint32_t all = view.geometry.blocks_for(tokens);
  const uint32_t has = seq.resident_blocks + seq.cached_resident_cells / view.geometry.groups();
  return all - std::min(all, has);
}

bool refused(const View& view, const SeqView& seq, const AdmitOptions& options, PlanBuilder& builder) {
  if (builder.running_seqs() >= view.limits.max_num_seqs) {
    builder.because({Cause::kNoPlace, seq.id, {}, static_cast<double>(builder.running_seqs())});
    return false;
  }
  const uint32_t needs = blocks_missing(view, seq, std::max(seq.known_tokens, options.total_tokens));
  const int64_t room = std::max<int64_t>(0, builder.available_blocks() - options.spare_blocks);
  if (options.kv || room >= needs) return false;
  builder.because({Cause::kNoMemory, seq.id, {}, static_cast<double>(needs), static_cast<double>(room)});
  return false;
}

void say_no_free_block(const SeqView& seq, PlanBuilder& builder) {
  if (builder.kv_placement(seq).streams || builder.available_blocks() > 0) return;
  const auto coming = static_cast<double>(std::max<int64_t>(0, builder.coming_blocks()));
  builder.because({Cause::kNoFreeBlock, seq.id, {}, 1, coming});
}

}  // namespace kvasir
