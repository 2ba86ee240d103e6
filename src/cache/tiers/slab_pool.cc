#include "cache/tiers/slab_pool.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/units.h"

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

void SlabPool::carve(uint32_t index, size_t frame_class, uint32_t frames) {
  Slab& slab = slabs_[index];
  Class& c = classes_[frame_class];
  if (c.per_slab == 1 && frames == 1) {
    slab.frame_class = static_cast<uint32_t>(frame_class);
    slab.used = 1;
    --spare_;
    ++c.used;
    return;
  }
  count(index, -1);
  slab.frame_class = static_cast<uint32_t>(frame_class);
  slab.used = frames == 0 ? 0 : ~uint64_t{0} >> (64 - frames);
  count(index, 1);
}

std::optional<uint64_t> SlabPool::allocate(size_t frame_class, std::optional<uint64_t> previous) {
  uint64_t offset = 0;
  if (allocate(frame_class, previous, {&offset, 1}) == 0) return std::nullopt;
  return offset;
}

size_t SlabPool::allocate(size_t frame_class, std::optional<uint64_t> previous, std::span<uint64_t> offsets) {
  const Class& c = classes_[frame_class];
  KV_CHECK(c.per_slab > 0, "class={}", frame_class);
  size_t n = 0;
  const auto take_lowest = [&](uint32_t index) {
    previous = offsets[n++] = take(index, static_cast<uint32_t>(std::countr_one(slabs_[index].used)));
  };
  while (n < offsets.size()) {
    std::optional<uint64_t> slab_before;
    if (previous) {
      const auto index = static_cast<uint32_t>(*previous / slab_bytes_);
      const auto next = static_cast<uint32_t>(*previous % slab_bytes_ / c.frame_bytes) + 1;
      const Slab& slab = slabs_[index];
      if (slab.frame_class == frame_class && slab.needed() != 0 && next < c.per_slab &&
          (slab.used >> next & 1) == 0) {
        previous = offsets[n++] = take(index, next);
        continue;
      }
      slab_before = index * slab_bytes_;
    }
    if (!c.partial.empty()) {
      take_lowest(*c.partial.begin());
      continue;
    }
    if (!c.partial_spare.empty()) {
      take_lowest(*c.partial_spare.begin());
      return n;
    }
    const auto left = static_cast<uint32_t>(offsets.size() - n);
    const ExtentPool::Run run = empty_.allocate(slab_before, ceil_div(left, c.per_slab));
    if (run.units == 0) return n;
    const auto first = static_cast<uint32_t>(run.offset / slab_bytes_);
    for (uint32_t i = 0; i < run.units; ++i) {
      const auto frames = static_cast<uint32_t>(std::min<size_t>(c.per_slab, offsets.size() - n));
      carve(first + i, frame_class, frames);
      for (uint32_t f = 0; f < frames; ++f) offsets[n++] = (first + i) * slab_bytes_ + f * c.frame_bytes;
    }
    previous = offsets[n - 1];
  }
  return n;
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
    carve(static_cast<uint32_t>(index), frame_class, 0);
  }
  if (slab.frame_class != frame_class || (slab.used >> frame & 1) != 0) return false;
  take(static_cast<uint32_t>(index), frame);
  return true;
}

SlabPool::Frame SlabPool::frame_at(size_t frame_class, uint64_t offset, Frame before) const {
  const Class& c = classes_[frame_class];
  Frame frame;
  if (offset == before.end && c.per_slab == 1) {  // most runs are of neighbours, and dividing is slow
    frame.slab = before.slab + 1;
  } else {
    frame.slab = static_cast<uint32_t>(offset / slab_bytes_);
    const uint64_t within = offset % slab_bytes_;
    frame.number = c.per_slab == 0 ? 0 : static_cast<uint32_t>(within / c.frame_bytes);
    KV_CHECK(frame.number < c.per_slab && within == frame.number * c.frame_bytes, "offset={}", offset);
  }
  KV_CHECK(frame.slab < slabs_.size(), "offset={}", offset);
  frame.end = offset + slab_bytes_;
  const Slab& slab = slabs_[frame.slab];
  KV_CHECK(slab.frame_class == frame_class && (slab.used >> frame.number & 1) != 0,
           "class={} offset={}: not allocated", frame_class, offset);
  return frame;
}

void SlabPool::release(size_t frame_class, std::span<const uint64_t> offsets) {
  Class& c = classes_[frame_class];
  uint32_t first = 0, emptied = 0;  // a run of slabs
  Frame frame;
  for (uint64_t offset : offsets) {
    frame = frame_at(frame_class, offset, frame);
    Slab& slab = slabs_[frame.slab];
    const uint64_t bit = uint64_t{1} << frame.number;
    if (c.per_slab == 1) {
      c.idle -= static_cast<uint32_t>(slab.idle);
      spare_ += slab.idle == 0 ? 1 : 0;
      --c.used;
      slab.used = slab.idle = 0;
      slab.frame_class = kEmpty;
    } else {
      count(frame.slab, -1);
      slab.used &= ~bit;
      slab.idle &= ~bit;
      if (slab.used == 0) slab.frame_class = kEmpty;
      count(frame.slab, 1);
    }
    if (slab.used != 0) continue;
    if (frame.slab != first + emptied) {
      give_back(first, emptied);
      first = frame.slab;
      emptied = 0;
    }
    ++emptied;
  }
  give_back(first, emptied);
}

void SlabPool::give_back(uint32_t first, uint32_t slabs) {
  if (slabs == 0) return;
  empty_.release(first * slab_bytes_, slabs);
  for (uint32_t i = first; i < first + slabs; ++i) {
    if (slabs_[i].closed) depart(i);
  }
}

void SlabPool::set_idle(size_t frame_class, std::span<const uint64_t> offsets, bool idle) {
  Class& c = classes_[frame_class];
  Frame frame;
  for (uint64_t offset : offsets) {
    frame = frame_at(frame_class, offset, frame);
    Slab& slab = slabs_[frame.slab];
    const uint64_t bit = uint64_t{1} << frame.number;
    if (((slab.idle & bit) != 0) == idle) continue;
    if (c.per_slab == 1) {
      const uint32_t more = idle ? 1 : -1u;
      slab.idle = idle ? 1 : 0;
      spare_ += more;
      c.idle += more;
      continue;
    }
    count(frame.slab, -1);
    slab.idle ^= bit;
    count(frame.slab, 1);
  }
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
