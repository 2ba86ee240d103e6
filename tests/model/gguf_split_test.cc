// Models in several GGUF files.
#include "model/files/gguf_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "model/files/inspect.h"
#include "model/files/model_file.h"
#include "support/temp_file.h"
#include "support/tiny_llama.h"

namespace kvasir {
namespace {

using ::testing::HasSubstr;

// A tiny model whose parts can be changed before they are written.
class Parts {
 public:
  explicit Parts(uint32_t count)
      : whole_(test::make_tiny_llama(test::tiny_gqa(), ops::WeightType::kQ8_0, 3)) {
    const Gguf file = Gguf::parse(whole_, "whole.gguf").value();
    parts_.resize(count);
    for (uint32_t p = 0; p < count; ++p) {
      if (p == 0) copy_metadata(file);
      parts_[p].set_u32("split.no", p);
      parts_[p].set_u32("split.count", count);
      parts_[p].set_u32("split.tensors.count", static_cast<uint32_t>(file.tensors().size()));
    }
    for (size_t t = 0; t < file.tensors().size(); ++t) {
      const GgufTensor& tensor = file.tensors()[t];
      parts_[t * count / file.tensors().size()].add_tensor(
          tensor.name, {tensor.shape.begin(), tensor.shape.begin() + tensor.dimensions}, tensor.type->id,
          {tensor.data.begin(), tensor.data.end()});
    }
  }

  test::GgufBuilder& operator[](size_t part) { return parts_[part]; }
  const std::vector<std::byte>& whole() const { return whole_; }
  std::string path(size_t part) const {
    return fmt::format("{}/tiny-{:05}-of-{:05}.gguf", folder_.path(), part + 1, parts_.size());
  }
  void write() const {
    for (size_t p = 0; p < parts_.size(); ++p) {
      const std::vector<std::byte> bytes = parts_[p].build();
      std::ofstream out(path(p), std::ios::binary);
      out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    }
  }
  void expect_refused(ErrorCode code, const std::string& message_part) const {
    write();
    const Status status = ModelFile::open(path(0)).status();
    ASSERT_FALSE(status.ok()) << message_part;
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_THAT(status.message(), HasSubstr(message_part));
  }

 private:
  void copy_metadata(const Gguf& file) {
    for (std::string_view key : file.keys()) {
      const GgufValue& value = *file.find(key);
      std::vector<std::byte> payload;
      if (value.type == GgufType::kArray) {
        test::append(payload, static_cast<uint32_t>(value.element));
        test::append(payload, value.count);
      }
      payload.insert(payload.end(), value.payload.begin(), value.payload.end());
      parts_[0].set_raw(key, static_cast<uint32_t>(value.type), std::move(payload));
    }
  }

  test::TempFolder folder_;
  std::vector<std::byte> whole_;
  std::vector<test::GgufBuilder> parts_;
};

TEST(GgufSplit, AnyPartOpensTheWholeModel) {
  Parts parts(3);
  parts.write();
  const auto whole = ModelFile::from_bytes(parts.whole(), "whole.gguf");
  ASSERT_TRUE(whole.ok());
  for (size_t part = 0; part < 3; ++part) {
    const auto model = ModelFile::open(parts.path(part));
    ASSERT_TRUE(model.ok()) << model.status().message();
    ASSERT_EQ((*model)->gguf().tensors().size(), (*whole)->gguf().tensors().size());
    for (const GgufTensor& tensor : (*whole)->gguf().tensors()) {
      const GgufTensor* same = (*model)->gguf().find_tensor(tensor.name);
      ASSERT_NE(same, nullptr);
      EXPECT_TRUE(std::equal(tensor.data.begin(), tensor.data.end(), same->data.begin(), same->data.end()));
    }
    EXPECT_EQ((*model)->gguf().keys(), (*whole)->gguf().keys());
    EXPECT_TRUE((*model)->warnings().empty());
    EXPECT_GT((*model)->file_bytes(), parts.whole().size());
    EXPECT_THAT(describe_model(**model), HasSubstr("GGUF version 3 in 3 files"));
    EXPECT_EQ(model_name_of(parts.path(part)), "tiny");
    (*model)->release_pages();
    EXPECT_TRUE((*model)->read_tokenizer().ok());
  }
}

TEST(GgufSplit, NamesThePartThatIsMissing) {
  Parts parts(3);
  parts.write();
  std::filesystem::remove(parts.path(1));
  const Status status = ModelFile::open(parts.path(2)).status();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.code(), ErrorCode::kNotFound);
  EXPECT_EQ(status.message(), parts.path(1) + ": this part of the model is missing; fetch it, too");
}

TEST(GgufSplit, NamesWhatIsWrongWithParts) {
  Parts renamed(2);
  renamed.write();
  const std::string other = renamed.path(0) + ".gguf";
  std::filesystem::rename(renamed.path(0), other);
  const Status status = ModelFile::open(other).status();
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr("does not end like -00001-of-00002.gguf"));

  Parts wrong(2);
  wrong[1].set_u32("split.no", 4);
  wrong.expect_refused(ErrorCode::kCorrupt, "it says that it is part 5 of 2, where part 2 of 2 is needed");
  Parts more(2);
  more[0].set_u32("split.tensors.count", 7);
  more.expect_refused(ErrorCode::kCorrupt, "it claims 7 tensors in all parts");
  Parts none(2);
  none[0].set_u32("split.count", 0);
  none.expect_refused(ErrorCode::kCorrupt, "one of 0 parts");
  Parts twice(2);
  twice[1].add_tensor("token_embd.weight", {1}, 0, std::vector<std::byte>(4));
  twice.expect_refused(ErrorCode::kCorrupt, "'token_embd.weight' is in an earlier part");
  Parts no_number(2);
  no_number[1].remove("split.no");
  no_number.expect_refused(ErrorCode::kNotFound, "'split.no'");

  Parts single(2);
  const Status in_memory = ModelFile::from_bytes(single[0].build(), "a.gguf").status();
  ASSERT_FALSE(in_memory.ok());
  EXPECT_THAT(in_memory.message(), HasSubstr("a.gguf: this is one of 2 parts"));
}

TEST(GgufSplit, NamesOfModels) {
  EXPECT_EQ(model_name_of("/models/SmolLM2.Q4_1.gguf"), "SmolLM2.Q4_1");
  EXPECT_EQ(model_name_of("a-00001-of-00003.gguf"), "a");
  EXPECT_EQ(model_name_of("a-0001-of-00003.gguf"), "a-0001-of-00003");
  const test::TempFolder folder;
  const std::string inner = folder.path() + "/Qwen2.5-0.5B";
  std::filesystem::create_directory(inner);
  EXPECT_EQ(model_name_of(inner), "Qwen2.5-0.5B");
  EXPECT_EQ(model_name_of(inner + "//"), "Qwen2.5-0.5B");
}

}  // namespace
}  // namespace kvasir
