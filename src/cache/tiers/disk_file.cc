#include "cache/tiers/disk_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/check.h"
#include "base/file.h"
#include "base/log.h"

namespace kvasir {
namespace {

constexpr const char* kDataName = "kvasir-kv.data";
constexpr const char* kIndexName = "kvasir-kv.index";

DiskFileOptions rounded(DiskFileOptions options) {
  options.bytes -= options.bytes % kDiskAlign;
  return options;
}

struct AlignedDelete {
  void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{kDiskAlign}); }
};
std::unique_ptr<std::byte[], AlignedDelete> aligned_block() {
  auto* p = static_cast<std::byte*>(::operator new[](kDiskHeaderBlock, std::align_val_t{kDiskAlign}));
  return std::unique_ptr<std::byte[], AlignedDelete>(p);
}

// Why a file that has this header is not taken over; empty: it is.
std::string difference(const DiskHeader& header, const DiskFileOptions& options) {
  if (header.model != options.model) return "it belongs to another model";
  if (header.numerics_id != options.numerics_id) return "its numerics id is '" + header.numerics_id + "'";
  if (header.geometry != options.geometry) {
    return fmt::format("its pieces have another shape ({}; now {})", header.geometry, options.geometry);
  }
  if (header.bytes != options.bytes) return "its size was " + format_bytes(header.bytes);
  if (header.index != kIndexName) return "its index has another name";
  if (!header.clean) return "it was not closed in order";
  return "";
}

}  // namespace

DiskFile::DiskFile(DiskFileOptions options, std::string directory)
    : options_(std::move(options)), path_(directory + kDataName), index_path_(directory + kIndexName) {}

DiskFile::~DiskFile() {
  io_.reset();
  if (fd_ >= 0) ::close(fd_);
}

Result<std::unique_ptr<DiskFile>> DiskFile::open(DiskFileOptions options) {
  options = rounded(std::move(options));
  KV_CHECK(options.max_piece_bytes > 0 && options.queue_depth > 0, "max_piece_bytes={} queue_depth={}",
           options.max_piece_bytes, options.queue_depth);
  if (options.directory.empty() || options.bytes < round_up(options.max_piece_bytes, kDiskAlign)) {
    return error(ErrorCode::kInvalidArgument,
                 "the disk tier: {} in '{}': name a directory, and a size of at least {}",
                 format_bytes(options.bytes), options.directory, format_bytes(options.max_piece_bytes));
  }
  std::string directory = options.directory + (options.directory.back() == '/' ? "" : "/");
  std::unique_ptr<DiskFile> file(new DiskFile(std::move(options), std::move(directory)));
  Status status = file->prepare();
  if (status.ok()) return file;
  if (file->is_new_) ::unlink(file->path_.c_str());
  return status;
}

Status DiskFile::prepare() {
  KV_RETURN_IF_ERROR(open_file());
  KV_ASSIGN_OR_RETURN(io_, options_.io(fd_, options_.queue_depth));
  KV_RETURN_IF_ERROR(check_room());
  sums_.assign(options_.bytes / kDiskAlign, 0);
  take_over();
  KV_RETURN_IF_ERROR(allocate());
  direct_ = ::fcntl(fd_, F_SETFL, O_DIRECT) == 0;
  ++generation_;
  KV_RETURN_IF_ERROR(write_header(false));
  is_new_ = false;
  if (!direct_) {
    log_info(
        "{}: its file system has no O_DIRECT, so the disk tier's bytes also take memory in the page cache",
        path_);
  }
  return {};
}

Status DiskFile::open_file() {
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
  if (fd_ < 0 && (errno == ENOENT || errno == ENOTDIR)) {
    return error(ErrorCode::kNotFound, "{}: there is no such directory; create it, or name another",
                 options_.directory);
  }
  if (fd_ < 0)
    return error(ErrorCode::kIo, "{}: cannot open the disk tier's file: {}", path_, system_reason(errno));
  // Held as long as the file is open, however the server ends.
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    return error(ErrorCode::kUnavailable,
                 "{}: another server uses this file; give each a directory of its own", path_);
  }
  struct stat info = {};
  if (::fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
    return error(ErrorCode::kInvalidArgument, "{}: this is not a plain file; move it out of the way", path_);
  }
  is_new_ = info.st_size == 0;
  return {};
}

