// A model on disk, opened and checked: metadata, spec and the views of its weights.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/architectures/model_spec.h"
#include "model/files/gguf.h"
#include "model/files/mapped_file.h"
#include "model/files/pooling_type.h"
#include "model/files/sampling_defaults.h"
#include "model/files/tensor_table.h"
#include "model/folders/model_folder.h"
#include "model/quantize/recipe.h"
#include "model/tokenizers/tokenizer_data.h"

namespace kvasir {

// Names a model: SHA-256 over the headers (metadata and tensor infos; of a folder, its texts and the headers
// of its weights), the first and last 4 KiB of every tensor, and its first and last row where rows are made
// of a folder's. Two files with the same fingerprint are taken for the same model; it does not detect a
// deliberate change in the middle of a tensor.
using ModelFingerprint = std::array<uint8_t, 32>;
ModelFingerprint fingerprint_of(const Gguf& file);
// Of the model when it is quantised by loading: of its own fingerprint, the recipe and kQuantizerVersion.
ModelFingerprint fingerprint_of(const ModelFingerprint& stored, const QuantizationRecipe& recipe);

// 64 hexadecimal digits.
std::string to_hex(const ModelFingerprint& fingerprint);

// Immutable after open(), hence thread-safe. It owns the bytes; every view that it gives out lives as long as
// it does.
class ModelFile {
 public:
  // A GGUF file, any part of a split one (gguf_split.h; the others lie beside it), or a folder of Hugging
  // Face (model_folder.h). Maps the files; nothing is read but headers, norms, what the fingerprint needs,
  // and of a folder with tied embeddings that has an output matrix nevertheless this and the embedding.
  // kNotFound: a file that is not there, by name. Other errors: those of Gguf::parse(), read_model_spec(),
  // read_tensor_table(), join_split() and read_model_folder().
  static Result<std::unique_ptr<ModelFile>> open(const std::string& path);
  // A GGUF file in memory, for tests and fuzzing. `origin` stands for the path in messages.
  static Result<std::unique_ptr<ModelFile>> from_bytes(std::vector<std::byte> bytes, std::string origin);
  // A folder in memory, likewise. REQUIRES: the bytes that `files` views outlive the model.
  static Result<std::unique_ptr<ModelFile>> from_folder(FolderFiles files);

  const std::string& path() const { return gguf_->origin(); }
  // Of the files that have weights.
  uint64_t file_bytes() const;
  // Metadata and tensors as a GGUF file of the model has them, whatever they come from; for a folder
  // read_model_folder() says in what they differ.
  const Gguf& gguf() const { return *gguf_; }
  bool is_folder() const { return !folder_.path.empty(); }
  // What is mapped: all files that the model is read from. Empty: it is in memory.
  std::span<const MappedFile> files() const { return mapped_; }
  // How many files have weights.
  size_t weight_files() const {
    return is_folder() ? folder_.weights.size() : std::max<size_t>(1, mapped_.size());
  }
  const ModelSpec& spec() const { return spec_; }
  const TensorTable& weights() const { return weights_; }
  const SamplingDefaults& sampling_defaults() const { return sampling_defaults_; }
  // How embeddings are made; kNone: the files do not say, or say a way that is not offered.
  Pooling pooling() const { return pooling_; }
  // Reads the tokenizer, of as many tokens as the embedding has rows; nothing of it is kept here. kNotFound:
  // the model has none. Other errors: those of read_tokenizer_data() and read_tokenizer_json().
  Result<TokenizerData> read_tokenizer() const;
  // One line each, for the log; empty for an ordinary file.
  const std::vector<std::string>& warnings() const { return warnings_; }
  const ModelFingerprint& fingerprint() const { return fingerprint_; }

  // From now on the matrices are used in the types that the recipe gives them, to which loading quantises
  // their rows one by one: with the same results as the file that convert_model() writes. The fingerprint is
  // then another one. kUnsupported: a matrix is quantised already, as another type. REQUIRES: nothing else
  // uses the model yet; at most once.
  Status quantize_as(const QuantizationRecipe& recipe);
  // nullptr: the matrices are used as they are stored.
  const QuantizationRecipe* quantization() const { return quantization_; }

  // Gives the memory of the mapped files back to the kernel, once the weights are packed. The views stay
  // valid: what is read again comes from the files. No effect on what is in memory.
  void release_pages() const;

 private:
  ModelFile() = default;
  static Result<std::unique_ptr<ModelFile>> open_folder(const std::string& path);
  static Result<std::unique_ptr<ModelFile>> open_gguf(const std::string& path);
  Status load(Gguf container);

  std::vector<MappedFile> mapped_;
  std::vector<std::byte> bytes_;  // of from_bytes()
  FolderFiles folder_;            // its path is empty: a GGUF
  std::unique_ptr<const Gguf> gguf_;
  ModelSpec spec_;
  TensorTable weights_;
  SamplingDefaults sampling_defaults_;
  Pooling pooling_ = Pooling::kNone;
  std::vector<std::string> warnings_;
  const QuantizationRecipe* quantization_ = nullptr;
  ModelFingerprint fingerprint_ = {};
};

// What a model at this path is called: the folder's name, or the file's without its ending and its number.
std::string model_name_of(const std::string& path);

}  // namespace kvasir
