// A link over two memories and a file, whose disk is the real one or a fake.
#pragma once

#include <chrono>
#include <memory>
#include <thread>

#include "base/clock.h"
#include "cache/disk_world.h"
#include "cache/tiers/memory_link.h"
#include "fakes/fake_disk_io.h"

namespace kvasir::test {

constexpr Nanos kLong = 100 * kNanosPerSecond;  // longer than any test
constexpr auto kNow = TransferPriority::kNeededNow;
constexpr auto kPrefetch = TransferPriority::kPrefetch;
constexpr auto kOffload = TransferPriority::kOffload;
constexpr uint64_t kDiskBytes = 4 * kMiB;

inline TransferId id(uint64_t n) {
  return TransferId{n};
}
inline MemoryAddress device(uint64_t offset) {
  return {offset, Tier::kDevice};
}
inline MemoryAddress host(uint64_t offset) {
  return {offset, Tier::kHost};
}
inline MemoryAddress disk(uint64_t offset) {
  return {offset, Tier::kDisk};
}

class DiskLinkTest : public testing::Test {
 protected:
  void open(bool fake, int depth = 8) {
    file_.reset();
    DiskFileOptions options = disk_options(directory_, kDiskBytes);
    options.queue_depth = depth;
    options.max_piece_bytes = 64 * kKiB;
    if (fake) options.io = fake_.maker();
    Result<std::unique_ptr<DiskFile>> file = DiskFile::open(options);
    ASSERT_TRUE(file.ok()) << file.status().message();
    file_ = *std::move(file);
  }
  MemoryLinkOptions options() {
    MemoryLinkOptions o;
    o.memory = {std::span(device_), std::span(host_), {}};
    o.disk = file_.get();
    return o;
  }
  // A piece of 5,000 bytes in the n-th place of the disk.
  static Transfer out(uint64_t n, TransferPriority priority, std::vector<TransferId> after = {}) {
    return {id(n), priority, std::move(after), {{device(n * 8192), disk(n * 8192), 5000}}};
  }
  static Transfer in(uint64_t n, uint64_t piece, std::vector<TransferId> after = {}) {
    return {id(n), kNow, std::move(after), {{disk(piece * 8192), host(piece * 8192), 5000}}};
  }
  static uint64_t place(uint64_t n) { return DiskFile::place_of(n * 8192); }

  template <typename Condition>
  static void wait_for(Condition condition) {
    while (!condition()) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }

  MonotonicClock clock_;
  TestDirectory directory_;
  FakeDisk fake_;
  std::unique_ptr<DiskFile> file_;
  Bytes device_ = random_bytes(kMiB, 1);
  Bytes host_ = random_bytes(kMiB, 2);
};

}  // namespace kvasir::test