void DiskFile::take_over() {
  if (is_new_) return;
  const auto block = aligned_block();
  const ssize_t n = ::pread(fd_, block.get(), kDiskHeaderBlock, 0);
  const Result<DiskHeader> header =
      decode(std::span(block.get(), static_cast<size_t>(std::max<ssize_t>(n, 0))));
  std::string why;
  struct stat info = {};
  if (!header.ok()) {
    why = header.status().message();
  } else {
    generation_ = header.value().generation;
    why = difference(header.value(), options_);
    if (why.empty() && (::fstat(fd_, &info) != 0 || static_cast<uint64_t>(info.st_size) < file_bytes())) {
      why = "it was truncated";
    }
  }
  if (why.empty()) {
    Result<std::vector<DiskEntry>> entries = read_disk_index(index_path_, generation_, sums_);
    if (entries.ok()) {
      loaded_ = *std::move(entries);
      log_info("{}: holds {} from before", path_, count_of(loaded_.size(), "copy", "copies"));
      return;
    }
    why = entries.status().message();
    std::fill(sums_.begin(), sums_.end(), 0);
  }
  log_warning("{}: the disk tier starts empty: {}; what it held is discarded", path_, why);
}

// Asked before anything is reserved, so that a wish that cannot be met does not fill the disk.
Status DiskFile::check_room() const {
  struct stat info = {};
  struct statvfs system = {};
  if (::fstat(fd_, &info) != 0 || ::fstatvfs(fd_, &system) != 0) {
    return error(ErrorCode::kIo, "{}: cannot ask for its size: {}", path_, system_reason(errno));
  }
  const uint64_t available = system.f_bavail * system.f_frsize + static_cast<uint64_t>(info.st_blocks) * 512;
  // Some systems know no sizes.
  return system.f_blocks > 0 && file_bytes() > available ? no_room(available) : Status();
}

Status DiskFile::no_room(uint64_t available) const {
  return error(ErrorCode::kExhausted,
               "{}: the disk tier wants {} and {} are available: ask for less, or name another directory",
               options_.directory, format_bytes(file_bytes()), format_bytes(available));
}

Status DiskFile::allocate() {
  struct stat info = {};
  if (::fstat(fd_, &info) != 0) {
    return error(ErrorCode::kIo, "{}: cannot ask for its size: {}", path_, system_reason(errno));
  }
  const auto length = static_cast<off_t>(file_bytes());
  int result = 0;
  do {
    result = ::fallocate(fd_, 0, 0, length);
  } while (result != 0 && errno == EINTR);
  if (result != 0 && (errno == EOPNOTSUPP || errno == ENOSYS)) {
    log_info("{}: its file system reserves no room, so writes fail later if the disk is full then", path_);
    result = 0;
  }
  if (result == 0) result = ::ftruncate(fd_, length);
  if (result == 0) return {};
  const int why = errno;
  struct statvfs system = {};
  [[maybe_unused]] const int undone = ::ftruncate(fd_, info.st_size) + ::fstatvfs(fd_, &system);
  if (why == ENOSPC || why == EDQUOT || why == EFBIG) return no_room(system.f_bavail * system.f_frsize);
  return error(ErrorCode::kIo, "{}: cannot reserve {}: {}", path_, format_bytes(file_bytes()),
               system_reason(why));
}

Status DiskFile::write_header(bool clean) {
  KV_ASSIGN_OR_RETURN(const std::vector<std::byte> block, encode({.clean = clean,
                                                                  .generation = generation_,
                                                                  .bytes = options_.bytes,
                                                                  .numerics_id = options_.numerics_id,
                                                                  .model = options_.model,
                                                                  .geometry = options_.geometry,
                                                                  .index = kIndexName}));
  KV_RETURN_IF_ERROR(write_block(block));
  clean_ = clean;
  return {};
}

