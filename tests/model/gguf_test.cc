// The GGUF reader: what it reads back, what it refuses, and that damage never gets past it.
#include "model/files/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/random.h"
#include "model/files/model_file.h"
#include "support/gguf_builder.h"
#include "support/tiny_llama.h"

namespace kvasir {
namespace {

using test::GgufBuilder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::vector<std::byte> bytes_of(std::string_view text) {
  std::vector<std::byte> out;
  for (char c : text) test::append(out, c);
  return out;
}

std::vector<std::byte> f32_data(size_t values) {
  std::vector<std::byte> out;
  for (size_t i = 0; i < values; ++i) test::append(out, static_cast<float>(i));
  return out;
}

constexpr uint32_t kF32 = 0;
constexpr uint32_t kQ8_0 = 8;

// A file with one of everything; short, so that every length of it can be tried.
GgufBuilder small_file() {
  GgufBuilder b;
  b.set_u32("a.u32", 4'000'000'000U);
  b.set_u64("a.u64", uint64_t{1} << 40);
  b.set_i32("a.i32", -5);
  b.set_f32("a.f32", 1.5F);
  b.set_bool("a.bool", true);
  b.set_string("a.string", std::string_view("a\0\xff\n", 4));
  b.set_strings("a.strings", {"one", "", std::string("t\0wo", 4)});
  b.set_i32s("a.i32s", {1, -2, 3});
  b.set_f32s("a.f32s", {0.5F, -0.25F});
  b.add_tensor("first", {4, 2}, kF32, f32_data(8));
  b.add_tensor("second", {32}, kQ8_0, std::vector<std::byte>(34, std::byte{7}));
  return b;
}

Status status_of(const std::vector<std::byte>& bytes) {
  return Gguf::parse(bytes, "model.gguf").status();
}

// Damage of any kind is one line: the path, what is wrong, what to do.
void expect_corrupt(const std::vector<std::byte>& bytes, const std::string& part) {
  const Status status = status_of(bytes);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.code(), ErrorCode::kCorrupt) << status.message();
  EXPECT_THAT(status.message(), AllOf(StartsWith("model.gguf: "), HasSubstr(part),
                                      HasSubstr("fetch it again"), Not(HasSubstr("\n"))));
}

TEST(Gguf, ReadsBackEveryKindOfValue) {
  for (uint32_t version : {2U, 3U}) {
    GgufBuilder builder = small_file();
    builder.set_version(version);
    const auto bytes = builder.build();
    auto file = Gguf::parse(bytes, "model.gguf");
    ASSERT_TRUE(file.ok()) << file.status().message();
    EXPECT_EQ(file->version(), version);
    EXPECT_EQ(file->keys().size(), 9U);
    EXPECT_EQ(file->keys().front(), "a.u32");
    EXPECT_EQ(*file->get_u32("a.u32"), 4'000'000'000U);
    EXPECT_FALSE(file->get_u32("a.u64").ok()) << "beyond 32 bits";
    EXPECT_EQ(*file->get_f32("a.f32"), 1.5F);
    EXPECT_TRUE(*file->get_bool("a.bool"));
    EXPECT_EQ(*file->get_string("a.string"), std::string("a\0\xff\n", 4));
    EXPECT_THAT(*file->get_strings("a.strings"), ElementsAre("one", "", std::string("t\0wo", 4)));
    EXPECT_THAT(*file->get_i32s("a.i32s"), ElementsAre(1, -2, 3));
    EXPECT_THAT(*file->get_f32s("a.f32s"), ElementsAre(0.5F, -0.25F));
  }
}

TEST(Gguf, PlacesTensors) {
  const auto bytes = small_file().build();
  auto file = Gguf::parse(bytes, "model.gguf");
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_EQ(file->tensors().size(), 2U);
  const GgufTensor* first = file->find_tensor("first");
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->dimensions, 2U);
  EXPECT_EQ(first->shape[0], 4U);
  EXPECT_EQ(first->shape[1], 2U);
  EXPECT_EQ(first->values(), 8U);
  EXPECT_EQ(first->type->name, "F32");
  EXPECT_EQ(std::memcmp(first->data.data(), f32_data(8).data(), 32), 0);
  const GgufTensor* second = file->find_tensor("second");
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(second->data.size(), 34U);
  EXPECT_EQ(second->data.data() + second->data.size(), bytes.data() + bytes.size());
  EXPECT_EQ((second->data.data() - bytes.data()) % 32, 0);
  EXPECT_EQ(file->find_tensor("third"), nullptr);
  EXPECT_EQ(file->headers().front().data(), bytes.data());
  EXPECT_LE(file->headers().front().size(), static_cast<size_t>(first->data.data() - bytes.data()));
}

TEST(Gguf, ReadsIntegersOfEveryWidthAndRefusesOthers) {
  GgufBuilder b;
  b.set_raw("u8", 0, {std::byte{200}});
  b.set_raw("i8", 1, {std::byte{0xff}});
  b.set_raw("u16", 2, {std::byte{1}, std::byte{2}});
  b.set_raw("i16", 3, {std::byte{1}, std::byte{0}});
  b.set_i32("i32", 7);
  b.set_raw("i64", 11, {std::byte{9}, {}, {}, {}, {}, {}, {}, {}});
  b.set_u64("big", uint64_t{1} << 32);
  b.set_f32("f32", 2.0F);
  std::vector<std::byte> half;
  test::append(half, 0.5);
  b.set_raw("f64", static_cast<uint32_t>(GgufType::kF64), half);
  b.set_string("string", "2");
  const auto bytes = b.build();
  auto file = Gguf::parse(bytes, "model.gguf");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(*file->get_u32("u8"), 200U);
  EXPECT_EQ(*file->get_u32("u16"), 0x201U);
  EXPECT_EQ(*file->get_u32("i16"), 1U);
  EXPECT_EQ(*file->get_u32("i32"), 7U);
  EXPECT_EQ(*file->get_u32("i64"), 9U);
  EXPECT_EQ(*file->get_f32("f64"), 0.5F);
  for (std::string_view key : {"i8", "big", "f32", "string"}) {
    auto value = file->get_u32(key);
    ASSERT_FALSE(value.ok()) << key;
    EXPECT_EQ(value.status().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(value.status().message(), HasSubstr(fmt::format("'{}'", key)));
  }
  EXPECT_EQ(file->get_u32("absent").status().code(), ErrorCode::kNotFound);
  EXPECT_FALSE(file->get_f32("u8").ok());
  EXPECT_FALSE(file->get_bool("u8").ok());
  EXPECT_FALSE(file->get_string("u8").ok());
  EXPECT_FALSE(file->get_strings("string").ok());
  EXPECT_FALSE(file->get_i32s("i32").ok());
  EXPECT_FALSE(file->get_f32s("f32").ok());
}

TEST(Gguf, ReadsArraysOfOtherWidths) {
  GgufBuilder b;
  std::vector<std::byte> u64s;
  test::append(u64s, static_cast<uint32_t>(GgufType::kU64));
  test::append(u64s, uint64_t{2});
  test::append(u64s, uint64_t{5});
  test::append(u64s, uint64_t{0x7fffffff});
  b.set_raw("u64s", 9, u64s);
  u64s.back() = std::byte{0x80};  // the top byte: now far beyond i32
  b.set_raw("too big", 9, u64s);
  std::vector<std::byte> f64s;
  test::append(f64s, static_cast<uint32_t>(GgufType::kF64));
  test::append(f64s, uint64_t{2});
  test::append(f64s, 0.5);
  test::append(f64s, -1e300);
  b.set_raw("f64s", 9, f64s);
  const auto bytes = b.build();
  auto file = Gguf::parse(bytes, "model.gguf");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_THAT(*file->get_i32s("u64s"), ElementsAre(5, 0x7fffffff));
  EXPECT_FALSE(file->get_i32s("too big").ok());
  EXPECT_FALSE(file->get_f32s("u64s").ok());
  EXPECT_THAT(*file->get_f32s("f64s"), ElementsAre(0.5F, -std::numeric_limits<float>::infinity()));
}

TEST(Gguf, NamesWhatIsNotGguf) {
  const auto message = [](std::string_view start, size_t size = 100) {
    std::string text(start);
    text.resize(std::max(size, text.size()), ' ');
    const Status status = status_of(bytes_of(text));
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.message(), StartsWith("model.gguf: "));
    return status.message();
  };
  EXPECT_THAT(message("hello"), HasSubstr("not a GGUF file;"));
  EXPECT_THAT(message("PK\x03\x04"), HasSubstr("zip file"));
  EXPECT_THAT(message("\x1f\x8b"), HasSubstr("gzip"));
  EXPECT_THAT(message("version https://git-lfs.github.com/spec/v1"), HasSubstr("Git LFS pointer"));
  EXPECT_THAT(message("<!DOCTYPE html>"), HasSubstr("web page"));
  EXPECT_THAT(message(std::string_view("\x20\0\0\0\0\0\0\0{\"a\"", 12)), HasSubstr("safetensors"));
  EXPECT_THAT(message("tjgg"), HasSubstr("older than GGUF"));
  EXPECT_EQ(status_of({}).code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(status_of({}).message(), HasSubstr("empty"));
}

TEST(Gguf, RefusesOtherVersions) {
  struct Case {
    uint32_t version;
    const char* part;
  };
  for (const Case& c : {Case{1, "version 1"}, Case{4, "version 4"}, Case{0x03000000, "big-endian"}}) {
    GgufBuilder b = small_file();
    b.set_version(c.version);
    const Status status = status_of(b.build());
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(status.message(), HasSubstr(c.part));
  }
}

TEST(Gguf, RefusesCountsThatTheFileCannotHold) {
  auto bytes = small_file().build();
  std::memset(bytes.data() + 16, 0xff, 8);  // the key count
  expect_corrupt(bytes, "metadata keys");
  bytes = small_file().build();
  std::memset(bytes.data() + 8, 0xff, 8);  // the tensor count
  expect_corrupt(bytes, "tensors in");
}

TEST(Gguf, RefusesDamagedMetadata) {
  GgufBuilder b = small_file();
  b.duplicate("a.bool");
  expect_corrupt(b.build(), "'a.bool' is there twice");

  b = small_file();
  b.set_raw("odd", 13, {});
  expect_corrupt(b.build(), "unknown type 13");

  b = small_file();
  b.set_raw("odd", 7, {std::byte{2}});
  expect_corrupt(b.build(), "neither 0 nor 1");

  std::vector<std::byte> payload;
  test::append(payload, uint32_t{13});
  test::append(payload, uint64_t{1});
  b = small_file();
  b.set_raw("odd", 9, payload);
  expect_corrupt(b.build(), "array of the unknown type 13");

  for (GgufType element : {GgufType::kString, GgufType::kF64, GgufType::kU8, GgufType::kBool}) {
    payload.clear();
    test::append(payload, static_cast<uint32_t>(element));
    test::append(payload, (uint64_t{1} << 61) + 1);  // times 8 this wraps around to 8
    b = small_file();
    b.set_raw("odd", 9, payload);
    expect_corrupt(b.build(), "'odd'");
  }

  b = small_file();
  payload.clear();
  test::append(payload, ~uint64_t{0});
  b.set_raw("odd", 8, payload);
  expect_corrupt(b.build(), "'odd'");
}

TEST(Gguf, RefusesNestedArrays) {
  std::vector<std::byte> payload;
  test::append(payload, static_cast<uint32_t>(GgufType::kArray));
  test::append(payload, uint64_t{1});
  test::append(payload, static_cast<uint32_t>(GgufType::kU8));
  test::append(payload, uint64_t{1});
  test::append(payload, uint8_t{1});
  GgufBuilder b = small_file();
  b.set_raw("nested", 9, payload);
  const Status status = status_of(b.build());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("array of arrays"));
}

TEST(Gguf, ChecksTheAlignment) {
  for (uint32_t alignment : {8U, 16U, 64U, 4096U}) {
    GgufBuilder b = small_file();
    b.set_u32("general.alignment", alignment);
    b.set_alignment(alignment);
    const auto bytes = b.build();
    auto file = Gguf::parse(bytes, "model.gguf");
    ASSERT_TRUE(file.ok()) << file.status().message();
    EXPECT_EQ(file->alignment(), alignment);
    EXPECT_EQ(static_cast<size_t>(file->find_tensor("first")->data.data() - bytes.data()) % alignment, 0U);
  }
  for (uint32_t alignment : {0U, 1U, 4U, 24U, 1U << 30}) {
    GgufBuilder b = small_file();
    b.set_u32("general.alignment", alignment);
    expect_corrupt(b.build(), "alignment");
  }
}

TEST(Gguf, RefusesDamagedTensors) {
  GgufBuilder b = small_file();
  b.add_tensor("first", {1}, kF32, f32_data(1));
  expect_corrupt(b.build(), "'first' is there twice");

  b = small_file();
  b.tensor("first").shape = {};
  expect_corrupt(b.build(), "0 dimensions");

  b = small_file();
  b.tensor("first").shape = {1, 1, 1, 1, 1};
  expect_corrupt(b.build(), "5 dimensions");

  b = small_file();
  b.tensor("first").shape = {4, 0};
  expect_corrupt(b.build(), "dimension 1");

  b = small_file();
  b.tensor("first").shape = {uint64_t{1} << 33, uint64_t{1} << 33};
  expect_corrupt(b.build(), "dimension 1");

  b = small_file();
  b.tensor("first").shape = {uint64_t{1} << 62};  // times 4 bytes this wraps around to 0
  expect_corrupt(b.build(), "does not end inside the file");

  b = small_file();
  b.tensor("second").shape = {33};
  expect_corrupt(b.build(), "not a multiple of the 32");

  b = small_file();
  b.tensor("second").shape = {64};
  expect_corrupt(b.build(), "'second' does not end inside the file");

  b = small_file();
  b.tensor("second").offset = 40;
  expect_corrupt(b.build(), "not a multiple of the alignment");

  b = small_file();
  b.tensor("second").offset = std::numeric_limits<int64_t>::max() - 31;
  expect_corrupt(b.build(), "does not end inside the file");

  b = small_file();
  b.tensor("second").offset = 0;
  expect_corrupt(b.build(), "overlap");
}

TEST(Gguf, NamesAnUnknownTensorType) {
  for (uint32_t type : {4U, 77U}) {  // 4 was removed from the format
    GgufBuilder b = small_file();
    b.tensor("first").type = type;
    const Status status = status_of(b.build());
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("'first'"), HasSubstr(fmt::format("type number {}", type))));
  }
}

