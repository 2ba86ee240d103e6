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
    if (c.per_slab > 1) frames_.resize(slabs_.size());
    classes_.push_back(std::move(c));
  }
  KV_CHECK(classes_.size() < kEmpty, "classes={}", classes_.size());
}

void SlabPool::set_frames(uint32_t index, FrameBits frames) {
  Slab& slab = slabs_[index];
  if (holds_one(slab)) {
    slab.idle = frames.idle != 0;
  } else {
    frames_[index] = frames;
  }
  if (frames.used == 0) slab.frame_class = kEmpty;
}

void SlabPool::count(uint32_t index, int sign) {
  const uint8_t frame_class = slabs_[index].frame_class;
  if (frame_class == kEmpty) {
    spare_ += static_cast<uint32_t>(sign);
    return;
  }
  const FrameBits frames = frames_in(index);
  Class& c = classes_[frame_class];
  const uint32_t free = c.per_slab - count_bits(frames.used);
  const bool spare = frames.needed() == 0;
  const auto add = [sign](uint32_t& sum, uint32_t n) { sum += static_cast<uint32_t>(sign) * n; };
  add(c.used, count_bits(frames.used));
  add(c.idle, count_bits(frames.idle));
  add(spare_, spare ? 1 : 0);
  add(c.loose_free, spare ? 0 : free);
  add(c.loose_idle, spare ? 0 : count_bits(frames.idle));
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
  const FrameBits frames = frames_in(index);
  set_frames(index, {frames.used | uint64_t{1} << frame, frames.idle});
  count(index, 1);
  return index * slab_bytes_ + frame * classes_[slabs_[index].frame_class].frame_bytes;
}