Status DiskFile::write_block(std::span<const std::byte> block) {
  const auto aligned = aligned_block();
  std::memcpy(aligned.get(), block.data(), block.size());
  ssize_t n = 0;
  for (;;) {
    n = ::pwrite(fd_, aligned.get(), block.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    // Some systems refuse O_DIRECT only where it is used.
    if (n < 0 && errno == EINVAL && direct_ && ::fcntl(fd_, F_SETFL, 0) == 0) {
      direct_ = false;
      continue;
    }
    break;
  }
  if (n == static_cast<ssize_t>(block.size()) && ::fdatasync(fd_) == 0) return {};
  return error(ErrorCode::kIo, "{}: cannot write the header: {}", path_,
               n >= 0 && n < static_cast<ssize_t>(block.size()) ? "the disk is full" : system_reason(errno));
}

Status DiskFile::save(std::span<const DiskEntry> entries) {
  std::vector<DiskEntry> kept;
  for (const DiskEntry& e : entries) {
    KV_CHECK(has_place_for(e.offset, 1), "offset {} of {}", e.offset, options_.bytes);
    if (sum_at(e.offset) != 0) kept.push_back(e);
  }
  if (clean_) KV_RETURN_IF_ERROR(write_header(false));
  // The pieces are on the disk before an index names them, and the index before the header trusts it.
  if (::fdatasync(fd_) != 0)
    return error(ErrorCode::kIo, "{}: cannot flush: {}", path_, system_reason(errno));
  KV_RETURN_IF_ERROR(write_disk_index(index_path_, generation_, kept, sums_));
  return write_header(true);
}

uint64_t DiskFile::place_of(uint64_t offset) {
  return kDiskHeaderRegion + offset;
}

bool DiskFile::has_place_for(uint64_t offset, uint64_t bytes) const {
  return offset % kDiskAlign == 0 && bytes > 0 && bytes <= options_.max_piece_bytes &&
         offset < options_.bytes && round_up(bytes, kDiskAlign) <= options_.bytes - offset;
}

uint64_t DiskFile::checksum(uint64_t offset, std::span<const std::byte> piece) {
  const uint64_t sum = XXH3_64bits_withSeed(piece.data(), piece.size(), offset);
  return sum == 0 ? 1 : sum;
}

void DiskFile::begin_write(uint64_t offset, uint64_t bytes) {
  if (clean_) {
    clean_ = false;
    // If that fails, the file names an index that no longer agrees. Checksums will see it, piece by piece.
    try {
      const Status status = write_header(false);
      if (!status.ok()) log_warning("{}", status.message());
    } catch (const std::bad_alloc&) {
      log_warning("{}: no memory for its header", path_);
    }
  }
  for (uint64_t at = offset; at < offset + bytes; at += kDiskAlign) sum_at(at) = 0;
}

Status DiskFile::end_write(uint64_t offset, uint64_t checksum, uint64_t bytes, int64_t result) {
  const uint64_t padded = round_up(bytes, kDiskAlign);
  if (result == static_cast<int64_t>(padded)) {
    sum_at(offset) = checksum;
    ++counters_.writes;
    counters_.written_bytes += bytes;
    return {};
  }
  ++counters_.write_errors;
  return error(
      ErrorCode::kUnavailable, "{}: writing {} bytes at {} failed: {}", path_, padded, place_of(offset),
      result < 0 ? system_reason(static_cast<int>(-result)) : fmt::format("only {} were written", result));
}

Status DiskFile::end_read(uint64_t offset, std::span<const std::byte> piece, int64_t result) {
  const uint64_t padded = round_up<uint64_t>(piece.size(), kDiskAlign);
  if (result < 0) {
    ++counters_.read_errors;
    return error(ErrorCode::kCorrupt, "{}: reading {} bytes at {} failed: {}", path_, padded,
                 place_of(offset), system_reason(static_cast<int>(-result)));
  }
  if (static_cast<uint64_t>(result) < padded) {
    ++counters_.short_reads;
    return error(ErrorCode::kCorrupt, "{}: only {} of {} bytes at {}: the file was truncated", path_, result,
                 padded, place_of(offset));
  }
  if (checksum(offset, piece) != sum_at(offset)) {
    ++counters_.checksum_mismatches;
    return error(ErrorCode::kCorrupt,
                 "{}: {} bytes at {} are not those that were written there: check the disk", path_,
                 piece.size(), place_of(offset));
  }
  ++counters_.reads;
  counters_.read_bytes += piece.size();
  return {};
}

DiskStats DiskFile::stats() const {
  return {
      counters_.reads,       counters_.writes,      counters_.read_bytes,          counters_.written_bytes,
      counters_.read_errors, counters_.short_reads, counters_.checksum_mismatches, counters_.write_errors};
}

}  // namespace kvasir