TEST(Gguf, EscapesNamesInMessages) {
  EXPECT_EQ(gguf_quoted("a.b"), "'a.b'");
  EXPECT_EQ(gguf_quoted(std::string_view("a\n'\0\xff", 5)), "'a\\x0a\\x27\\x00\\xff'");
  EXPECT_THAT(gguf_quoted(std::string(1000, 'x')),
              AllOf(HasSubstr("xxx..."), testing::SizeIs(testing::Le(80))));
  GgufBuilder b = small_file();
  b.add_tensor("bad\nname", {1}, kF32, f32_data(1));
  b.tensor("bad\nname").shape = {0};
  expect_corrupt(b.build(), "'bad\\x0aname'");
}

TEST(Gguf, RefusesEveryTruncation) {
  const auto bytes = small_file().build();
  ASSERT_TRUE(status_of(bytes).ok());
  for (size_t size = 1; size < bytes.size(); ++size) {
    // An allocation of exactly this size lets AddressSanitizer see a read past the end.
    expect_corrupt({bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size)}, "");
  }
}

// Reads everything that parse() let through.
uint64_t touch_all(const Gguf& file) {
  uint64_t sum = 0;
  for (std::string_view key : file.keys()) {
    sum += static_cast<uint64_t>(file.get_u32(key).ok()) + static_cast<uint64_t>(file.get_f32(key).ok());
    if (auto strings = file.get_strings(key); strings.ok()) sum += strings->size();
    if (auto i32s = file.get_i32s(key); i32s.ok()) sum += i32s->size();
    if (auto f32s = file.get_f32s(key); f32s.ok()) sum += f32s->size();
    if (auto text = file.get_string(key); text.ok()) sum += text->size();
  }
  for (const GgufTensor& tensor : file.tensors()) {
    sum += std::to_integer<uint64_t>(tensor.data.front()) + std::to_integer<uint64_t>(tensor.data.back());
  }
  return sum;
}

