// The memory of one tier: equal slabs, each carved into frames of one class while it holds any.
//
// An empty slab belongs to no class, so that frames of every size share the memory. The pool deals in byte
// offsets; whose memory they are offsets into is not its business.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "base/status.h"

namespace kvasir {

// Used by one thread.
class SlabPool {
 public:
  // `frame_bytes[c]` is the size of a frame of class c.
  // REQUIRES: 0 < frame_bytes[c] <= slab_bytes, and at most 64 frames of any class in a slab.
  SlabPool(uint64_t capacity_bytes, uint64_t slab_bytes, std::span<const uint64_t> frame_bytes);

  // The offset of a free frame, or nothing when neither a carved slab nor an empty one has room.
  std::optional<uint64_t> allocate(size_t frame_class);

  // REQUIRES: allocate(frame_class) returned the offset, and it has not been released since.
  void release(size_t frame_class, uint64_t offset);

  uint32_t slabs() const { return static_cast<uint32_t>(slabs_.size()); }
  uint32_t empty_slabs() const { return static_cast<uint32_t>(empty_.size()); }
  // Free frames in slabs that are carved for the class.
  uint32_t free_frames(size_t frame_class) const { return classes_[frame_class].free; }
  uint32_t used_frames(size_t frame_class) const { return classes_[frame_class].used; }
  uint32_t frames_per_slab(size_t frame_class) const { return classes_[frame_class].per_slab; }

  Status check_integrity() const;

 private:
  static constexpr size_t kEmpty = SIZE_MAX;
  struct Slab {
    size_t frame_class = kEmpty;
    uint64_t used = 0;  // bit i: frame i is taken
  };
  struct Class {
    uint64_t frame_bytes = 0;
    uint32_t per_slab = 0;
    uint32_t free = 0;
    uint32_t used = 0;
    std::set<uint32_t> partial;  // slabs with a free frame, lowest first, so that use stays dense
  };

  const uint64_t slab_bytes_;
  std::vector<Slab> slabs_;
  std::vector<Class> classes_;
  std::set<uint32_t> empty_;
};

}  // namespace kvasir
