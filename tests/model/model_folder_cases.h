// Folders of the tiny models, opened or refused. For the tests of this folder only.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "model/files/model_file.h"
#include "support/tiny_folder.h"

namespace kvasir {

using test::FolderInMemory;
using test::FolderTensor;
using test::make_tiny_folder;
using test::TinyFolder;

// The tiny model of this architecture.
inline test::TinyLlamaShape shape_of(const std::string& architecture) {
  for (test::TinyLlamaShape& shape : test::all_tiny_architectures()) {
    if (shape.architecture == architecture) return shape;
  }
  KV_CHECK(false, "{}", architecture);
  return {};
}

inline TinyFolder tiny_folder_of(const std::string& architecture = "llama") {
  test::TinyLlamaShape shape = shape_of(architecture);
  if (architecture == "llama") shape.window = 0;
  return make_tiny_folder(shape, ops::WeightType::kBf16, 5);
}

// Adds fields to the configuration.
inline TinyFolder with(TinyFolder folder, const std::string& fields) {
  std::string& config = folder.texts["config.json"];
  config = config.substr(0, config.size() - 1) + "," + fields + "}";
  return folder;
}

struct Opened {
  explicit Opened(const TinyFolder& folder) : bytes(folder), model(ModelFile::from_folder(bytes.files())) {}
  const ModelFile& operator*() const {
    KV_CHECK(model.ok(), "{}", model.status().message());
    return **model;
  }
  FolderInMemory bytes;
  Result<std::unique_ptr<ModelFile>> model;
};

// With one line that begins with the folder.
inline void expect_refused(const TinyFolder& folder, ErrorCode code, const std::string& part) {
  const Opened opened(folder);
  ASSERT_FALSE(opened.model.ok()) << part;
  const Status status = opened.model.status();
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_THAT(status.message(), testing::AllOf(testing::StartsWith("folder"), testing::HasSubstr(part),
                                               testing::Not(testing::HasSubstr("\n"))));
}
inline void expect_field_refused(const std::string& architecture, const std::string& fields,
                                 const std::string& part) {
  expect_refused(with(tiny_folder_of(architecture), fields), ErrorCode::kUnsupported, part);
}

}  // namespace kvasir
