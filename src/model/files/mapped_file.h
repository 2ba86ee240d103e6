// A file mapped read-only into memory.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "base/status.h"

namespace kvasir {

// Owns the mapping; the bytes live as long as the object and do not move with it. Movable, not copyable.
// Reading is thread-safe. The file must not shrink while it is mapped: the kernel then ends the process.
class MappedFile {
 public:
  // kNotFound: no such file. kInvalidArgument: a directory, something that is not a plain file, or an empty
  // file. kIo: the operating system refused; the message carries its reason.
  static Result<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

  // Tells the kernel that the whole pages inside `part` are not needed soon: the process's resident memory
  // falls by them, and a later read fetches the same bytes again from the file.
  // REQUIRES: `part` lies inside bytes().
  void release(std::span<const std::byte> part) const;

 private:
  MappedFile(std::string path, const std::byte* data, size_t size)
      : path_(std::move(path)), data_(data), size_(size) {}

  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace kvasir
