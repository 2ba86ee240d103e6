// replace_file(): the old contents or the new ones, whole, and nothing else left behind.
#include "base/file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace kvasir {
namespace {

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

Status replace(const std::string& path, std::string_view text, unsigned mode = 0666) {
  return replace_file(path, std::as_bytes(std::span(text)), mode);
}

// While it lives, no file of this process can be written beyond so many bytes.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(::signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit limit = {bytes, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_ = {};
  sighandler_t handler_;
};

class ReplaceFileTest : public testing::Test {
 protected:
  ReplaceFileTest() : folder_(testing::TempDir() + "kvasir-file-XXXXXX") {
    if (!::mkdtemp(folder_.data())) ADD_FAILURE() << "no folder " << folder_;
  }
  ~ReplaceFileTest() override { std::filesystem::remove_all(folder_); }

  std::string path() const { return folder_ + "/file"; }
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      out.push_back(entry.path().filename());
    }
    return out;
  }

  std::string folder_;
};

TEST_F(ReplaceFileTest, MakesAndReplaces) {
  for (const std::string& text : {std::string("first"), std::string(3'000'000, 'x'), std::string()}) {
    ASSERT_TRUE(replace(path(), text).ok());
    EXPECT_EQ(contents(path()), text);
    EXPECT_EQ(names(), std::vector<std::string>{"file"});
  }
}

TEST_F(ReplaceFileTest, TheModeIsTheCallers) {
  const mode_t umask_before = ::umask(022);
  for (const auto& [asked, expected] : {std::pair(0600u, 0600u), std::pair(0666u, 0644u)}) {
    ASSERT_TRUE(replace(path(), "text", asked).ok());
    struct stat info = {};
    ASSERT_EQ(::stat(path().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, expected);
  }
  ::umask(umask_before);
}

TEST_F(ReplaceFileTest, WithoutRoomTheFileIsAsItWas) {
  ASSERT_TRUE(replace(path(), "old").ok());
  Status status;
  {
    const FileSizeLimit limit(1000);
    status = replace(path(), std::string(1001, 'n'));
  }
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.code(), ErrorCode::kIo);
  EXPECT_NE(status.message().find(path() + ": cannot be written: "), std::string::npos) << status.message();
  EXPECT_EQ(contents(path()), "old");
  EXPECT_EQ(names(), std::vector<std::string>{"file"});
}

TEST_F(ReplaceFileTest, WhatCannotBeReplacedStays) {
  std::filesystem::create_directory(path());
  const Status status = replace(path(), "text");
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.code(), ErrorCode::kIo);
  EXPECT_FALSE(FileReplacement::create(path()).ok());  // at once, not after all bytes are written
  EXPECT_TRUE(std::filesystem::is_directory(path()));
  EXPECT_EQ(names(), std::vector<std::string>{"file"});
}

TEST_F(ReplaceFileTest, AFolderThatIsMissingIsNotMade) {
  const Status status = replace(folder_ + "/none/file", "text");
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.code(), ErrorCode::kIo);
  EXPECT_TRUE(names().empty());
}

TEST_F(ReplaceFileTest, APathWithoutAFolderIsHere) {
  const auto here = std::filesystem::current_path();
  std::filesystem::current_path(folder_);
  EXPECT_TRUE(replace("file", "text").ok());
  std::filesystem::current_path(here);
  EXPECT_EQ(contents(path()), "text");
}

// What another left beside it, because it was killed or is still writing, is not written over.
TEST_F(ReplaceFileTest, AnothersFileBesideItIsLeftAlone) {
  std::ofstream(path() + ".0.new") << "another's";
  ASSERT_TRUE(replace(path(), "mine").ok());
  EXPECT_EQ(contents(path()), "mine");
  EXPECT_EQ(contents(path() + ".0.new"), "another's");
}

TEST_F(ReplaceFileTest, OfManyAtOnceEachIsWhole) {
  std::vector<std::thread> writers;
  for (char c : {'a', 'b', 'c', 'd'}) {
    writers.emplace_back([this, text = std::string(100'000, c)] {
      for (int i = 0; i < 20; ++i) EXPECT_TRUE(replace(path(), text).ok());
    });
  }
  for (int i = 0; i < 100; ++i) {
    const std::string text = contents(path());
    if (text.empty()) continue;  // not there yet
    EXPECT_EQ(text.size(), 100'000u);
    EXPECT_EQ(text.find_first_not_of(text[0]), std::string::npos);
  }
  for (std::thread& w : writers) w.join();
  EXPECT_EQ(names(), std::vector<std::string>{"file"});
}

}  // namespace
}  // namespace kvasir
