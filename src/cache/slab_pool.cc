#include "cache/slab_pool.h"

#include <bit>

#include "base/check.h"

namespace kvasir {

SlabPool::SlabPool(uint64_t capacity_bytes, uint64_t slab_bytes, std::span<const uint64_t> frame_bytes)
    : slab_bytes_(slab_bytes) {
  KV_CHECK(slab_bytes > 0, "slab_bytes={}", slab_bytes);
  slabs_.resize(capacity_bytes / slab_bytes);
  for (uint32_t i = 0; i < slabs_.size(); ++i) empty_.insert(empty_.end(), i);
  for (uint64_t bytes : frame_bytes) {
    KV_CHECK(bytes > 0 && bytes <= slab_bytes && slab_bytes / bytes <= 64, "frame={} slab={}", bytes,
             slab_bytes);
    Class c;
    c.frame_bytes = bytes;
    c.per_slab = static_cast<uint32_t>(slab_bytes / bytes);
    classes_.push_back(std::move(c));
  }
}

std::optional<uint64_t> SlabPool::allocate(size_t frame_class) {
  Class& c = classes_[frame_class];
  uint32_t index = 0;
  if (!c.partial.empty()) {
    index = *c.partial.begin();
  } else if (!empty_.empty()) {
    index = *empty_.begin();
    empty_.erase(empty_.begin());
    slabs_[index].frame_class = frame_class;
    c.free += c.per_slab;
    c.partial.insert(index);
  } else {
    return std::nullopt;
  }
  Slab& slab = slabs_[index];
  const auto frame = static_cast<uint32_t>(std::countr_one(slab.used));
  slab.used |= uint64_t{1} << frame;
  --c.free;
  ++c.used;
  if (static_cast<uint32_t>(std::popcount(slab.used)) == c.per_slab) c.partial.erase(index);
  return index * slab_bytes_ + frame * c.frame_bytes;
}

void SlabPool::release(size_t frame_class, uint64_t offset) {
  Class& c = classes_[frame_class];
  const auto index = static_cast<uint32_t>(offset / slab_bytes_);
  const auto frame = static_cast<uint32_t>(offset % slab_bytes_ / c.frame_bytes);
  KV_CHECK(index < slabs_.size() && frame < c.per_slab && offset % slab_bytes_ % c.frame_bytes == 0,
           "offset={}", offset);
  Slab& slab = slabs_[index];
  KV_CHECK(slab.frame_class == frame_class && (slab.used >> frame & 1), "class={} offset={}: not allocated",
           frame_class, offset);
  slab.used &= ~(uint64_t{1} << frame);
  ++c.free;
  --c.used;
  if (slab.used == 0) {
    slab.frame_class = kEmpty;
    c.free -= c.per_slab;
    c.partial.erase(index);
    empty_.insert(index);
  } else {
    c.partial.insert(index);
  }
}

Status SlabPool::check_integrity() const {
  std::vector<uint32_t> free(classes_.size()), used(classes_.size());
  for (uint32_t i = 0; i < slabs_.size(); ++i) {
    const Slab& slab = slabs_[i];
    const bool listed_empty = empty_.contains(i);
    if (listed_empty != (slab.frame_class == kEmpty) || listed_empty != (slab.used == 0)) {
      return error(ErrorCode::kCorrupt, "slab {}: class and use disagree", i);
    }
    if (listed_empty) continue;
    const Class& c = classes_[slab.frame_class];
    const auto taken = static_cast<uint32_t>(std::popcount(slab.used));
    if (taken > c.per_slab || c.partial.contains(i) != (taken < c.per_slab)) {
      return error(ErrorCode::kCorrupt, "slab {}: {} of {} frames taken, listed wrongly", i, taken,
                   c.per_slab);
    }
    used[slab.frame_class] += taken;
    free[slab.frame_class] += c.per_slab - taken;
  }
  for (size_t k = 0; k < classes_.size(); ++k) {
    if (used[k] != classes_[k].used || free[k] != classes_[k].free) {
      return error(ErrorCode::kCorrupt, "class {}: {} used and {} free frames, counted {} and {}", k, used[k],
                   free[k], classes_[k].used, classes_[k].free);
    }
  }
  return {};
}

}  // namespace kvasir