TEST(Gguf, SurvivesFlippedBits) {
  const auto bytes = small_file().build();
  Random random(1);
  int accepted = 0;
  uint64_t sum = 0;
  for (int round = 0; round < 10'000; ++round) {
    auto damaged = bytes;
    for (uint64_t flips = 1 + random.below(3); flips > 0; --flips) {
      damaged[random.below(damaged.size())] ^= static_cast<std::byte>(1U << random.below(8));
    }
    auto file = Gguf::parse(damaged, "model.gguf");
    if (!file.ok()) {
      EXPECT_THAT(file.status().message(), AllOf(StartsWith("model.gguf: "), Not(HasSubstr("\n"))));
      continue;
    }
    ++accepted;
    sum += touch_all(*file);
  }
  // Flips in values and in tensor data are not damage that a header can show; flips elsewhere are refused.
  EXPECT_GT(accepted, 1000);
  EXPECT_LT(accepted, 9000);
  EXPECT_GT(sum, 0U);
}

TEST(Gguf, ModelsSurviveFlippedBits) {
  test::TinyLlamaShape shape;
  shape.layers = 1;
  shape.dim = shape.head_dim = shape.ffn = 32;
  shape.heads = shape.kv_heads = 1;
  shape.vocab = 259;
  const auto bytes = test::make_tiny_llama(shape, ops::WeightType::kQ4_0, 1);
  ASSERT_TRUE(ModelFile::from_bytes(bytes, "model.gguf").ok());
  const size_t header = Gguf::parse(bytes, "model.gguf")->headers().front().size();
  Random random(2);
  int refused = 0;
  for (int round = 0; round < 2'000; ++round) {
    auto damaged = bytes;
    damaged[random.below(header)] ^= static_cast<std::byte>(1U << random.below(8));
    if (!ModelFile::from_bytes(std::move(damaged), "model.gguf").ok()) ++refused;
  }
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace kvasir
