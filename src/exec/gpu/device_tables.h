// Block tables in the device's memory: a table is uploaded once, however many steps use it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "contract/step.h"
#include "exec/gpu/gpu.h"
#include "ops/gpu/kernel_args.h"

namespace kvasir {

// A table is changed in place only by an owner that is the only one. So each table that the device has is
// held here, and one that is the same object has the same entries. By one thread.
class DeviceTables {
 public:
  explicit DeviceTables(Gpu& gpu) : gpu_(gpu) {}
  DeviceTables(const DeviceTables&) = delete;
  DeviceTables& operator=(const DeviceTables&) = delete;

  struct Place {
    ops::gpu::KvPlace* at;
    bool is_new;  // the caller queues the copy of its entries
  };
  // What place_of() will do for the tables of these slices.
  struct Need {
    uint64_t new_bytes = 0;  // of entries that the device does not have
    uint64_t new_tables = 0;
    bool allocates_nothing = true;
  };
  Need need_of(std::span<const StepSlice> slices) const;
  // Room for the first tables: kReservedBytes. kExhausted.
  Status reserve();
  static constexpr uint64_t kReservedBytes = uint64_t{1} << 20;
  // kExhausted: there is no room for it.
  Result<Place> place_of(const std::shared_ptr<const BlockTable>& table);

  // Takes back the places of tables that nothing else holds. What is queued may still read them, so copies to
  // places that place_of() gives are queued behind that.
  void sweep() noexcept;

  // Every table is uploaded again when it is next used. For after a failed step, which may not have uploaded
  // its own.
  void forget_all() noexcept;

  size_t count() const { return entries_.size(); }
  uint64_t bytes() const { return bytes_; }

 private:
  static constexpr int kSizes = 32;  // places have 2^i entries
  struct Entry {
    std::shared_ptr<const BlockTable> table;
    ops::gpu::KvPlace* at;
    int size;
  };
  static int size_of(const BlockTable& table);
  Result<ops::gpu::KvPlace*> take(int size);
  Status add_chunk(uint64_t bytes);
  void give_back(const Entry& entry) noexcept;

  Gpu& gpu_;
  std::unordered_map<const BlockTable*, Entry> entries_;
  // Each has room for all places of its size, so that giving one back needs no memory.
  std::array<std::vector<ops::gpu::KvPlace*>, kSizes> free_;
  std::array<size_t, kSizes> places_{};
  std::vector<std::unique_ptr<GpuBuffer>> chunks_;
  uint64_t chunk_used_ = 0;  // bytes of the last chunk
  uint64_t bytes_ = 0;
};

}  // namespace kvasir
