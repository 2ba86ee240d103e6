// The link and a disk that fails: the transfer that meets it ends failed, and nothing else notices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>

#include "cache/disk_link_world.h"

namespace kvasir {
namespace {

using testing::HasSubstr;
using namespace test;

class DiskLinkFaultsTest : public DiskLinkTest {
 protected:
  static Status status_of(MemoryLink& link, uint64_t n) {
    Status status = error(ErrorCode::kNotFound, "transfer {} has not ended", n);
    for (TransferDone& d : link.completed()) {
      if (d.id == id(n)) status = d.status;
    }
    return status;
  }
};

TEST_F(DiskLinkFaultsTest, AReadThatFailsFailsItsTransferAlone) {
  const std::pair<DiskFault, ErrorCode> cases[] = {
      {DiskFault::kError, ErrorCode::kCorrupt},
      {DiskFault::kShort, ErrorCode::kCorrupt},
      {DiskFault::kOtherBytes, ErrorCode::kCorrupt},
      {DiskFault::kElsewhere, ErrorCode::kCorrupt},
  };
  open(true);
  MemoryLink link(options(), clock_);
  for (uint64_t n = 0; n < 3; ++n) link.start(out(n, kOffload));
  for (uint64_t n = 0; n < 3; ++n) EXPECT_EQ(link.wait(id(n), kLong), TransferState::kDone);
  link.completed();
  uint64_t n = 100;
  for (const auto& [fault, code] : cases) {
    const Bytes before = host_;
    fake_.fail_next(kRead, fault);
    link.start(in(++n, 1));
    EXPECT_EQ(link.wait(id(n), kLong), TransferState::kFailed) << static_cast<int>(fault);
    const Status status = status_of(link, n);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_THAT(status.message(), HasSubstr(directory_.data()));
    EXPECT_THAT(status.message(), HasSubstr(std::to_string(place(1))));
    EXPECT_EQ(host_, before);
    link.start(in(++n, 0));
    link.start(in(++n, 1));  // it was the reading, not what is there
    EXPECT_EQ(link.wait(id(n - 1), kLong), TransferState::kDone);
    EXPECT_EQ(link.wait(id(n), kLong), TransferState::kDone);
    EXPECT_EQ(std::memcmp(&host_[8192], &device_[8192], 5000), 0);
    link.completed();
    std::memcpy(host_.data(), before.data(), host_.size());
  }
  const DiskStats stats = file_->stats();
  EXPECT_EQ(stats.read_errors, 1);
  EXPECT_EQ(stats.short_reads, 1);
  EXPECT_EQ(stats.checksum_mismatches, 2);
  EXPECT_EQ(link.stats().failed, 4);
  EXPECT_EQ(link.stats().bytes[size_t(Tier::kDisk)][size_t(Tier::kHost)], 8 * 5000);
}

TEST_F(DiskLinkFaultsTest, WhatNeedsAWriteThatFailedFails) {
  open(true);
  MemoryLink link(options(), clock_);
  for (DiskFault fault : {DiskFault::kError, DiskFault::kFull, DiskFault::kShort}) {
    const uint64_t n = 10 * (1 + static_cast<uint64_t>(fault));
    fake_.fail_next(kWrite, fault);
    link.stand_still(true);
    link.start(out(n, kOffload));
    Transfer needs = in(n + 1, n, {});
    needs.needs = {id(n)};
    link.start(needs);
    link.start(in(n + 2, n, {id(n)}));  // comes after, and finds nothing
    link.start({id(n + 3), kOffload, {id(n)}, {{device(0), host(0), 100}}});
    link.stand_still(false);
    EXPECT_EQ(link.wait(id(n), kLong), TransferState::kFailed);
    EXPECT_EQ(link.wait(id(n + 1), kLong), TransferState::kFailed);
    EXPECT_EQ(link.wait(id(n + 2), kLong), TransferState::kFailed);
    EXPECT_EQ(link.wait(id(n + 3), kLong), TransferState::kDone);
  }
  EXPECT_EQ(file_->stats().write_errors, 3);
}

TEST_F(DiskLinkFaultsTest, AfterAPieceThatFailedTheRestOfItsTransferIsNotBegun) {
  open(true, 2);
  MemoryLink link(options(), clock_);
  fake_.hold();
  fake_.fail_next(kWrite, DiskFault::kError, 2);
  std::vector<Segment> many;
  for (uint64_t i = 0; i < 50; ++i) many.push_back({device(i * 8192), disk(i * 8192), 8192});
  many.push_back({device(0), host(0), 1000});
  link.start({id(1), kOffload, {}, many});
  link.start(out(60, kOffload));
  wait_for([&] { return fake_.in_flight() == 2; });
  fake_.let_all_go();
  EXPECT_EQ(link.wait(id(1), kLong), TransferState::kFailed);
  EXPECT_EQ(link.wait(id(60), kLong), TransferState::kDone);
  EXPECT_LE(fake_.queued().size(), 5) << "two that failed, what began between them, and the other's";
  EXPECT_EQ(link.stats().queued_bytes, 0);
  EXPECT_EQ(link.stats().failed, 1);
}

TEST_F(DiskLinkFaultsTest, CorruptionAndTruncationOnTheRealDiskAreSeen) {
  open(false);
  MemoryLink link(options(), clock_);
  for (uint64_t n = 0; n < 100; ++n) link.start(out(n, kOffload));
  for (uint64_t n = 0; n < 100; ++n) EXPECT_EQ(link.wait(id(n), kLong), TransferState::kDone);
  flip_byte(directory_.data(), place(5) + 4999);
  flip_byte(directory_.data(), place(6) + 5000);  // padding
  std::filesystem::resize_file(directory_.data(), place(50) + 4096);
  for (uint64_t n = 0; n < 100; ++n) link.start(in(1000 + n, n));
  for (uint64_t n = 0; n < 100; ++n) {
    const bool whole = n != 5 && n < 50;
    EXPECT_EQ(link.wait(id(1000 + n), kLong), whole ? TransferState::kDone : TransferState::kFailed) << n;
    if (whole) {
      EXPECT_EQ(std::memcmp(&host_[n * 8192], &device_[n * 8192], 5000), 0);
    }
  }
  const DiskStats stats = file_->stats();
  EXPECT_EQ(stats.checksum_mismatches, 1);
  EXPECT_EQ(stats.short_reads, 50);
}

// A file that comes and goes while pieces move: no crash, and nothing wrong.
TEST_F(DiskLinkFaultsTest, TruncationWhilePiecesMove) {
  open(false);
  MemoryLink link(options(), clock_);
  uint64_t n = 0;
  uint64_t failed = 0;
  for (int round = 0; round < 20; ++round) {
    for (uint64_t i = 0; i < 100; ++i) {
      link.start({id(++n), kOffload, {}, {{device(i * 8192), disk(i * 8192), 5000}}});
      link.start({id(++n), kNow, {id(n - 1)}, {{disk(i * 8192), host(i * 8192), 5000}}});
    }
    std::filesystem::resize_file(directory_.data(), place(static_cast<uint64_t>(round) * 5));
    for (uint64_t i = n - 199; i <= n; ++i) {
      const TransferState state = link.wait(id(i), kLong);
      EXPECT_NE(state, TransferState::kPending);
      failed += state == TransferState::kFailed;
    }
    for (uint64_t i = 0; i < 100; ++i) {
      if (link.wait(id(n - 198 + 2 * i), 0) != TransferState::kDone) continue;
      EXPECT_EQ(std::memcmp(&host_[i * 8192], &device_[i * 8192], 5000), 0);
    }
  }
  const DiskStats stats = file_->stats();
  EXPECT_EQ(stats.short_reads + stats.checksum_mismatches + stats.read_errors + stats.write_errors, failed);
}

// ---------------------------------------------------------------- behind a device

// Copies to and from memory that the host must not touch, of which it has the bytes elsewhere.
class ShadowMover final : public Mover {
 public:
  ShadowMover(std::span<std::byte> device, Bytes& bytes) : device_(device), bytes_(bytes) {}
  Status move(std::span<const MovedRun> runs) override {
    ++calls;
    if (fails) return error(ErrorCode::kIo, "the device fails");
    for (const MovedRun& run : runs) std::memcpy(at(run.to), at(run.from), run.bytes);
    return {};
  }
  std::atomic<int> calls{0};
  std::atomic<bool> fails{false};

