// Tiny models as folders of Hugging Face: what the GGUF file of tiny_llama.h says, in their names and orders.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/folders/model_folder.h"
#include "support/tiny_llama.h"

namespace kvasir::test {

struct FolderTensor {
  std::string name;
  std::string type;             // "BF16"
  std::vector<uint64_t> shape;  // the contiguous dimension last
  std::vector<std::byte> data;
};
// A file of these tensors.
std::vector<std::byte> safetensors_of(const std::vector<FolderTensor>& tensors);
// A file with any header.
std::vector<std::byte> safetensors_of(std::string_view header, std::span<const std::byte> data);

struct TinyFolder {
  std::map<std::string, std::string> texts;  // by the file's name: config.json, tokenizer.json...
  std::vector<FolderTensor> tensors;

  // REQUIRES: there is one of this name.
  FolderTensor& tensor(std::string_view name);
  // Replaces the only place of `from` in a text. REQUIRES: there is one.
  void edit(const std::string& file, std::string_view from, std::string_view to);
  // Into an empty folder; the tensors in so many files, with an index if there are several.
  void write(const std::string& path, size_t files = 1) const;
};

// The same model as make_tiny_llama() gives. REQUIRES: the type is F32, F16 or BF16.
TinyFolder make_tiny_folder(const TinyLlamaShape& shape, ops::WeightType type, uint64_t seed);

// A folder in memory, for ModelFile::from_folder(). Holds the bytes of `files`.
class FolderInMemory {
 public:
  explicit FolderInMemory(const TinyFolder& folder);
  FolderFiles files() const;

 private:
  std::map<std::string, std::string> texts_;
  std::vector<std::byte> weights_;
};

}  // namespace kvasir::test
