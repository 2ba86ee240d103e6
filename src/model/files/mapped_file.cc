// A file mapped read-only: open, check that it is a plain file, map, unmap.
#include "model/files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "base/file.h"
#include "base/units.h"

namespace kvasir {

Result<MappedFile> MappedFile::open(const std::string& path) {
  // O_NONBLOCK: opening a named pipe must not wait for its writer. The mapping outlives the descriptor.
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) {
    if (errno == ENOENT || errno == ENOTDIR) {
      return error(ErrorCode::kNotFound, "{}: no such file; check the path of the model", path);
    }
    return error(ErrorCode::kIo, "{}: cannot open the file: {}", path, system_reason(errno));
  }
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) {
    return error(ErrorCode::kIo, "{}: cannot read the size of the file: {}", path, system_reason(errno));
  }
  if (S_ISDIR(info.st_mode)) {
    return error(ErrorCode::kInvalidArgument, "{}: this is a directory; name the .gguf file inside it", path);
  }
  if (!S_ISREG(info.st_mode)) {
    return error(ErrorCode::kInvalidArgument, "{}: this is not a plain file; name a .gguf file", path);
  }
  if (info.st_size == 0) {
    return error(ErrorCode::kInvalidArgument, "{}: the file is empty; fetch it again", path);
  }
  auto size = static_cast<size_t>(info.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) {
    return error(ErrorCode::kIo, "{}: cannot map the file into memory: {}", path, system_reason(errno));
  }
  return MappedFile(path, static_cast<const std::byte*>(data), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::release(std::span<const std::byte> part) const {
  KV_CHECK(part.empty() || (part.data() >= data_ && part.data() + part.size() <= data_ + size_),
           "a part of {} bytes outside a mapping of {} bytes", part.size(), size_);
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = round_up(reinterpret_cast<uintptr_t>(part.data()), page);
  const uintptr_t end = (reinterpret_cast<uintptr_t>(part.data()) + part.size()) / page * page;
  // Only a hint: if the kernel declines, the pages stay, which is correct and merely larger.
  if (begin < end) (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace kvasir
