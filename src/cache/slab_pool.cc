#include "cache/slab_pool.h"

#include <bit>

#include "base/check.h"

namespace kvasir {
namespace {

uint32_t count_bits(uint64_t mask) {
  return static_cast<uint32_t>(std::popcount(mask));
}

}  // namespace

SlabPool::SlabPool(uint64_t capacity_bytes, uint64_t slab_bytes, std::span<const uint64_t> frame_bytes)
    : slab_bytes_(slab_bytes), empty_(capacity_bytes, slab_bytes) {
  slabs_.resize(empty_.units());
  spare_ = capacity();
  for (uint64_t bytes : frame_bytes) {
    KV_CHECK(bytes <= slab_bytes && (bytes == 0 || slab_bytes / bytes <= 64), "frame={} slab={}", bytes,
             slab_bytes);
    Class c;
    c.frame_bytes = bytes;
    c.per_slab = bytes == 0 ? 0 : static_cast<uint32_t>(slab_bytes / bytes);
    classes_.push_back(std::move(c));
  }
}

void SlabPool::count(uint32_t index, int sign) {
  const Slab& slab = slabs_[index];
  if (slab.frame_class == kEmpty) {
    spare_ += static_cast<uint32_t>(sign);
    return;
  }
  Class& c = classes_[slab.frame_class];
  const uint32_t free = c.per_slab - count_bits(slab.used);
  const bool spare = slab.needed() == 0;
  const auto add = [sign](uint32_t& sum, uint32_t n) { sum += static_cast<uint32_t>(sign) * n; };
  add(c.used, count_bits(slab.used));
  add(c.idle, count_bits(slab.idle));
  add(spare_, spare ? 1 : 0);
  add(c.loose_free, spare ? 0 : free);
  add(c.loose_idle, spare ? 0 : count_bits(slab.idle));
  if (free == 0) return;
  std::set<uint32_t>& list = spare ? c.partial_spare : c.partial;
  if (sign > 0) {
    list.insert(index);
  } else {
    list.erase(index);
  }
}

void SlabPool::open(uint32_t index) {
  Slab& slab = slabs_[index];
  KV_CHECK(slab.absent, "slab={} is there", index);
  slab.absent = false;
  empty_.release(index * slab_bytes_);
  ++spare_;
  --absent_;
}

void SlabPool::close(uint32_t index) {
  Slab& slab = slabs_[index];
  KV_CHECK(!slab.absent && !slab.closed, "slab={} absent={}", index, slab.absent);
  slab.closed = true;
  if (slab.frame_class == kEmpty) depart(index);
}

void SlabPool::keep(uint32_t index) {
  slabs_[index].closed = false;
}

void SlabPool::depart(uint32_t index) {
  KV_CHECK(empty_.claim(index * slab_bytes_), "slab={}", index);
  slabs_[index].absent = true;
  slabs_[index].closed = false;
  --spare_;
  ++absent_;
  departed_.push_back(index);
}

uint64_t SlabPool::take(uint32_t index, uint32_t frame) {
  count(index, -1);
  slabs_[index].used |= uint64_t{1} << frame;
  count(index, 1);
  return index * slab_bytes_ + frame * classes_[slabs_[index].frame_class].frame_bytes;
}

void SlabPool::carve(uint32_t index, size_t frame_class) {
  count(index, -1);
  slabs_[index].frame_class = frame_class;
  count(index, 1);
}

std::optional<uint64_t> SlabPool::allocate(size_t frame_class, std::optional<uint64_t> previous) {
  const Class& c = classes_[frame_class];
  KV_CHECK(c.per_slab > 0, "class={}", frame_class);
  std::optional<uint64_t> slab_before;
  if (previous) {
    const auto index = static_cast<uint32_t>(*previous / slab_bytes_);
    const auto next = static_cast<uint32_t>(*previous % slab_bytes_ / c.frame_bytes) + 1;
    const Slab& slab = slabs_[index];
    if (slab.frame_class == frame_class && slab.needed() != 0 && next < c.per_slab &&
        (slab.used >> next & 1) == 0) {
      return take(index, next);
    }
    slab_before = index * slab_bytes_;
  }
  for (const std::set<uint32_t>* list : {&c.partial, &c.partial_spare}) {
    if (list->empty()) continue;
    const uint32_t index = *list->begin();
    return take(index, static_cast<uint32_t>(std::countr_one(slabs_[index].used)));
  }
  const std::optional<uint64_t> slab = empty_.allocate(slab_before);
  if (!slab) return std::nullopt;
  const auto index = static_cast<uint32_t>(*slab / slab_bytes_);
  carve(index, frame_class);
  return take(index, 0);
}

bool SlabPool::claim(size_t frame_class, uint64_t offset) {
  const Class& c = classes_[frame_class];
  const uint64_t index = offset / slab_bytes_;
  if (index >= slabs_.size() || c.per_slab == 0 || offset % slab_bytes_ % c.frame_bytes != 0) return false;
  const auto frame = static_cast<uint32_t>(offset % slab_bytes_ / c.frame_bytes);
  Slab& slab = slabs_[index];
  if (frame >= c.per_slab) return false;
  if (slab.absent) return false;
  if (slab.frame_class == kEmpty) {
    KV_CHECK(empty_.claim(index * slab_bytes_), "slab={}", index);
    carve(static_cast<uint32_t>(index), frame_class);
  }
  if (slab.frame_class != frame_class || (slab.used >> frame & 1) != 0) return false;
  take(static_cast<uint32_t>(index), frame);
  return true;
}

void SlabPool::release(size_t frame_class, uint64_t offset) {
  const Class& c = classes_[frame_class];
  const auto index = static_cast<uint32_t>(offset / slab_bytes_);
  const auto frame = static_cast<uint32_t>(offset % slab_bytes_ / c.frame_bytes);
  KV_CHECK(index < slabs_.size() && frame < c.per_slab && offset % slab_bytes_ % c.frame_bytes == 0,
           "offset={}", offset);
  Slab& slab = slabs_[index];
  const uint64_t bit = uint64_t{1} << frame;
  KV_CHECK(slab.frame_class == frame_class && (slab.used & bit) != 0, "class={} offset={}: not allocated",
           frame_class, offset);
  count(index, -1);
  slab.used &= ~bit;
  slab.idle &= ~bit;
  if (slab.used == 0) {
    slab.frame_class = kEmpty;
    empty_.release(index * slab_bytes_);
  }
  count(index, 1);
  if (slab.used == 0 && slab.closed) depart(index);
}

void SlabPool::set_idle(size_t frame_class, uint64_t offset, bool idle) {
  const auto index = static_cast<uint32_t>(offset / slab_bytes_);
  Slab& slab = slabs_[index];
  const uint64_t bit = uint64_t{1} << (offset % slab_bytes_ / classes_[frame_class].frame_bytes);
  KV_CHECK(slab.frame_class == frame_class && (slab.used & bit) != 0, "class={} offset={}: not allocated",
           frame_class, offset);
  count(index, -1);
  slab.idle = idle ? slab.idle | bit : slab.idle & ~bit;
  count(index, 1);
}

Status SlabPool::check_integrity() const {
  KV_RETURN_IF_ERROR(empty_.check_integrity());
  std::vector<Class> counted(classes_.size());
  uint32_t spare = 0;
  uint32_t empty = 0;
  uint32_t absent = 0;
  for (uint32_t i = 0; i < slabs_.size(); ++i) {
    const Slab& slab = slabs_[i];
    if (slab.absent) {
      if (slab.frame_class != kEmpty || slab.closed)
        return error(ErrorCode::kCorrupt, "slab {} is absent and in use", i);
      ++absent;
      continue;
    }
    if (slab.needed() == 0) ++spare;
    if ((slab.frame_class == kEmpty) != (slab.used == 0) || (slab.idle & ~slab.used) != 0) {
      return error(ErrorCode::kCorrupt, "slab {}: class and use disagree", i);
    }
    if (slab.frame_class == kEmpty) {
      ++empty;
      continue;
    }
    const Class& c = classes_[slab.frame_class];
    Class& sum = counted[slab.frame_class];
    const uint32_t taken = count_bits(slab.used);
    const bool loose = slab.needed() != 0;
    if (taken > c.per_slab || c.partial.contains(i) != (loose && taken < c.per_slab) ||
        c.partial_spare.contains(i) != (!loose && taken < c.per_slab)) {
      return error(ErrorCode::kCorrupt, "slab {}: {} of {} frames taken, listed wrongly", i, taken,
                   c.per_slab);
    }
    sum.used += taken;
    sum.idle += count_bits(slab.idle);
    sum.loose_free += loose ? c.per_slab - taken : 0;
    sum.loose_idle += loose ? count_bits(slab.idle) : 0;
  }
  if (absent != absent_)
    return error(ErrorCode::kCorrupt, "{} slabs are absent, counted {}", absent, absent_);
  if (spare != spare_ || empty != empty_slabs()) {
    return error(ErrorCode::kCorrupt, "{} spare and {} empty slabs, counted {} and {}", spare, empty, spare_,
                 empty_slabs());
  }
  for (size_t k = 0; k < classes_.size(); ++k) {
    const Class& a = classes_[k];
    const Class& b = counted[k];
    if (a.used != b.used || a.idle != b.idle || a.loose_free != b.loose_free ||
        a.loose_idle != b.loose_idle) {
      return error(ErrorCode::kCorrupt, "class {}: frames are counted wrongly", k);
    }
  }
  return {};
}

}  // namespace kvasir
