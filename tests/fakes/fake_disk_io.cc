#include "fakes/fake_disk_io.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/check.h"

namespace kvasir::test {

class FakeDiskIo final : public DiskIo {
 public:
  FakeDiskIo(FakeDisk& disk, int file, size_t depth) : disk_(disk), file_(file), depth_(depth) {}
  ~FakeDiskIo() override { KV_CHECK(disk_.in_flight() == 0, "{} requests are in flight", disk_.in_flight()); }

  void queue(const DiskRequest& request) override {
    std::lock_guard lock(disk_.mutex_);
    KV_CHECK(disk_.in_flight_.size() < depth_, "{} requests are in flight", depth_);
    KV_CHECK(request.offset % 4096 == 0 && request.bytes.size() % 4096 == 0 &&
                 reinterpret_cast<uintptr_t>(request.bytes.data()) % 4096 == 0,
             "offset={} bytes={}", request.offset, request.bytes.size());
    disk_.in_flight_.push_back(request);
    disk_.queued_.push_back(request.offset);
    disk_.most_ = std::max(disk_.most_, disk_.in_flight_.size());
  }

  void flush() override {}

  size_t wait(std::span<DiskCompletion> completions) override {
    std::unique_lock lock(disk_.mutex_);
    const auto may_end = [&] { return !disk_.in_flight_.empty() && disk_.may_end_ > 0; };
    disk_.changed_.wait(lock, [&] { return may_end() || disk_.woken_; });
    disk_.woken_ = false;
    size_t n = 0;
    while (n < completions.size() && may_end()) {
      // Devices keep no order: now the first, now the last.
      const size_t which = disk_.queued_.size() % 2 == 0 ? 0 : disk_.in_flight_.size() - 1;
      const DiskRequest request = disk_.in_flight_[which];
      disk_.in_flight_.erase(disk_.in_flight_.begin() + static_cast<ptrdiff_t>(which));
      if (disk_.may_end_ != SIZE_MAX) --disk_.may_end_;
      completions[n++] = {request.tag, move(request)};
    }
    return n;
  }

  void wake() override {
    std::lock_guard lock(disk_.mutex_);
    disk_.woken_ = true;
    disk_.changed_.notify_all();
  }

 private:
  std::optional<DiskFault> fault_of(const DiskRequest& request) {
    const auto found = std::find_if(disk_.next_.begin(), disk_.next_.end(),
                                    [&](const auto& next) { return next.first == request.op; });
    std::optional<DiskFault> fault;
    if (found != disk_.next_.end()) {
      fault = found->second;
      disk_.next_.erase(found);
    } else if (disk_.random_ && disk_.random_->unit() < disk_.chance_) {
      fault = static_cast<DiskFault>(disk_.random_->below(6));
    }
    if (fault) ++disk_.faults_;
    return fault;
  }

  int64_t move(const DiskRequest& request) {
    const std::optional<DiskFault> fault = fault_of(request);
    std::span<std::byte> bytes = request.bytes;
    uint64_t place = request.offset;
    if (fault == DiskFault::kError) return -EIO;
    if (fault == DiskFault::kFull) return -ENOSPC;
    if (fault == DiskFault::kLost) return static_cast<int64_t>(bytes.size());
    if (fault == DiskFault::kShort) return static_cast<int64_t>(bytes.size() / 2);
    const bool reads = request.op == DiskRequest::Op::kRead;
    if (fault == DiskFault::kElsewhere) place += 4096;
    if (fault == DiskFault::kOtherBytes && !reads) bytes[0] ^= std::byte{1};
    const ssize_t n = reads ? ::pread(file_, bytes.data(), bytes.size(), static_cast<off_t>(place))
                            : ::pwrite(file_, bytes.data(), bytes.size(), static_cast<off_t>(place));
    if (fault == DiskFault::kOtherBytes && reads) bytes[0] ^= std::byte{1};
    return n >= 0 ? n : -errno;
  }

  FakeDisk& disk_;
  const int file_;
  const size_t depth_;
};

MakeDiskIo FakeDisk::maker() {
  return [this](int file, int depth) -> Result<std::unique_ptr<DiskIo>> {
    return std::unique_ptr<DiskIo>(std::make_unique<FakeDiskIo>(*this, file, static_cast<size_t>(depth)));
  };
}

void FakeDisk::fail_next(DiskRequest::Op op, DiskFault fault, int times) {
  std::lock_guard lock(mutex_);
  for (int i = 0; i < times; ++i) next_.emplace_back(op, fault);
}

void FakeDisk::fail_at_random(uint64_t seed, double chance) {
  std::lock_guard lock(mutex_);
  random_.emplace(seed);
  chance_ = chance;
}

void FakeDisk::hold() {
  std::lock_guard lock(mutex_);
  may_end_ = 0;
}

void FakeDisk::let_go(size_t n) {
  std::lock_guard lock(mutex_);
  may_end_ += n;
  changed_.notify_all();
}

void FakeDisk::let_all_go() {
  std::lock_guard lock(mutex_);
  may_end_ = SIZE_MAX;
  changed_.notify_all();
}

size_t FakeDisk::in_flight() const {
  std::lock_guard lock(mutex_);
  return in_flight_.size();
}

size_t FakeDisk::most_in_flight() const {
  std::lock_guard lock(mutex_);
  return most_;
}

std::vector<uint64_t> FakeDisk::queued() const {
  std::lock_guard lock(mutex_);
  return queued_;
}

uint64_t FakeDisk::faults() const {
  std::lock_guard lock(mutex_);
  return faults_;
}

}  // namespace kvasir::test