void SlabPool::carve(uint32_t index, size_t frame_class, uint64_t used) {
  Slab& slab = slabs_[index];
  Class& c = classes_[frame_class];
  slab.frame_class = static_cast<uint8_t>(frame_class);
  slab.idle = false;
  --spare_;
  if (c.per_slab == 1) {
    ++c.used;
    return;
  }
  set_frames(index, {used, 0});
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
    previous = offsets[n++] = take(index, static_cast<uint32_t>(std::countr_one(frames_[index].used)));
  };
  while (n < offsets.size()) {
    std::optional<uint64_t> slab_before;
    if (previous) {
      const auto index = static_cast<uint32_t>(*previous / slab_bytes_);
      const auto next = static_cast<uint32_t>(*previous % slab_bytes_ / c.frame_bytes) + 1;
      const bool carved = next < c.per_slab && slabs_[index].frame_class == frame_class;
      if (carved && frames_[index].needed() != 0 && (frames_[index].used >> next & 1) == 0) {
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
      carve(first + i, frame_class, ~uint64_t{0} >> (64 - frames));
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
  const auto slab = static_cast<uint32_t>(index);
  if (frame >= c.per_slab || slabs_[slab].absent) return false;
  if (slabs_[slab].frame_class == kEmpty) {
    KV_CHECK(empty_.claim(index * slab_bytes_), "slab={}", index);
    carve(slab, frame_class, uint64_t{1} << frame);
    return true;
  }
  if (slabs_[slab].frame_class != frame_class || (frames_in(slab).used >> frame & 1) != 0) return false;
  take(slab, frame);
  return true;
}

SlabPool::Frame SlabPool::frame_at(size_t frame_class, uint64_t offset) const {
  const Class& c = classes_[frame_class];
  Frame frame;
  frame.slab = static_cast<uint32_t>(offset / slab_bytes_);
  const uint64_t within = offset % slab_bytes_;
  frame.number = c.per_slab == 0 ? 0 : static_cast<uint32_t>(within / c.frame_bytes);
  KV_CHECK(frame.number < c.per_slab && within == frame.number * c.frame_bytes, "offset={}", offset);
  KV_CHECK(frame.slab < slabs_.size(), "offset={}", offset);
  KV_CHECK(
      slabs_[frame.slab].frame_class == frame_class && (frames_in(frame.slab).used >> frame.number & 1) != 0,
      "class={} offset={}: not allocated", frame_class, offset);
  return frame;
}

std::span<SlabPool::Slab> SlabPool::slabs_at(size_t frame_class, std::span<const uint64_t> offsets) {
  const size_t first = frame_at(frame_class, offsets[0]).slab;
  size_t n = 1;
  while (n < offsets.size() && offsets[n] == offsets[n - 1] + slab_bytes_) ++n;
  KV_CHECK(first + n <= slabs_.size(), "offset={}", offsets[0]);
  const std::span<Slab> slabs = std::span(slabs_).subspan(first, n);
  for (const Slab& slab : slabs) {
    KV_CHECK(slab.frame_class == frame_class, "class={} offset={}, of {} frames: not allocated", frame_class,
             offsets[0], n);
  }
  return slabs;
}

void SlabPool::release(size_t frame_class, std::span<const uint64_t> offsets) {
  Class& c = classes_[frame_class];
  while (c.per_slab == 1 && !offsets.empty()) {
    const std::span<Slab> slabs = slabs_at(frame_class, offsets);
    const auto n = static_cast<uint32_t>(slabs.size());
    uint32_t idle = 0;
    for (Slab& slab : slabs) {
      idle += slab.idle ? 1 : 0;
      slab.frame_class = kEmpty;
      slab.idle = false;
    }
    c.used -= n;
    c.idle -= idle;
    spare_ += n - idle;
    give_back(static_cast<uint32_t>(slabs.data() - slabs_.data()), n);
    offsets = offsets.subspan(n);
  }
  uint32_t first = 0, emptied = 0;  // a run of slabs
  for (uint64_t offset : offsets) {
    const Frame frame = frame_at(frame_class, offset);
    const uint64_t others = ~(uint64_t{1} << frame.number);
    const FrameBits frames = frames_[frame.slab];
    count(frame.slab, -1);
    set_frames(frame.slab, {frames.used & others, frames.idle & others});
    count(frame.slab, 1);
    if ((frames.used & others) != 0) continue;
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
  while (c.per_slab == 1 && !offsets.empty()) {
    const std::span<Slab> slabs = slabs_at(frame_class, offsets);
    uint32_t changed = 0;
    for (Slab& slab : slabs) {
      changed += slab.idle != idle ? 1 : 0;
      slab.idle = idle;
    }
    const uint32_t more = idle ? changed : -changed;
    spare_ += more;
    c.idle += more;
    offsets = offsets.subspan(slabs.size());
  }
  for (uint64_t offset : offsets) {
    const Frame frame = frame_at(frame_class, offset);
    const uint64_t bit = uint64_t{1} << frame.number;
    const FrameBits frames = frames_[frame.slab];
    if (((frames.idle & bit) != 0) == idle) continue;
    count(frame.slab, -1);
    set_frames(frame.slab, {frames.used, frames.idle ^ bit});
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
    const FrameBits frames = frames_in(i);
    if (slab.frame_class == kEmpty || holds_one(slab)) {
      const FrameBits stale = frames_.empty() ? FrameBits{} : frames_[i];
      if (stale.used != 0 || stale.idle != 0) return error(ErrorCode::kCorrupt, "slab {}: stale frames", i);
    }
    if (slab.idle && !holds_one(slab)) return error(ErrorCode::kCorrupt, "slab {}: idle without a frame", i);
    if (frames.needed() == 0) ++spare;
    if ((slab.frame_class == kEmpty) != (frames.used == 0) || (frames.idle & ~frames.used) != 0) {
      return error(ErrorCode::kCorrupt, "slab {}: class and use disagree", i);
    }
    if (slab.frame_class == kEmpty) {
      ++empty;
      continue;
    }
    const Class& c = classes_[slab.frame_class];
    Class& sum = counted[slab.frame_class];
    const uint32_t taken = count_bits(frames.used);
    const bool loose = frames.needed() != 0;
    if (taken > c.per_slab || c.partial.contains(i) != (loose && taken < c.per_slab) ||
        c.partial_spare.contains(i) != (!loose && taken < c.per_slab)) {
      return error(ErrorCode::kCorrupt, "slab {}: {} of {} frames taken, listed wrongly", i, taken,
                   c.per_slab);
    }
    sum.used += taken;
    sum.idle += count_bits(frames.idle);
    sum.loose_free += loose ? c.per_slab - taken : 0;
    sum.loose_idle += loose ? count_bits(frames.idle) : 0;
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
