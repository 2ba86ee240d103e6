// Reads whole files and replaces them atomically.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/status.h"

namespace kvasir {

// Closes the descriptor in its destructor. A negative value means no descriptor.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor();
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// The system's message for an errno.
std::string system_reason(int error_number);

// The content of a file. kNotFound: it cannot be opened. kIo: it cannot be read.
Result<std::string> read_file(const std::string& path);

// A file that is written in parts and then takes its place at `path` atomically, as replace_file() describes.
// Without a successful commit() the destructor removes what was written, and the file at `path` is unchanged.
// Not thread-safe.
class FileReplacement {
 public:
  // kIo: no file can be made there, or `path` is a directory.
  static Result<FileReplacement> create(const std::string& path, unsigned mode = 0666);
  FileReplacement(FileReplacement&& other) noexcept;
  ~FileReplacement();

  // kIo: the bytes cannot be written, for example because the disk is full.
  Status append(std::span<const std::byte> bytes);
  // Once. kIo: as of replace_file().
  Status commit();

 private:
  FileReplacement(std::string path, std::string beside, int fd);
  Status failure(int error_number) const;

  std::string path_, beside_;  // beside_ is empty: there is no such file any more
  int fd_;                     // -1: closed
};

// Replaces the file at `path` by `bytes` atomically: a reader finds either all the old bytes or all the new
// ones, also after a crash. The bytes are written to a temporary file in the same folder and flushed; that
// file is renamed to `path`, and the folder is flushed. `mode` is that of open(), less the umask.
// Thread-safe; of several concurrent calls the last one wins. A process that dies during the call leaves the
// temporary file, path.N.new. kIo: the file is unchanged and no temporary file is left (if the folder cannot
// be flushed, the file is replaced).
Status replace_file(const std::string& path, std::span<const std::byte> bytes, unsigned mode = 0666);

}  // namespace kvasir
