// The disk tier's file: its pieces, and what can happen to them while it is open.
#include "cache/tiers/disk_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstddef>

#include "cache/disk_world.h"
#include "fakes/fake_disk_io.h"

namespace kvasir {
namespace {

using testing::HasSubstr;
using namespace test;

class DiskFileTest : public testing::Test {
 protected:
  std::unique_ptr<DiskFile> open(const DiskFileOptions& options) {
    Result<std::unique_ptr<DiskFile>> file = DiskFile::open(options);
    EXPECT_TRUE(file.ok()) << file.status().message();
    return file.ok() ? *std::move(file) : nullptr;
  }
  std::unique_ptr<DiskFile> open() { return open(disk_options(directory_)); }

  TestDirectory directory_;
};

TEST_F(DiskFileTest, PiecesOfAllSizesComeBack) {
  const auto file = open();
  const uint64_t sizes[] = {1, 4095, 4096, 4097, 24 * kKiB + 5, 98 * kKiB, kMiB};
  uint64_t offset = 0;
  uint64_t bytes = 0;
  for (int round = 0; round < 2; ++round) {
    offset = 0;
    for (uint64_t size : sizes) {
      EXPECT_TRUE(write_piece(*file, offset, random_bytes(size, size + round)).ok());
      offset += round_up(size, kDiskAlign);
      bytes += size;
    }
    offset = 0;
    for (uint64_t size : sizes) {
      Bytes read(size);
      const Status status = read_piece(*file, offset, read);
      EXPECT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(read, random_bytes(size, size + round)) << size;
      offset += round_up(size, kDiskAlign);
    }
  }
  const DiskStats stats = file->stats();
  EXPECT_EQ(stats.reads, 14);
  EXPECT_EQ(stats.writes, 14);
  EXPECT_EQ(stats.read_bytes, bytes);
  EXPECT_EQ(stats.written_bytes, bytes);
  EXPECT_EQ(stats.read_errors + stats.short_reads + stats.checksum_mismatches + stats.write_errors, 0);
}

TEST_F(DiskFileTest, TheLastPieceEndsWhereTheTierDoes) {
  const auto file = open();
  EXPECT_TRUE(file->has_place_for(3 * kMiB, kMiB));
  EXPECT_TRUE(file->has_place_for(4 * kMiB - 4096, 1));
  EXPECT_FALSE(file->has_place_for(4 * kMiB - 4096, 4097));
  EXPECT_FALSE(file->has_place_for(4 * kMiB, 1));
  EXPECT_FALSE(file->has_place_for(512, 1));
  EXPECT_FALSE(file->has_place_for(0, 0));
  EXPECT_FALSE(file->has_place_for(0, kMiB + 1));
  EXPECT_FALSE(file->has_place_for(uint64_t{0} - 4096, 4096));
  EXPECT_TRUE(write_piece(*file, 3 * kMiB, random_bytes(kMiB, 1)).ok());
  Bytes read(kMiB);
  EXPECT_TRUE(read_piece(*file, 3 * kMiB, read).ok());
  EXPECT_EQ(std::filesystem::file_size(directory_.data()), DiskFile::place_of(4 * kMiB));
}

TEST_F(DiskFileTest, AChangedByteIsSeenWhereverItIs) {
  const auto file = open();
  const Bytes piece = random_bytes(24 * kKiB, 1);
  for (uint64_t at : {0, 1, 4095, 12345, 24 * 1024 - 1}) {
    EXPECT_TRUE(write_piece(*file, 0, piece).ok());
    EXPECT_TRUE(write_piece(*file, 24 * kKiB, piece).ok());
    flip_byte(directory_.data(), DiskFile::place_of(at));
    Bytes read(piece.size(), std::byte{7});
    const Status status = read_piece(*file, 0, read);
    ASSERT_FALSE(status.ok()) << at;
    EXPECT_EQ(status.code(), ErrorCode::kCorrupt);
    EXPECT_THAT(status.message(), HasSubstr(directory_.data()));
    EXPECT_THAT(status.message(), HasSubstr(" at " + std::to_string(DiskFile::place_of(0)) + " "));
    EXPECT_EQ(read, Bytes(piece.size(), std::byte{7})) << "no byte of it reaches memory";
    EXPECT_TRUE(read_piece(*file, 24 * kKiB, read).ok()) << "the next piece is whole";
    EXPECT_EQ(read, piece);
  }
  EXPECT_EQ(file->stats().checksum_mismatches, 5);
}

TEST_F(DiskFileTest, BytesOfAnotherPlaceSizeOrTimeAreSeen) {
  const auto file = open();
  EXPECT_TRUE(write_piece(*file, 0, random_bytes(8192, 1)).ok());
  EXPECT_TRUE(write_piece(*file, 8192, random_bytes(8192, 2)).ok());
  // The same bytes in another place.
  Bytes block = random_bytes(8192, 1);
  const int fd = ::open(directory_.data().c_str(), O_RDWR);
  EXPECT_EQ(::pwrite(fd, block.data(), block.size(), static_cast<off_t>(DiskFile::place_of(8192))), 8192);
  ::close(fd);
  Bytes read(8192);
  EXPECT_TRUE(read_piece(*file, 0, read).ok());
  EXPECT_EQ(read_piece(*file, 8192, read).code(), ErrorCode::kCorrupt);
  EXPECT_NE(DiskFile::checksum(0, block), DiskFile::checksum(8192, block));
  // Another size, and what no piece was written to.
  Bytes shorter(8191);
  EXPECT_EQ(read_piece(*file, 0, shorter).code(), ErrorCode::kCorrupt);
  EXPECT_EQ(read_piece(*file, 16384, read).code(), ErrorCode::kCorrupt);
  // A piece inside of which another was written.
  EXPECT_TRUE(write_piece(*file, 4096, random_bytes(100, 3)).ok());
  EXPECT_EQ(read_piece(*file, 0, read).code(), ErrorCode::kCorrupt);
  EXPECT_TRUE(write_piece(*file, 0, random_bytes(8192, 4)).ok());
  Bytes inside(100);
  EXPECT_EQ(read_piece(*file, 4096, inside).code(), ErrorCode::kCorrupt);
}

TEST_F(DiskFileTest, AFileThatIsCutShortFailsReadsUntilItIsWrittenAgain) {
  const auto file = open();
  EXPECT_TRUE(write_piece(*file, 0, random_bytes(8192, 1)).ok());
  EXPECT_TRUE(write_piece(*file, kMiB, random_bytes(8192, 2)).ok());
  EXPECT_TRUE(write_piece(*file, 2 * kMiB, random_bytes(8192, 3)).ok());
  std::filesystem::resize_file(directory_.data(), DiskFile::place_of(kMiB) + 4096);
  Bytes read(8192);
  EXPECT_TRUE(read_piece(*file, 0, read).ok());
  for (uint64_t offset : {kMiB, 2 * kMiB}) {
    const Status status = read_piece(*file, offset, read);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.code(), ErrorCode::kCorrupt);
    EXPECT_THAT(status.message(), HasSubstr(directory_.data()));
  }
  EXPECT_EQ(file->stats().short_reads, 2);
  EXPECT_TRUE(write_piece(*file, kMiB, random_bytes(8192, 4)).ok());
  EXPECT_TRUE(read_piece(*file, kMiB, read).ok());
  EXPECT_EQ(read, random_bytes(8192, 4));
}

TEST_F(DiskFileTest, AWriteThatFailsLeavesNothingToRead) {
  FakeDisk disk;
  DiskFileOptions options = disk_options(directory_);
  options.io = disk.maker();
  const auto file = open(options);
  Bytes read(5000);
  for (DiskFault fault : {DiskFault::kError, DiskFault::kFull, DiskFault::kShort}) {
    EXPECT_TRUE(write_piece(*file, 0, random_bytes(5000, 1)).ok());
    disk.fail_next(kWrite, fault);
    const Status status = write_piece(*file, 0, random_bytes(5000, 2));
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
    EXPECT_THAT(status.message(), HasSubstr(directory_.data()));
    EXPECT_EQ(read_piece(*file, 0, read).code(), ErrorCode::kCorrupt);
  }
  for (DiskFault fault : {DiskFault::kOtherBytes, DiskFault::kElsewhere, DiskFault::kLost}) {
    disk.fail_next(kWrite, fault);
    EXPECT_TRUE(write_piece(*file, 0, random_bytes(5000, 10 + static_cast<uint64_t>(fault))).ok());
    EXPECT_EQ(read_piece(*file, 0, read).code(), ErrorCode::kCorrupt) << static_cast<int>(fault);
  }
  const DiskStats stats = file->stats();
  EXPECT_EQ(stats.write_errors, 3);
  EXPECT_EQ(stats.checksum_mismatches, 6);
}

TEST_F(DiskFileTest, AFileBelongsToOneServer) {
  auto first = open();
  const Result<std::unique_ptr<DiskFile>> second = DiskFile::open(disk_options(directory_));
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(second.status().message(), HasSubstr("another server uses this file"));
  EXPECT_TRUE(write_piece(*first, 0, random_bytes(100, 1)).ok());
  EXPECT_EQ(std::filesystem::file_size(directory_.data()), DiskFile::place_of(4 * kMiB));
  first.reset();
  EXPECT_TRUE(DiskFile::open(disk_options(directory_)).ok());
}

TEST_F(DiskFileTest, MoreThanTheDiskHasIsRefusedAndChangesNothing) {
  const auto refused = [&] {
    const Result<std::unique_ptr<DiskFile>> file =
        DiskFile::open(disk_options(directory_, uint64_t{1} << 50));
    ASSERT_FALSE(file.ok());
    EXPECT_EQ(file.status().code(), ErrorCode::kExhausted);
    EXPECT_THAT(file.status().message(), HasSubstr(directory_.path()));
    EXPECT_THAT(file.status().message(), HasSubstr("available"));
  };
  refused();
  EXPECT_EQ(directory_.files(), 0);
  const DiskEntry entry{{{1, 2}}, Form::kKv, 0, 0};
  {
    const auto file = open();
    EXPECT_TRUE(write_piece(*file, 0, random_bytes(100, 1)).ok());
    EXPECT_TRUE(file->save(std::span(&entry, 1)).ok());
  }
  refused();
  EXPECT_THAT(open()->load(), testing::ElementsAre(entry));
}

TEST_F(DiskFileTest, WhatIsNoPlaceForAFileSaysSo) {
  DiskFileOptions options = disk_options(directory_);
  options.directory += "/missing";
  EXPECT_EQ(DiskFile::open(options).status().code(), ErrorCode::kNotFound);
  EXPECT_THAT(DiskFile::open(options).status().message(), HasSubstr(options.directory));
  options.directory.clear();
  EXPECT_EQ(DiskFile::open(options).status().code(), ErrorCode::kInvalidArgument);
  options = disk_options(directory_, kMiB - 1);
  EXPECT_EQ(DiskFile::open(options).status().code(), ErrorCode::kInvalidArgument);
  options = disk_options(directory_);
  options.geometry.assign(5000, 'x');
  EXPECT_EQ(DiskFile::open(options).status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(directory_.files(), 0);
  std::filesystem::create_directory(directory_.data());
  EXPECT_EQ(DiskFile::open(disk_options(directory_)).status().code(), ErrorCode::kIo);
  std::filesystem::remove(directory_.data());
  std::filesystem::create_symlink("elsewhere", directory_.data());
  EXPECT_EQ(DiskFile::open(disk_options(directory_)).status().code(), ErrorCode::kIo);
}

// What a child process says, which changes its own rights or mounts before; "skip" if it may not.
template <typename Child>
std::string in_child(Child child) {
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe";
  const pid_t pid = ::fork();
  if (pid == 0) {
    const std::string said = child();
    [[maybe_unused]] const ssize_t n = ::write(ends[1], said.data(), said.size());
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string said(4096, '\0');
  const ssize_t n = ::read(ends[0], said.data(), said.size());
  said.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(pid, &status, 0);
  return status == 0 ? said : "the child died";
}

TEST_F(DiskFileTest, AKernelThatRefusesIoUringIsNamed) {
  const std::string said = in_child([&]() -> std::string {
    sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program{4, filter};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, 2, &program) != 0) {
      return "skip";
    }
    const Status status = DiskFile::open(disk_options(directory_)).status();
    if (status.ok() || status.code() != ErrorCode::kUnsupported) return "another status";
    return status.message();
  });
  if (said == "skip") GTEST_SKIP() << "this process may not filter its system calls";
  EXPECT_THAT(said, HasSubstr("io_uring"));
  EXPECT_THAT(said, HasSubstr("Operation not permitted"));
  EXPECT_THAT(said, HasSubstr("seccomp"));
  EXPECT_EQ(directory_.files(), 0);
}

// Mounts that only this process sees.
bool mount_over(const TestDirectory& directory, const char* type, const char* options) {
  return ::unshare(CLONE_NEWNS) == 0 && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("none", directory.path().c_str(), type, 0, options) == 0;
}

// ramfs knows neither O_DIRECT, nor reserved room, nor its own size.
TEST_F(DiskFileTest, WithoutODirectBytesGoThroughThePageCache) {
  const std::string said = in_child([&]() -> std::string {
    if (!mount_over(directory_, "ramfs", nullptr)) return "skip";
    const DiskEntry entry{{{1, 2}}, Form::kKv, 0, 4096};
    const Bytes piece = random_bytes(10000, 1);
    for (int round = 0; round < 2; ++round) {
      testing::internal::CaptureStderr();
      auto file = DiskFile::open(disk_options(directory_));
      const std::string log = testing::internal::GetCapturedStderr();
      if (!file.ok()) return file.status().message();
      if (file.value()->direct() || log.find("no O_DIRECT") == std::string::npos)
        return "no word of it: " + log;
      if (round == 0 && !write_piece(*file.value(), 4096, piece).ok()) return "not written";
      Bytes read(piece.size());
      if (!read_piece(*file.value(), 4096, read).ok() || read != piece) return "not read";
      if (file.value()->load().size() != static_cast<size_t>(round)) return "not taken over";
      if (!file.value()->save(std::span(&entry, 1)).ok()) return "not saved";
    }
    return "good";
  });
  if (said == "skip") GTEST_SKIP() << "this process may not mount";
  EXPECT_EQ(said, "good");
}

TEST_F(DiskFileTest, ASmallFileSystemTakesWhatItHasAndNoMore) {
  const std::string said = in_child([&]() -> std::string {
    if (!mount_over(directory_, "tmpfs", "size=6m")) return "skip";
    const Status large = DiskFile::open(disk_options(directory_, 8 * kMiB)).status();
    if (large.ok() || large.code() != ErrorCode::kExhausted) return "large: " + large.message();
    if (directory_.files() != 0) return "something stays";
    {
      auto file = DiskFile::open(disk_options(directory_, 3 * kMiB));
      if (!file.ok()) return file.status().message();
      if (!write_piece(*file.value(), 0, random_bytes(100, 1)).ok()) return "not written";
      if (!file.value()->save({}).ok()) return "not saved";
      // No room for an index: it fails, and the old one belongs to another run.
      const int fd = ::open((directory_.path() + "/filler").c_str(), O_WRONLY | O_CREAT, 0600);
      const Bytes filler(kMiB);
      while (::write(fd, filler.data(), filler.size()) > 0) continue;
      ::close(fd);
      std::vector<DiskEntry> many(4096);
      if (file.value()->save(many).ok()) return "an index on a full disk";
    }
    auto file = DiskFile::open(disk_options(directory_, 3 * kMiB));
    if (!file.ok()) return file.status().message();
    return file.value()->load().empty() ? "good" : "an index that was not written";
  });
  if (said == "skip") GTEST_SKIP() << "this process may not mount";
  EXPECT_EQ(said, "good");
}

}  // namespace
}  // namespace kvasir
