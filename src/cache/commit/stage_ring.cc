#include "cache/commit/stage_ring.h"

#include <algorithm>

#include "base/check.h"

namespace kvasir {

StageRing::StageRing(const CacheGeometry& geometry, uint64_t offset, uint32_t slots)
    : offset_(offset),
      v_offset_(geometry.v_offset()),
      slot_bytes_(geometry.largest_piece_bytes()),
      slots_(slots) {
  if (slots > 0) uses_.push_back({slots});
}

StageRing::Slots StageRing::take(uint32_t layer, uint32_t most) {
  KV_CHECK(slots_ > 0, "layer={}: there is no stage ring", layer);
  const Use oldest = uses_.front();
  KV_CHECK(oldest.until <= layer_written(layer), "layer={}: the ring of {} slots is taken", layer, slots_);
  Slots out;
  out.bytes = slot_bytes_;
  out.at.k = offset_ + slot_bytes_ * next_;
  out.at.v = out.at.k + v_offset_;
  out.free_from = oldest.until;
  out.after = oldest.transfer;
  const uint32_t at_most = std::min(most, slots_ - next_);
  while (out.count < at_most && !uses_.empty() && uses_.front().until == oldest.until &&
         uses_.front().transfer == oldest.transfer) {
    Use& use = uses_.front();
    const uint32_t taken = std::min(use.count, at_most - out.count);
    out.count += taken;
    use.count -= taken;
    if (use.count > 0) break;
    uses_.pop_front();
    ++first_use_;
  }
  next_ = next_ + out.count == slots_ ? 0 : next_ + out.count;
  out.use = first_use_ + uses_.size();
  // Rows may write them without a transfer of their own: then the last one still counts.
  uses_.push_back({out.count, layer_attended(layer), out.after});
  return out;
}

}  // namespace kvasir
