// Files as a whole: read, and replaced at once or not at all.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/status.h"

namespace kvasir {

// Closes the descriptor on every way out. One below 0 is none.
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

// What the system calls an errno.
std::string system_reason(int error_number);

// All that is in a file. kNotFound: it cannot be opened. kIo: it cannot be read.
Result<std::string> read_file(const std::string& path);

// The file at `path` becomes `bytes`: whoever opens it finds all that was there before or all of these, and
// the same after a crash. They are written to a file of their own beside it and flushed; that file then takes
// the name, and the folder is flushed. `mode` is that of open(), less the umask. Thread-safe; of several at
// once the last one stays.
// A process that dies meanwhile leaves what it has written beside it, as path.N.new.
// kIo: the file is as it was, and nothing is left beside it (if the folder cannot be flushed, it is
// replaced).
Status replace_file(const std::string& path, std::span<const std::byte> bytes, unsigned mode = 0666);

}  // namespace kvasir
