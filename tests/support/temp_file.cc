// Temporary files by mkstemp.
#include "support/temp_file.h"

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>

#include "base/check.h"

namespace kvasir::test {

TempFile::TempFile(std::span<const std::byte> content)
    : path_((std::filesystem::temp_directory_path() / "kvasir-test-XXXXXX").string()) {
  const int fd = ::mkstemp(path_.data());
  KV_CHECK(fd >= 0, "cannot create {}", path_);
  while (!content.empty()) {
    const ssize_t written = ::write(fd, content.data(), content.size());
    KV_CHECK(written > 0, "cannot write {}", path_);
    content = content.subspan(static_cast<size_t>(written));
  }
  ::close(fd);
}

TempFile::~TempFile() {
  ::unlink(path_.c_str());
}

TempFolder::TempFolder() : path_((std::filesystem::temp_directory_path() / "kvasir-test-XXXXXX").string()) {
  KV_CHECK(::mkdtemp(path_.data()) != nullptr, "cannot create {}", path_);
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace kvasir::test
