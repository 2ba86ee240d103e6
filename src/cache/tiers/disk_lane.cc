#include "cache/tiers/disk_lane.h"

#include <sys/mman.h>

#include <array>
#include <cstring>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace kvasir {
namespace {

// One call of the kernel for so many bytes: small ones share it, and large ones do not wait for each other.
constexpr uint64_t kFlushBytes = 256 * kKiB;

Status copy(Mover* mover, std::byte* to, const std::byte* from, uint64_t bytes) {
  if (mover != nullptr) {
    const MovedRun run = {to, from, bytes};
    return mover->move({&run, 1});
  }
  std::memcpy(to, from, bytes);
  return {};
}

}  // namespace

DiskLane::DiskLane(DiskFile& file, std::span<std::byte> buffers)
    : file_(file),
      buffer_bytes_(round_up(file.max_piece_bytes(), kDiskAlign)),
      jobs_(static_cast<size_t>(file.queue_depth())) {
  for (size_t slot = jobs_.size(); slot-- > 0;) free_.push_back(slot);
  buffers_ = buffers.data();
  if (buffers_ != nullptr) {
    KV_CHECK(buffers.size() >= file.buffer_bytes() && reinterpret_cast<uintptr_t>(buffers_) % kDiskAlign == 0,
             "{} bytes of buffers at {}", buffers.size(), static_cast<void*>(buffers_));
    return;
  }
  const uint64_t bytes = round_up<uint64_t>(buffer_bytes_ * jobs_.size(), kBufferAlign);
  own_buffers_.reset(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{kBufferAlign})));
  buffers_ = own_buffers_.get();
  ::madvise(buffers_, bytes, MADV_HUGEPAGE);  // fewer pages to pin; where it is refused nothing is lost
  std::memset(buffers_, 0, bytes);
}

DiskLane::~DiskLane() {
  KV_CHECK(idle(), "{} pieces are in flight", jobs_.size() - free_.size());
}

Status DiskLane::begin(const DiskJob& job) {
  KV_CHECK(!free_.empty() && file_.has_place_for(job.offset, job.bytes), "offset={} bytes={}", job.offset,
           job.bytes);
  const size_t slot = free_.back();
  const uint64_t padded = round_up(job.bytes, kDiskAlign);
  const std::span<std::byte> bytes(buffer(slot), padded);
  if (job.op == DiskRequest::Op::kWrite) {
    // Also if the copy fails: the place is the new piece's, and the former bytes must not be read as it.
    file_.begin_write(job.offset, job.bytes);
    KV_RETURN_IF_ERROR(copy(job.mover, bytes.data(), job.memory, job.bytes));
  }
  free_.pop_back();
  jobs_[slot].job = job;
  if (job.op == DiskRequest::Op::kWrite) {
    std::memset(bytes.data() + job.bytes, 0, padded - job.bytes);
    jobs_[slot].checksum = DiskFile::checksum(job.offset, bytes.first(job.bytes));
  }
  file_.io().queue({job.op, DiskFile::place_of(job.offset), bytes, slot});
  unflushed_ += padded;
  if (unflushed_ < kFlushBytes) return {};
  file_.io().flush();
  unflushed_ = 0;
  return {};
}

void DiskLane::wait(std::vector<Ended>& ended) {
  std::array<DiskCompletion, kEndedAtOnce> completions;
  const size_t n = file_.io().wait(completions);
  unflushed_ = 0;
  for (size_t i = 0; i < n; ++i) {
    const size_t slot = completions[i].tag;
    Status status;
    try {
      status = end(slot, completions[i].result);
    } catch (const std::bad_alloc&) {  // for the words of a failure
      const bool read = jobs_[slot].job.op == DiskRequest::Op::kRead;
      status = {read ? ErrorCode::kCorrupt : ErrorCode::kUnavailable, {}};
    }
    ended.push_back({jobs_[slot].job, std::move(status)});
    free_.push_back(slot);
  }
}

Status DiskLane::end(size_t slot, int64_t result) {
  const auto& [job, checksum] = jobs_[slot];
  if (job.op == DiskRequest::Op::kWrite) return file_.end_write(job.offset, checksum, job.bytes, result);
  KV_RETURN_IF_ERROR(file_.end_read(job.offset, {buffer(slot), job.bytes}, result));
  return copy(job.mover, job.memory, buffer(slot), job.bytes);
}

}  // namespace kvasir
