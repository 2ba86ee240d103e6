// Allocates equal units of a tier's memory, so that units allocated one after another are contiguous and a
// link can move them as one run.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "base/status.h"

namespace kvasir {

// Used by one thread.
class ExtentPool {
 public:
  // REQUIRES: unit_bytes > 0
  ExtentPool(uint64_t capacity_bytes, uint64_t unit_bytes);

  struct Run {
    uint64_t offset = 0;
    uint32_t units = 0;
  };
  // Takes up to `most` free units in one run: right behind `previous` if that unit is free, which extends the
  // run; else at the beginning of the largest free run. Empty if all are taken.
  Run allocate(std::optional<uint64_t> previous, uint32_t most);
  // The offset of one unit.
  std::optional<uint64_t> allocate(std::optional<uint64_t> previous);

  // Takes the unit at this offset. False if it is not free.
  bool claim(uint64_t offset);

  // REQUIRES: allocate() returned these units, and they have not been released since.
  void release(uint64_t offset, uint32_t units = 1);

  uint32_t units() const { return units_; }
  uint32_t free_units() const { return free_; }
  // The number of runs of free units: 1 if there is no fragmentation.
  uint32_t free_extents() const { return static_cast<uint32_t>(runs_.size()); }

  Status check_integrity() const;

 private:
  void add_run(uint32_t first, uint32_t count);
  void remove_run(std::map<uint32_t, uint32_t>::iterator run);

  const uint64_t unit_bytes_;
  const uint32_t units_;
  uint32_t free_;
  std::map<uint32_t, uint32_t> runs_;            // first unit -> units, of free runs
  std::multimap<uint32_t, uint32_t> by_length_;  // units -> first unit
};

}  // namespace kvasir
