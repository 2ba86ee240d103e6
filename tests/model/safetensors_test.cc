// The safetensors container: what it reads, and one clear line for each way in which a file can lie.
#include "model/folders/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/tiny_folder.h"

namespace kvasir {
namespace {

using test::safetensors_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::vector<std::byte> zeros(size_t bytes) {
  return std::vector<std::byte>(bytes);
}

void expect_refused(const std::vector<std::byte>& file, ErrorCode code, const std::string& part) {
  const Status status = parse_safetensors(file, "x.safetensors").status();
  ASSERT_FALSE(status.ok()) << part;
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_THAT(status.message(), AllOf(StartsWith("x.safetensors: "), HasSubstr(part), Not(HasSubstr("\n"))));
}

void expect_refused(const std::string& header, size_t data_bytes, const std::string& part,
                    ErrorCode code = ErrorCode::kCorrupt) {
  expect_refused(safetensors_of(header, zeros(data_bytes)), code, part);
}

TEST(Safetensors, ReadsTensorsInTheOrderOfTheHeader) {
  const std::string header =
      R"({"__metadata__":{"format":"pt","more":{"a":[1,{}]}},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
      R"("a":{"data_offsets":[0,4],"shape":[],"dtype":"F32"}}   )";
  std::vector<std::byte> data = zeros(16);
  data[4] = std::byte{7};
  const std::vector<std::byte> bytes = safetensors_of(header, data);
  const auto file = parse_safetensors(bytes, "x.safetensors");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->header.size(), 8 + header.size());
  ASSERT_EQ(file->tensors.size(), 2U);
  const SafetensorsTensor& b = file->tensors[0];
  EXPECT_EQ(b.name, "b");
  EXPECT_EQ(b.tensor.type->name, "BF16");
  EXPECT_EQ(b.tensor.dimensions, 2U);
  EXPECT_EQ(b.tensor.shape[0], 3U);  // the contiguous one
  EXPECT_EQ(b.tensor.shape[1], 2U);
  ASSERT_EQ(b.tensor.data.size(), 12U);
  EXPECT_EQ(b.tensor.data[0], std::byte{7});
  EXPECT_EQ(file->tensors[1].tensor.values(), 1U);
}

TEST(Safetensors, CountsDimensionsBeyondTheFourthInIt) {
  const auto bytes =
      safetensors_of(R"({"a":{"dtype":"I8","shape":[2,3,1,2,5],"data_offsets":[0,60]}})", zeros(60));
  const auto file = parse_safetensors(bytes, "x.safetensors");
  ASSERT_TRUE(file.ok()) << file.status().message();
  const GgufTensor& tensor = file->tensors[0].tensor;
  EXPECT_EQ(tensor.dimensions, 4U);
  EXPECT_EQ(tensor.shape, (std::array<uint64_t, 4>{5, 2, 1, 6}));
}

TEST(Safetensors, RefusesFilesThatAreCutOrAreNone) {
  const auto whole = safetensors_of(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", zeros(16));
  for (size_t length = 0; length < whole.size(); ++length) {
    const std::vector<std::byte> cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length));
    const Status status = parse_safetensors(cut, "x.safetensors").status();
    ASSERT_FALSE(status.ok()) << length;
    EXPECT_EQ(status.code(), ErrorCode::kCorrupt);
    EXPECT_THAT(status.message(), HasSubstr("fetch it again"));
  }
  std::vector<std::byte> pointer;
  for (char c : std::string("version https://git-lfs.github.com/spec/v1\n")) pointer.push_back(std::byte(c));
  expect_refused(pointer, ErrorCode::kInvalidArgument, "Git LFS pointer");
  std::vector<std::byte> huge = whole;
  std::fill(huge.begin(), huge.begin() + 8, std::byte{0xff});
  expect_refused(huge, ErrorCode::kCorrupt, "its header claims 18446744073709551615 bytes");
}

TEST(Safetensors, NamesWhatLies) {
  const auto entry = [](const std::string& shape, const std::string& offsets) {
    return R"({"a":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  expect_refused(entry("[4]", "[0,20]"), 16, "'a': its bytes 0 to 20 do not lie in the 16 bytes of data");
  expect_refused(entry("[4]", "[16,0]"), 16, "'a': its bytes 16 to 0 do not lie");
  expect_refused(entry("[4]", "[0,12]"), 16, "'a': it has 12 bytes where its type and shape ask for 16");
  expect_refused(entry("[4,0]", "[0,0]"), 16, "'a': its shape makes no sense");
  expect_refused(entry("[4294967296,4294967296]", "[0,16]"), 16, "'a': its shape makes no sense");
  expect_refused(entry("[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,4]", "[0,16]"), 16, "more than 16 dimensions");
  expect_refused(entry("[4]", "[0,8,16]"), 16, "'a': its data_offsets are no pair");
  expect_refused(entry("[4]", "[0]"), 16, "'a': it lacks one of");
  expect_refused(entry("[-4]", "[0,16]"), 16, "'a': a value is where none belongs");
  expect_refused(entry("[4.0]", "[0,16]"), 16, "'a': a value is where none belongs");
  expect_refused(entry("4", "[0,16]"), 16, "'a': a value is where none belongs");
  expect_refused(entry("[[4]]", "[0,16]"), 16, "'a': a list is where none belongs");
  expect_refused(entry("[{}]", "[0,16]"), 16, "'a': an object is where none belongs");
  expect_refused(R"({"a":{"dtype":"F8_E5M2","shape":[4],"data_offsets":[0,4]}})", 4,
                 "the tensor 'a' is of type 'F8_E5M2', which is not supported", ErrorCode::kUnsupported);
  expect_refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", 4, "unknown field 'x'");
  expect_refused(R"({"a":{"dtype":"F32","shape":[1]}})", 4, "'a': it lacks one of");
  expect_refused(R"({"a":1})", 4, "'a': a value is where none belongs");
  expect_refused(R"([])", 4, "a list is where none belongs");
  expect_refused(R"("x")", 4, "a value is where none belongs");
  expect_refused(R"({"a":)", 4, "its header is not JSON");
  expect_refused("{}{}", 4, "its header is not JSON");
  const std::string one = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const std::string other = R"({"dtype":"F32","shape":[2],"data_offsets":[4,12]})";
  expect_refused(R"({"a":)" + one + R"(,"a":)" + one + "}", 16, "'a': it is there twice");
  expect_refused(R"({"a":)" + one + R"(,"b":)" + other + "}", 16, "'a' and 'b' overlap");
}

}  // namespace
}  // namespace kvasir
