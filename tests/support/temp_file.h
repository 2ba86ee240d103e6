// Files and folders that are gone when the test ends.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace kvasir::test {

// Creates a file of its own under the system's temporary folder. Aborts the test program if it cannot.
class TempFile {
 public:
  explicit TempFile(std::span<const std::byte> content);
  ~TempFile();
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// An empty folder, likewise; removed with what is then in it.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace kvasir::test
