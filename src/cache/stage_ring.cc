#include "cache/stage_ring.h"

#include "base/check.h"

namespace kvasir {

StageRing::StageRing(const CacheGeometry& geometry, uint64_t offset, uint32_t slots)
    : offset_(offset),
      plane_bytes_(geometry.layer_plane_bytes()),
      slot_bytes_(geometry.largest_piece_bytes()),
      used_(slots) {}

void StageRing::begin_step() {
  for (Use& use : used_) use.until = kStepBegins;
}

StageRing::Slot StageRing::take(uint32_t layer) {
  KV_CHECK(!used_.empty(), "layer={}: there is no stage ring", layer);
  Slot slot;
  slot.index = next_;
  slot.at.k = offset_ + slot_bytes_ * next_;
  slot.at.v = slot.at.k + plane_bytes_;
  slot.free_from = used_[next_].until;
  slot.after = used_[next_].transfer;
  KV_CHECK(slot.free_from <= layer_written(layer), "layer={}: the ring of {} slots is taken", layer,
           used_.size());
  used_[next_].until = layer_attended(layer);
  next_ = next_ + 1 == slots() ? 0 : next_ + 1;
  return slot;
}

}  // namespace kvasir
