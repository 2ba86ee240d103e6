// The memory of one tier: equal slabs, each carved into frames of one class while it holds any.
//
// An empty slab belongs to no class, so that frames of every size share the memory. A frame that is taken may
// be idle: its bytes are kept, but not needed. A slab in which nothing is needed is *spare*: any class
// can have it, once its idle frames are given up. The pool deals in byte offsets; whose memory they are
// offsets into is not its business.
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

  // The offset of a free frame: the one right behind `previous`, if that is free and its slab is not spare;
  // else one in a slab that is not spare; else in a spare one of the class; else in an empty one, right
  // behind the slab of `previous` where that can be. Nothing when there is none.
  std::optional<uint64_t> allocate(size_t frame_class, std::optional<uint64_t> previous = std::nullopt);
  // The same for several, each right behind the one before where that can be. Returns how many there are:
  // fewer also where what is idle has come to lie in a slab that is not spare, so that the caller can look
  // first.
  size_t allocate(size_t frame_class, std::optional<uint64_t> previous, std::span<uint64_t> offsets);
  // Takes the frame at this offset. False if it is not free.
  bool claim(size_t frame_class, uint64_t offset);

  // REQUIRES: the offsets are those of frames that are taken.
  void release(size_t frame_class, std::span<const uint64_t> offsets);
  void set_idle(size_t frame_class, std::span<const uint64_t> offsets, bool idle);
  void release(size_t frame_class, uint64_t offset) { release(frame_class, {&offset, 1}); }
  void set_idle(size_t frame_class, uint64_t offset, bool idle) { set_idle(frame_class, {&offset, 1}, idle); }

  // Memory that comes and goes: a slab that is absent is not allocated, and counted nowhere but in
  // capacity(). All are there at first. close() makes one absent as soon as it is empty; open() brings it
  // back. REQUIRES, of open(): it is absent; of close(): it is not, nor closed.
  void open(uint32_t slab);
  void close(uint32_t slab);
  // What was closed and is not absent yet is as if it never had been.
  void keep(uint32_t slab);
  bool is_absent(uint32_t slab) const { return slabs_[slab].absent; }
  bool is_empty(uint32_t slab) const { return slabs_[slab].used == 0; }
  bool is_needed(uint32_t slab) const { return slabs_[slab].needed() != 0; }
  bool is_closed(uint32_t slab) const { return slabs_[slab].closed; }
  // Those that have become absent since the last call.
  std::vector<uint32_t> take_departed() { return std::exchange(departed_, {}); }

  uint32_t slabs() const { return capacity() - absent_; }
  uint32_t capacity() const { return static_cast<uint32_t>(slabs_.size()); }
  uint64_t slab_bytes() const { return slab_bytes_; }
  uint32_t empty_slabs() const { return empty_.free_units(); }
  // Empty ones, and those of which all that is taken is idle.
  uint32_t spare_slabs() const { return spare_; }
  // In slabs that are not spare: free frames, and idle ones.
  uint32_t loose_free(size_t frame_class) const { return classes_[frame_class].loose_free; }
  uint32_t loose_idle(size_t frame_class) const { return classes_[frame_class].loose_idle; }
  uint32_t used_frames(size_t frame_class) const { return classes_[frame_class].used; }
  uint32_t idle_frames(size_t frame_class) const { return classes_[frame_class].idle; }
  uint32_t frames_per_slab(size_t frame_class) const { return classes_[frame_class].per_slab; }
  // The frame is in a spare slab.
  bool in_spare_slab(uint64_t offset) const { return slabs_[offset / slab_bytes_].needed() == 0; }

  Status check_integrity() const;

 private:
  static constexpr uint32_t kEmpty = UINT32_MAX;
  struct Slab {
    uint64_t used = 0;  // bit i: frame i is taken
    uint64_t idle = 0;  // of those: it is not needed
    uint32_t frame_class = kEmpty;
    bool absent = false;
    bool closed = false;
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
    uint64_t end = UINT64_MAX;  // a slab behind where it begins
  };
  // The frame at an offset of a run; `before`: the one before it, or {}. REQUIRES: it is taken.
  Frame frame_at(size_t frame_class, uint64_t offset, Frame before) const;
  // Slabs [first, first + slabs) that have become empty.
  void give_back(uint32_t first, uint32_t slabs);
  void depart(uint32_t index);
  // What the counts and lists say of a carved slab, put in or taken out; sign: 1 or -1.
  void count(uint32_t index, int sign);
  uint64_t take(uint32_t index, uint32_t frame);
  // An empty slab is one of the class from now on, and its first frames are taken.
  void carve(uint32_t index, size_t frame_class, uint32_t frames);

  const uint64_t slab_bytes_;
  std::vector<Slab> slabs_;
  std::vector<Class> classes_;
  ExtentPool empty_;
  uint32_t spare_ = 0;
  uint32_t absent_ = 0;
  std::vector<uint32_t> departed_;
};

}  // namespace kvasir
