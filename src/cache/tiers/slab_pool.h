// The memory of one tier: equal slabs, each carved into frames of one class while it holds any.
//
// An empty slab belongs to no class, so that frames of every size share the memory. A taken frame may be
// idle: its bytes are kept, but not needed. A slab without a needed frame is *spare*: any class can have it,
// once its idle frames are given up. The pool knows byte offsets only, not the memory.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "cache/tiers/extent_pool.h"

namespace kvasir {

// Used by one thread.
class SlabPool {
 public:
  // `frame_bytes[c]` is the size of a frame of class c; 0: there is no such class here.
  // REQUIRES: frame_bytes[c] <= slab_bytes, and at most 64 frames of any class in a slab.
  SlabPool(uint64_t capacity_bytes, uint64_t slab_bytes, std::span<const uint64_t> frame_bytes);

  // Takes a free frame and returns its offset: the frame right behind `previous`, if it is free and its slab
  // is not spare; else one in a slab that is not spare; else one in a spare slab of the class; else one in an
  // empty slab, if possible right behind the slab of `previous`. Nothing if there is none.
  std::optional<uint64_t> allocate(size_t frame_class, std::optional<uint64_t> previous = std::nullopt);
  // The same for several frames, each right behind the one before if possible. Returns how many it took. It
  // also stops early when idle frames have come to lie in a slab that is not spare: the caller may evict them
  // first.
  size_t allocate(size_t frame_class, std::optional<uint64_t> previous, std::span<uint64_t> offsets);
  // Takes the frame at this offset. False if it is not free.
  bool claim(size_t frame_class, uint64_t offset);

  // REQUIRES: the offsets are those of frames that are taken.
  void release(size_t frame_class, std::span<const uint64_t> offsets);
  void set_idle(size_t frame_class, std::span<const uint64_t> offsets, bool idle);
  void release(size_t frame_class, uint64_t offset) { release(frame_class, {&offset, 1}); }
  void set_idle(size_t frame_class, uint64_t offset, bool idle) { set_idle(frame_class, {&offset, 1}, idle); }

  // An absent slab is not allocated, and counts in capacity() only. All slabs are present at first. close()
  // makes a slab absent as soon as it is empty; open() makes it present again. REQUIRES: open(): it is
  // absent; close(): it is neither absent nor closed.
  void open(uint32_t slab);
  void close(uint32_t slab);
  // Undoes close() for a slab that is not absent yet.
  void keep(uint32_t slab);
  bool is_absent(uint32_t slab) const { return slabs_[slab].absent; }
  bool is_empty(uint32_t slab) const { return slabs_[slab].frame_class == kEmpty; }
  bool is_needed(uint32_t slab) const { return frames_in(slab).needed() != 0; }
  bool is_closed(uint32_t slab) const { return slabs_[slab].closed; }
  // Slabs that have become absent since the last call.
  std::vector<uint32_t> take_departed() { return std::exchange(departed_, {}); }

  uint32_t slabs() const { return capacity() - absent_; }
  uint32_t capacity() const { return static_cast<uint32_t>(slabs_.size()); }
  uint64_t slab_bytes() const { return slab_bytes_; }
  uint32_t empty_slabs() const { return empty_.free_units(); }
  // Slabs without a needed frame: empty ones, and those with idle frames only.
  uint32_t spare_slabs() const { return spare_; }
  // Free frames, and idle frames, in slabs that are not spare.
  uint32_t loose_free(size_t frame_class) const { return classes_[frame_class].loose_free; }
  uint32_t loose_idle(size_t frame_class) const { return classes_[frame_class].loose_idle; }
  uint32_t used_frames(size_t frame_class) const { return classes_[frame_class].used; }
  uint32_t idle_frames(size_t frame_class) const { return classes_[frame_class].idle; }
  uint32_t frames_per_slab(size_t frame_class) const { return classes_[frame_class].per_slab; }
  // The frame is in a spare slab.
  bool in_spare_slab(uint64_t offset) const {
    return !is_needed(static_cast<uint32_t>(offset / slab_bytes_));
  }

  Status check_integrity() const;

 private:
  static constexpr uint8_t kEmpty = UINT8_MAX;
  // Small, since a step of the engine touches many. A slab with one frame needs no entry in frames_.
  struct Slab {
    uint8_t frame_class = kEmpty;
    bool absent = false;
    bool closed = false;
    bool idle = false;  // a slab with one frame: the frame is not needed
  };
  // The frames of a slab.
  struct FrameBits {
    uint64_t used = 0;  // bit i: frame i is taken
    uint64_t idle = 0;  // of those: it is not needed
    uint64_t needed() const { return used & ~idle; }
  };
  struct Class {
    uint64_t frame_bytes = 0;
    uint32_t per_slab = 0;
    uint32_t loose_free = 0;
    uint32_t loose_idle = 0;
    uint32_t used = 0;
    uint32_t idle = 0;
    // Slabs with a free frame, lowest first, so that use stays dense.
    std::set<uint32_t> partial;
    std::set<uint32_t> partial_spare;
  };

  struct Frame {
    uint32_t slab = 0;
    uint32_t number = 0;
  };
  // The frame at an offset. REQUIRES: it is taken.
  Frame frame_at(size_t frame_class, uint64_t offset) const;
  // Of a class with one frame to a slab: the slabs of the first offsets, as many as follow each other.
  // REQUIRES: their frames are taken.
  std::span<Slab> slabs_at(size_t frame_class, std::span<const uint64_t> offsets);
  bool holds_one(const Slab& slab) const {
    return slab.frame_class != kEmpty && classes_[slab.frame_class].per_slab == 1;
  }
  FrameBits frames_in(uint32_t index) const {
    const Slab& slab = slabs_[index];
    if (slab.frame_class == kEmpty) return {};
    return holds_one(slab) ? FrameBits{1, slab.idle ? 1u : 0u} : frames_[index];
  }
  void set_frames(uint32_t index, FrameBits frames);
  // Slabs [first, first + slabs) that have become empty.
  void give_back(uint32_t first, uint32_t slabs);
  void depart(uint32_t index);
  // What the counts and lists say of a carved slab, put in or taken out; sign: 1 or -1.
  void count(uint32_t index, int sign);
  uint64_t take(uint32_t index, uint32_t frame);
  // An empty slab is one of the class from now on, and these frames of it are taken (not 0).
  void carve(uint32_t index, size_t frame_class, uint64_t used);

  const uint64_t slab_bytes_;
  std::vector<Slab> slabs_;
  std::vector<FrameBits> frames_;  // by slab, for slabs with several frames; empty if no class has such
  std::vector<Class> classes_;
  ExtentPool empty_;
  uint32_t spare_ = 0;
  uint32_t absent_ = 0;
  std::vector<uint32_t> departed_;
};

}  // namespace kvasir