 private:
  std::byte* at(const std::byte* p) const {
    if (p < device_.data() || p >= device_.data() + device_.size()) return const_cast<std::byte*>(p);
    return bytes_.data() + (p - device_.data());
  }
  const std::span<std::byte> device_;
  Bytes& bytes_;
};

class DiskBehindADeviceTest : public DiskLinkFaultsTest {
 protected:
  DiskBehindADeviceTest()
      : untouchable_(static_cast<std::byte*>(
                         ::mmap(nullptr, device_.size(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)),
                     device_.size()),
        mover_(untouchable_, device_) {}
  ~DiskBehindADeviceTest() override { ::munmap(untouchable_.data(), untouchable_.size()); }

  MemoryLinkOptions with_mover() {
    MemoryLinkOptions o = options();
    o.memory[0] = untouchable_;
    o.mover = &mover_;
    o.duplex = true;
    buffers_.resize(file_->buffer_bytes() + kDiskAlign);
    const auto past = reinterpret_cast<uintptr_t>(buffers_.data()) % kDiskAlign;
    o.disk_buffers = {buffers_.data() + (kDiskAlign - past), file_->buffer_bytes()};
    return o;
  }
  static Transfer to_device(uint64_t n, uint64_t piece) {
    return {id(n), kNow, {}, {{disk(piece * 8192), device((64 + piece) * 8192), 5000}}};
  }

  Bytes buffers_;
  const std::span<std::byte> untouchable_;
  ShadowMover mover_;
};

TEST_F(DiskBehindADeviceTest, PiecesGoThroughTheBuffers) {
  open(/*fake=*/false);
  MemoryLink link(with_mover(), clock_);
  for (uint64_t n = 0; n < 20; ++n) link.start(out(n, kOffload));
  for (uint64_t n = 0; n < 20; ++n) {
    Transfer back = n % 2 == 0 ? to_device(100 + n, n) : in(100 + n, n);
    back.needs = {id(n)};
    link.start(std::move(back));
  }
  for (uint64_t n = 0; n < 20; ++n) {
    ASSERT_EQ(link.wait(id(100 + n), kLong), TransferState::kDone);
    const std::byte* const got = n % 2 == 0 ? &device_[(64 + n) * 8192] : &host_[n * 8192];
    EXPECT_EQ(std::memcmp(got, &device_[n * 8192], 5000), 0) << n;
  }
  EXPECT_EQ(mover_.calls, 30) << "20 to the disk, and 10 from it to the device";
}

// A piece that was not copied is not written, and what was in its place cannot be read. One that was not
// copied back stays.
TEST_F(DiskBehindADeviceTest, ACopyThatFailsFailsItsTransferAlone) {
  open(/*fake=*/false);
  MemoryLink link(with_mover(), clock_);
  for (uint64_t n = 0; n < 2; ++n) link.start(out(n, kOffload));
  for (uint64_t n = 0; n < 2; ++n) ASSERT_EQ(link.wait(id(n), kLong), TransferState::kDone);
  link.completed();
  mover_.fails = true;
  Transfer again = out(2, kOffload);
  again.segments[0].to = disk(0);
  link.start(std::move(again));
  link.start(to_device(3, 1));
  for (uint64_t n = 2; n < 4; ++n) EXPECT_EQ(link.wait(id(n), kLong), TransferState::kFailed) << n;
  for (const TransferDone& done : link.completed()) EXPECT_EQ(done.status.code(), ErrorCode::kIo);
  mover_.fails = false;
  link.start(to_device(4, 1));
  EXPECT_EQ(link.wait(id(4), kLong), TransferState::kDone);
  EXPECT_EQ(std::memcmp(&device_[65 * 8192], &device_[8192], 5000), 0);
  link.start(to_device(5, 0));
  EXPECT_EQ(link.wait(id(5), kLong), TransferState::kFailed)
      << "the former bytes are not told as the new ones";
  EXPECT_EQ(file_->stats().write_errors, 0U) << "they are not the disk's";
}

}  // namespace
}  // namespace kvasir
