// A directory of a test's own, and pieces in a disk tier's file there.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/units.h"
#include "cache/tiers/disk_lane.h"

namespace kvasir::test {

using Bytes = std::vector<std::byte>;
constexpr auto kRead = DiskRequest::Op::kRead;
constexpr auto kWrite = DiskRequest::Op::kWrite;

inline Bytes random_bytes(size_t n, uint64_t seed) {
  Bytes bytes(n);
  Random random(seed);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random.bits());
  return bytes;
}

class TestDirectory {
 public:
  TestDirectory() : path_(testing::TempDir() + "kvasir-disk-XXXXXX") {
    if (!::mkdtemp(path_.data())) ADD_FAILURE() << "no directory " << path_;
  }
  ~TestDirectory() { std::filesystem::remove_all(path_); }
  TestDirectory(const TestDirectory&) = delete;
  TestDirectory& operator=(const TestDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string data() const { return path_ + "/kvasir-kv.data"; }
  std::string index() const { return path_ + "/kvasir-kv.index"; }
  size_t files() const {
    size_t n = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(path_)) ++n;
    return n;
  }

 private:
  std::string path_;
};

inline DiskFileOptions disk_options(const TestDirectory& directory, uint64_t bytes = 4 * kMiB) {
  DiskFileOptions options;
  options.directory = directory.path();
  options.bytes = bytes;
  options.numerics_id = "kvasir-2/test";
  options.model = "0123456789abcdef";
  options.geometry = "64 tokens, 3 layers";
  options.max_piece_bytes = kMiB;
  options.queue_depth = 8;
  return options;
}

// One piece, alone.
inline Status move_piece(DiskFile& file, DiskRequest::Op op, uint64_t offset, std::span<std::byte> bytes) {
  DiskLane lane(file);
  EXPECT_TRUE(lane.begin({.op = op, .offset = offset, .memory = bytes.data(), .bytes = bytes.size()}).ok());
  std::vector<DiskLane::Ended> ended;
  while (ended.empty()) lane.wait(ended);
  return ended[0].status;
}
inline Status write_piece(DiskFile& file, uint64_t offset, Bytes bytes) {
  return move_piece(file, kWrite, offset, bytes);
}
inline Status read_piece(DiskFile& file, uint64_t offset, Bytes& bytes) {
  return move_piece(file, kRead, offset, bytes);
}

// Changes a byte behind the server's back.
inline void flip_byte(const std::string& path, uint64_t at) {
  const int fd = ::open(path.c_str(), O_RDWR);
  ASSERT_GE(fd, 0) << path;
  std::byte b{};
  EXPECT_EQ(::pread(fd, &b, 1, static_cast<off_t>(at)), 1);
  b ^= std::byte{0x10};
  EXPECT_EQ(::pwrite(fd, &b, 1, static_cast<off_t>(at)), 1);
  ::close(fd);
}

}  // namespace kvasir::test
