// What of the disk tier's file a server takes over from the one before it, and what it must not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>

#include "cache/disk_world.h"
#include "cache/tiers/disk_file.h"

namespace kvasir {
namespace {

using testing::HasSubstr;
using namespace test;

constexpr uint64_t kPiece = 10'000;
constexpr uint64_t kStride = 12'288;
constexpr int kPieces = 20;

Bytes piece(int i) {
  return random_bytes(kPiece, 100 + static_cast<uint64_t>(i));
}

class DiskFileStartTest : public testing::Test {
 protected:
  std::unique_ptr<DiskFile> open(const DiskFileOptions& options) {
    testing::internal::CaptureStderr();
    Result<std::unique_ptr<DiskFile>> file = DiskFile::open(options);
    log_ = testing::internal::GetCapturedStderr();
    EXPECT_TRUE(file.ok()) << file.status().message();
    return file.ok() ? *std::move(file) : nullptr;
  }
  std::unique_ptr<DiskFile> open() { return open(options()); }

  DiskFileOptions options() const {
    DiskFileOptions o = disk_options(directory_);
    o.max_piece_bytes = 16 * kKiB;  // each piece here takes buffers of its own
    return o;
  }

  // Pieces two to a cell, and the entries that name them.
  static std::vector<DiskEntry> write_all(DiskFile& file) {
    std::vector<DiskEntry> entries;
    for (int i = 0; i < kPieces; ++i) {
      const uint64_t offset = static_cast<uint64_t>(i) * kStride;
      EXPECT_TRUE(write_piece(file, offset, piece(i)).ok());
      if (i % 2 != 0) continue;
      entries.push_back({{{7, static_cast<uint64_t>(i)}},
                         static_cast<Form>(i % kForms),
                         static_cast<uint32_t>(i) * 1000,
                         offset});
    }
    return entries;
  }
  void leave_a_file() {
    const auto file = open();
    left_ = write_all(*file);
    EXPECT_TRUE(file->save(left_).ok());
  }
  // Opens it, and finds nothing in it.
  void expect_empty(const DiskFileOptions& options, const std::string& why) {
    const auto file = open(options);
    ASSERT_TRUE(file);
    EXPECT_TRUE(file->load().empty());
    EXPECT_THAT(log_, HasSubstr("starts empty"));
    EXPECT_THAT(log_, HasSubstr(why));
    EXPECT_THAT(log_, HasSubstr(directory_.data()));
    EXPECT_EQ(std::count(log_.begin(), log_.end(), '\n'), 1) << log_;
    Bytes read(kPiece);
    EXPECT_EQ(read_piece(*file, 0, read).code(), ErrorCode::kCorrupt);
    EXPECT_TRUE(write_piece(*file, 0, piece(0)).ok());
    EXPECT_TRUE(read_piece(*file, 0, read).ok());
  }
  void expect_empty(const std::string& why) { expect_empty(options(), why); }

