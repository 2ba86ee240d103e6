#include "base/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

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

FileReplacement::FileReplacement(std::string path, std::string beside, int fd)
    : path_(std::move(path)), beside_(std::move(beside)), fd_(fd) {}

FileReplacement::FileReplacement(FileReplacement&& other) noexcept
    : path_(std::move(other.path_)),
      beside_(std::exchange(other.beside_, {})),
      fd_(std::exchange(other.fd_, -1)) {}

FileReplacement::~FileReplacement() {
  if (fd_ >= 0) ::close(fd_);
  if (!beside_.empty()) ::unlink(beside_.c_str());
}

Status FileReplacement::failure(int error_number) const {
  return error(ErrorCode::kIo, "{}: cannot be written: {}; is its folder there, and is there room?", path_,
               system_reason(error_number));
}

Result<FileReplacement> FileReplacement::create(const std::string& path, unsigned mode) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    return error(ErrorCode::kIo, "{}: this is a directory; name a file", path);
  }
  std::string beside;
  const int fd = create_beside(path, mode, beside);
  if (const int why = errno; fd < 0) return FileReplacement(path, {}, -1).failure(why);
  return FileReplacement(path, std::move(beside), fd);
}

Status FileReplacement::append(std::span<const std::byte> bytes) {
  return write_all(fd_, bytes) ? Status() : failure(errno);
}

Status FileReplacement::commit() {
  if (::fsync(fd_) != 0) return failure(errno);
  ::close(std::exchange(fd_, -1));
  if (::rename(beside_.c_str(), path_.c_str()) != 0) {
    return error(ErrorCode::kIo, "{}: cannot be replaced: {}", path_, system_reason(errno));
  }
  beside_.clear();
  return flush_folder_of(path_);
}

Status replace_file(const std::string& path, std::span<const std::byte> bytes, unsigned mode) {
  KV_ASSIGN_OR_RETURN(FileReplacement file, FileReplacement::create(path, mode));
  KV_RETURN_IF_ERROR(file.append(bytes));
  return file.commit();
}

}  // namespace kvasir
