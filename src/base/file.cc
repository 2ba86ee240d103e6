#include "base/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

namespace kvasir {
namespace {

bool write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return true;
}

// A new file of its own, in the same directory as `path`.
int create_beside(const std::string& path, unsigned mode, std::string& name) {
  for (int n = 0;; ++n) {
    name = fmt::format("{}.{}.new", path, n);
    const int fd = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    // The file belongs to another writer, which is still writing or did not finish.
    if (fd >= 0 || errno != EEXIST) return fd;
  }
}

// So that the new name is on the disk, too.
Status flush_folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const FileDescriptor opened(
      ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.get() >= 0 && ::fsync(opened.get()) == 0) return {};
  return error(ErrorCode::kIo, "{}: its folder cannot be flushed: {}", path, system_reason(errno));
}

}  // namespace

std::string system_reason(int error_number) {
  return std::generic_category().message(error_number);
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

Result<std::string> read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return error(ErrorCode::kNotFound, "{}: cannot be opened; does the file exist?", path);
  try {
    std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    if (!in.bad()) return text;
  } catch (const std::ios_base::failure&) {  // of a folder, which can be opened
  }
  return error(ErrorCode::kIo, "{}: cannot be read", path);
}

Status replace_file(const std::string& path, std::span<const std::byte> bytes, unsigned mode) {
  std::string beside;
  {
    const FileDescriptor file(create_beside(path, mode, beside));
    if (file.get() < 0 || !write_all(file.get(), bytes) || ::fsync(file.get()) != 0) {
      const int why = errno;
      if (file.get() >= 0) ::unlink(beside.c_str());
      return error(ErrorCode::kIo, "{}: cannot be written: {}; is its folder there, and is there room?", path,
                   system_reason(why));
    }
  }
  if (::rename(beside.c_str(), path.c_str()) != 0) {
    const int why = errno;
    ::unlink(beside.c_str());
    return error(ErrorCode::kIo, "{}: cannot be replaced: {}", path, system_reason(why));
  }
  return flush_folder_of(path);
}

}  // namespace kvasir