  // The first bytes of a file: of an index, all.
  static std::string contents(const std::string& path, size_t most = 64 * kKiB) {
    std::ifstream in(path, std::ios::binary);
    std::string bytes(most, '\0');
    in.read(bytes.data(), static_cast<std::streamsize>(most));
    bytes.resize(static_cast<size_t>(in.gcount()));
    return bytes;
  }
  static void put(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  // Only the header: what else it was is still there.
  void put_header(const std::string& header) {
    std::fstream(directory_.data(), std::ios::binary | std::ios::in | std::ios::out)
        .write(header.data(), static_cast<std::streamsize>(header.size()));
  }

  TestDirectory directory_;
  std::string log_;
  std::vector<DiskEntry> left_;
};

TEST_F(DiskFileStartTest, WhatWasSavedIsThereAgainAndAgain) {
  leave_a_file();
  EXPECT_EQ(log_, "") << "a new file is nothing to tell";
  for (int round = 0; round < 3; ++round) {
    const auto file = open();
    EXPECT_THAT(log_, HasSubstr("holds 10 copies"));
    EXPECT_EQ(file->load(), left_);
    EXPECT_TRUE(file->load().empty()) << "told once";
    for (int i = 0; i < kPieces; ++i) {
      Bytes read(kPiece);
      EXPECT_TRUE(read_piece(*file, static_cast<uint64_t>(i) * kStride, read).ok());
      EXPECT_EQ(read, piece(i));
    }
    EXPECT_TRUE(file->save(left_).ok());
  }
  // What changes while the server is away is seen, too.
  flip_byte(directory_.data(), DiskFile::place_of(3 * kStride + 17));
  const auto file = open();
  Bytes read(kPiece);
  EXPECT_EQ(read_piece(*file, 3 * kStride, read).code(), ErrorCode::kCorrupt);
  EXPECT_TRUE(read_piece(*file, 2 * kStride, read).ok());
}

TEST_F(DiskFileStartTest, EntriesOfWhatWasNeverWrittenAreLeftOut) {
  {
    const auto file = open();
    std::vector<DiskEntry> entries = write_all(*file);
    const std::vector<DiskEntry> written = entries;
    entries.push_back({{{9, 9}}, Form::kKv, 1, 2 * kMiB});
    EXPECT_TRUE(file->save(entries).ok());
    left_ = written;
  }
  EXPECT_EQ(open()->load(), left_);
}

TEST_F(DiskFileStartTest, AFileOfAnotherKindStartsEmpty) {
  leave_a_file();
  const std::string header = contents(directory_.data(), kDiskHeaderBlock);
  const std::string index = contents(directory_.index());
  const std::pair<std::function<void(DiskFileOptions&)>, std::string> cases[] = {
      {[](DiskFileOptions& o) { o.model = "another"; }, "another model"},
      {[](DiskFileOptions& o) { o.numerics_id = "kvasir-3/test"; }, "its numerics id is 'kvasir-2/test'"},
      {[](DiskFileOptions& o) { o.geometry += "!"; },
       "another shape (" + options().geometry + "; now " + options().geometry + "!)"},
      {[](DiskFileOptions& o) { o.bytes = 3 * kMiB; }, "its size was 4.00 MiB"},
      {[](DiskFileOptions& o) { o.bytes = 5 * kMiB; }, "its size was 4.00 MiB"},
  };
  for (const auto& [change, why] : cases) {
    put_header(header);
    put(directory_.index(), index);
    DiskFileOptions changed = options();
    change(changed);
    expect_empty(changed, why);
    EXPECT_EQ(std::filesystem::file_size(directory_.data()), DiskFile::place_of(changed.bytes));
  }
  put_header(header);
  put(directory_.index(), index);
  EXPECT_EQ(open()->load(), left_) << "unchanged, it is taken over";
}

TEST_F(DiskFileStartTest, AFileThatWasNotClosedInOrderStartsEmpty) {
  leave_a_file();
  open();  // and ends without a word
  expect_empty("not closed in order");
  leave_a_file();
  {
    const auto file = open();
    EXPECT_TRUE(file->save(left_).ok());
    EXPECT_TRUE(write_piece(*file, 0, piece(3)).ok());
  }
  expect_empty("not closed in order");
}

TEST_F(DiskFileStartTest, ADamagedHeaderStartsEmpty) {
  leave_a_file();
  const std::string header = contents(directory_.data(), kDiskHeaderBlock);
  for (uint64_t at : {0, 7, 12, 16, 24, 40, 60, 3000, 4088, 4095}) {
    put_header(header);
    flip_byte(directory_.data(), at);
    expect_empty(at < 8 ? "it has no header" : "its header is damaged");
  }
  put_header(header);
  flip_byte(directory_.data(), 8);
  expect_empty("its format is version 17, not 1");
  for (uint64_t size : {uint64_t{1}, uint64_t{4095}, uint64_t{4096}, DiskFile::place_of(4 * kMiB) - 1}) {
    put_header(header);
    std::filesystem::resize_file(directory_.data(), size);
    expect_empty(size < 4096 ? "it has no header" : "it was truncated");
  }
  put(directory_.data(), "some text of another program under this name");
  expect_empty("it has no header");
}

TEST_F(DiskFileStartTest, ADamagedIndexStartsEmpty) {
  leave_a_file();
  const std::string header = contents(directory_.data(), kDiskHeaderBlock);
  const std::string index = contents(directory_.index());
  const auto with_index = [&](const std::string& bytes, const std::string& why) {
    put_header(header);
    put(directory_.index(), bytes);
    expect_empty(why);
  };
  for (size_t at = 0; at < index.size(); at += at < 64 ? 3 : 41) {
    std::string damaged = index;
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    with_index(damaged, "the index is damaged");
  }
  for (size_t size : {size_t{0}, size_t{1}, size_t{47}, size_t{48}, index.size() - 8, index.size() - 1}) {
    with_index(index.substr(0, size), "the index is damaged");
  }
  with_index(index + "x", "the index is damaged");
  with_index(std::string(4 * kMiB, '\0'), "no index of this file");
  put_header(header);
  std::filesystem::remove(directory_.index());
  expect_empty("cannot open the index");
  put_header(header);
  std::filesystem::create_directory(directory_.index());
  expect_empty("no index of this file");
  std::filesystem::remove(directory_.index());
}

TEST_F(DiskFileStartTest, AnIndexOfAnotherRunStartsEmpty) {
  leave_a_file();
  const std::string index = contents(directory_.index());
  {
    const auto file = open();
    EXPECT_TRUE(file->save(left_).ok());
  }
  put(directory_.index(), index);
  expect_empty("of another run");
}

TEST_F(DiskFileStartTest, AnIndexThatCannotBeWrittenLeavesTheFileToStartEmpty) {
  {
    const auto file = open();
    write_all(*file);
    std::filesystem::create_directory(directory_.index());
    const Status status = file->save({});
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.code(), ErrorCode::kIo);
    EXPECT_THAT(status.message(), HasSubstr("cannot write the index"));
  }
  std::filesystem::remove(directory_.index());
  EXPECT_EQ(directory_.files(), 1) << "the data alone";
  expect_empty("not closed in order");
}

// Every index that write_disk_index() makes is read back, and nothing that differs from it in a bit is.
TEST(DiskFormat, EveryHeaderIsReadBackOrRefused) {
  const DiskHeader header{true, 42, 123 * kMiB, "numerics", "model", std::string(3000, 'g'), "index"};
  const std::vector<std::byte> block = encode(header).value();
  ASSERT_EQ(block.size(), kDiskHeaderBlock);
  const DiskHeader back = decode(block).value();
  EXPECT_TRUE(back.clean);
  EXPECT_EQ(back.generation, 42);
  EXPECT_EQ(back.bytes, 123 * kMiB);
  EXPECT_EQ(back.numerics_id + back.model + back.geometry + back.index,
            "numericsmodel" + header.geometry + "index");
  for (size_t bit = 0; bit < block.size() * 8; bit += 13) {
    std::vector<std::byte> damaged = block;
    damaged[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_FALSE(decode(damaged).ok()) << bit;
  }
  EXPECT_FALSE(decode(std::span(block).first(4000)).ok());
  EXPECT_FALSE(encode({false, 1, 1, std::string(4090, 'n'), "", "", ""}).ok());
}

TEST(DiskFormat, IndicesWithManyEntriesAndNone) {
  const TestDirectory directory;
  const std::string path = directory.index();
  for (size_t slots : {0, 1, 1000}) {
    std::vector<uint64_t> sums(slots);
    std::vector<DiskEntry> entries;
    Random random(slots);
    for (size_t i = 0; i < slots; ++i) {
      if (random.below(2) == 0) continue;
      sums[i] = random.bits();
      entries.push_back({{{random.bits(), random.bits()}}, Form::kX, static_cast<uint32_t>(i), i * 4096});
    }
    ASSERT_TRUE(write_disk_index(path, 5, entries, sums).ok());
    std::vector<uint64_t> back(slots);
    EXPECT_EQ(read_disk_index(path, 5, back).value(), entries);
    EXPECT_EQ(back, sums);
    std::vector<uint64_t> other(slots + 1);
    EXPECT_EQ(read_disk_index(path, 5, other).status().code(), ErrorCode::kCorrupt);
    EXPECT_EQ(read_disk_index(path, 6, back).status().code(), ErrorCode::kCorrupt);
  }
  EXPECT_EQ(directory.files(), 1);
}

}  // namespace
}  // namespace kvasir
