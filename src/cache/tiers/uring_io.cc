// DiskIo through io_uring.
#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/check.h"
#include "base/file.h"
#include "cache/tiers/disk_io.h"

namespace kvasir {
namespace {

// No request has it: the tag of the poll that wake() ends.
constexpr uint64_t kWakeTag = UINT64_MAX;

class UringIo final : public DiskIo {
 public:
  UringIo(int file, int depth, io_uring ring, int wake)
      : file_(file), depth_(depth), ring_(ring), wake_(wake) {}
  ~UringIo() override {
    KV_CHECK(in_flight_ == 0, "{} requests are in flight", in_flight_);
    io_uring_queue_exit(&ring_);
    ::close(wake_);
  }
  UringIo(const UringIo&) = delete;
  UringIo& operator=(const UringIo&) = delete;

  void queue(const DiskRequest& request) override {
    KV_CHECK(in_flight_ < depth_ && request.tag != kWakeTag, "in_flight={}", in_flight_);
    ++in_flight_;
    io_uring_sqe* sqe = entry();
    const auto size = static_cast<unsigned>(request.bytes.size());
    if (request.op == DiskRequest::Op::kRead) {
      io_uring_prep_read(sqe, file_, request.bytes.data(), size, request.offset);
    } else {
      io_uring_prep_write(sqe, file_, request.bytes.data(), size, request.offset);
    }
    io_uring_sqe_set_data64(sqe, request.tag);
  }

  void flush() override { submit(0); }

  size_t wait(std::span<DiskCompletion> completions) override {
    if (!polling_) {
      io_uring_sqe* sqe = entry();
      io_uring_prep_poll_add(sqe, wake_, POLLIN);
      io_uring_sqe_set_data64(sqe, kWakeTag);
      polling_ = true;
    }
    submit(1);
    std::array<io_uring_cqe*, 64> found;
    const size_t most = std::min(found.size(), completions.size());
    const unsigned count = io_uring_peek_batch_cqe(&ring_, found.data(), static_cast<unsigned>(most));
    size_t n = 0;
    for (unsigned i = 0; i < count; ++i) {
      if (io_uring_cqe_get_data64(found[i]) == kWakeTag) {
        eventfd_t calls = 0;
        eventfd_read(wake_, &calls);
        polling_ = false;
      } else {
        completions[n++] = {io_uring_cqe_get_data64(found[i]), found[i]->res};
        --in_flight_;
      }
    }
    io_uring_cq_advance(&ring_, count);
    return n;
  }

  void wake() override { eventfd_write(wake_, 1); }

 private:
  io_uring_sqe* entry() {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    if (!sqe) {
      submit(0);
      sqe = io_uring_get_sqe(&ring_);
    }
    KV_CHECK(sqe, "the ring is full with {} requests in flight", in_flight_);
    return sqe;
  }

  // Interruptions and a kernel that is short of memory for a moment are no failures of a request.
  void submit(unsigned wait_for) {
    for (;;) {
      const int result = io_uring_submit_and_wait(&ring_, wait_for);
      if (result >= 0) return;
      KV_CHECK(result == -EINTR || result == -EAGAIN || result == -EBUSY, "io_uring_submit: {}",
               system_reason(-result));
    }
  }

  const int file_;
  const int depth_;
  io_uring ring_;
  const int wake_;  // an eventfd
  int in_flight_ = 0;
  bool polling_ = false;
};

}  // namespace

Result<std::unique_ptr<DiskIo>> make_uring_io(int file, int depth) {
  io_uring ring{};
  const int failed = io_uring_queue_init(static_cast<unsigned>(depth) + 2, &ring, 0);
  if (failed == -ENOMEM) {
    return error(ErrorCode::kExhausted,
                 "the disk tier: no memory for io_uring: raise the limit of locked memory (ulimit -l)");
  }
  if (failed != 0) {
    return error(
        ErrorCode::kUnsupported,
        "the disk tier: the kernel refuses io_uring ({}): allow it (kernel.io_uring_disabled=0, and a "
        "seccomp profile of the container that permits io_uring_setup), or do without a disk tier",
        system_reason(-failed));
  }
  const int wake = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake < 0) {
    const int why = errno;
    io_uring_queue_exit(&ring);
    return error(ErrorCode::kExhausted, "the disk tier: no eventfd ({}): raise the limit of open files",
                 system_reason(why));
  }
  return std::unique_ptr<DiskIo>(std::make_unique<UringIo>(file, depth, ring, wake));
}

}  // namespace kvasir
