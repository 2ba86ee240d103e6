// Block tables in the device's memory: a table is uploaded once, however many steps use it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
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
  // kExhausted: there is no room for it.
  Result<Place> place_of(const std::shared_ptr<const BlockTable>& table);

  // Takes back the places of tables that nothing else holds. What is queued may still read them, so copies to
  // places that place_of() gives are queued behind that.
  void sweep();

  // Every table is uploaded again when it is next used. For after a failed step, which may not have uploaded
  // its own.
  void forget_all();

  size_t count() const { return entries_.size(); }
  uint64_t bytes() const { return bytes_; }

 private:
  static constexpr int kSizes = 32;  // places have 2^i entries
  struct Entry {
    std::shared_ptr<const BlockTable> table;
    ops::gpu::KvPlace* at;
    int size;
  };
  Result<ops::gpu::KvPlace*> take(int size);

  Gpu& gpu_;
  std::unordered_map<const BlockTable*, Entry> entries_;
  std::array<std::vector<ops::gpu::KvPlace*>, kSizes> free_;
  std::vector<std::unique_ptr<GpuBuffer>> chunks_;
  uint64_t chunk_used_ = 0;  // bytes of the last chunk
  uint64_t bytes_ = 0;
};

}  // namespace kvasir
