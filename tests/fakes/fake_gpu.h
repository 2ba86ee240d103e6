// A GPU in memory: its kernels are the host twin, its streams run when a seed says so.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/random.h"
#include "exec/gpu/gpu.h"
#include "fakes/kernels_on_host.h"
#include "fakes/test_gpu.h"

namespace kvasir::test {

// The host faults where it follows a device address; a kernel or a copy that leaves what is allocated ends
// the stream with an error, as do changing a graph that is queued, and queueing more than a stream has room
// for behind a closed gate, where a device would let the thread wait for ever (it has room for
// kMostBehindAGate entries, and each copy is one); memory that is allocated or
// released, or a graph that is made, while a gate is closed ends the test. Thread-safe: one thread at a time
// makes something run.
class FakeGpu final : public Gpu {
 public:
  explicit FakeGpu(FakeGpuPace pace, uint64_t seed = 1, uint64_t device_bytes = uint64_t{1} << 32);

  std::string name() const override { return "fake GPU"; }
  Result<Memory> memory() const override;
  std::vector<ProductCase> product_cases() const override;
  Result<std::byte*> allocate(uint64_t bytes) override;
  Result<std::byte*> allocate_pinned(uint64_t bytes) override;
  void release(std::byte* memory) override;
  Result<std::unique_ptr<GpuStream>> make_stream() override;
  void open_gate(uint32_t* word, uint32_t value) override;

  // Where the bytes of device memory really lie.
  std::byte* shadow(const std::byte* device) const { return memory_.shadow(device); }
  // From now on so many allocations succeed; then there is no memory.
  void allow_allocations(uint64_t count) { allowed_ = count; }
  // That were made so far.
  uint64_t allocations() const { return allocations_; }
  // The device is lost: what is queued never runs, and each stream says so, also those that are made later.
  void lose();
  // The same when so many kernels more have been launched.
  void lose_after(uint64_t kernels) { kernels_left_ = kernels; }
  // One of those that there are, in the order in which they were made: the others go on.
  void lose_stream(size_t index);
  // While on, what is queued does not run, and a thread that waits for it waits.
  void stand_still(bool on);
  // memory() fails.
  void hide_memory() { hides_memory_ = true; }
  // From now on the last bit of one output of each product of at least so many rows is wrong,
  void spoil_products(int32_t from_rows = 1) { spoils_from_ = from_rows; }
  // or of each with this tile, or of at least so many features.
  void spoil_tile(int32_t number) { spoils_tile_ = number; }
  void spoil_features(int32_t from_features) { spoils_features_ = from_features; }
  // While on, graphs take no new arguments, as if they had other kernels.
  void refuse_graphs(bool on) {
    const std::lock_guard lock(mutex_);
    refuses_graphs_ = on;
  }
  // From now on there is no memory for graphs.
  void make_no_graphs() {
    const std::lock_guard lock(mutex_);
    makes_no_graphs_ = true;
  }
  uint64_t copied_bytes() const { return copied_bytes_; }
  uint64_t marks() const {
    const std::lock_guard lock(mutex_);
    return marks_;
  }
  uint64_t gates() const { return gates_; }
  // That were queued.
  uint64_t graphs() const {
    const std::lock_guard lock(mutex_);
    return graphs_;
  }
  // Calls of open_gate().
  uint64_t opened() const {
    const std::lock_guard lock(mutex_);
    return opened_;
  }

 private:
  class Stream;
  void expect_no_closed_gate() const;

  mutable std::recursive_mutex mutex_;  // guards all that is here and in the streams
  FakeMemoryMap memory_;
  KernelsOnHost kernels_;
  const FakeGpuPace pace_;
  bool is_lost_ = false;
  uint64_t kernels_left_ = UINT64_MAX;
  bool stands_still_ = false;
  bool hides_memory_ = false;
  bool refuses_graphs_ = false;
  bool makes_no_graphs_ = false;
  int32_t spoils_from_ = INT32_MAX;
  int32_t spoils_tile_ = -1;
  int32_t spoils_features_ = INT32_MAX;
  Random random_;
  uint64_t allowed_ = UINT64_MAX;
  uint64_t allocations_ = 0;
  uint64_t copied_bytes_ = 0;
  uint64_t marks_ = 0, gates_ = 0, opened_ = 0, graphs_ = 0;
  std::vector<Stream*> streams_;
};

}  // namespace kvasir::test
