// A model on disk, opened and checked: metadata, spec and the views of its weights.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/status.h"
#include "model/architectures/model_spec.h"
#include "model/files/gguf.h"
#include "model/files/mapped_file.h"
#include "model/files/tensor_table.h"

namespace kvasir {

// Names a model: SHA-256 over the header (metadata and tensor infos) and the first and last 4 KiB of every
// tensor. Two files with the same fingerprint are taken for the same model; it does not
// detect a deliberate change in the middle of a tensor.
using ModelFingerprint = std::array<uint8_t, 32>;
ModelFingerprint fingerprint_of(const Gguf& file);

// 64 hexadecimal digits.
std::string to_hex(const ModelFingerprint& fingerprint);

// Immutable after open(), hence thread-safe. It owns the bytes; every view that it gives out lives as long as
// it does.
class ModelFile {
 public:
  // Maps the file; nothing is read but the header, the norms and what the fingerprint needs.
  static Result<std::unique_ptr<ModelFile>> open(const std::string& path);
  // The same over bytes in memory: tests and fuzzing. `origin` stands for the path in messages.
  static Result<std::unique_ptr<ModelFile>> from_bytes(std::vector<std::byte> bytes, std::string origin);

  const std::string& path() const { return gguf_->origin(); }
  uint64_t file_bytes() const { return bytes().size(); }
  const Gguf& gguf() const { return *gguf_; }
  const ModelSpec& spec() const { return spec_; }
  const TensorTable& weights() const { return weights_; }
  // One line each, for the log; empty for an ordinary file.
  const std::vector<std::string>& warnings() const { return weights_.warnings; }
  const ModelFingerprint& fingerprint() const { return fingerprint_; }

  // Gives the memory of the mapped tensor data back to the kernel, once the weights are packed. The views
  // stay valid: what is read again comes from the file. No effect on from_bytes().
  void release_pages() const;

 private:
  using Storage = std::variant<MappedFile, std::vector<std::byte>>;
  explicit ModelFile(Storage storage) : storage_(std::move(storage)) {}

  static Result<std::unique_ptr<ModelFile>> load(Storage storage, std::string origin);
  std::span<const std::byte> bytes() const;

  Storage storage_;
  std::unique_ptr<const Gguf> gguf_;
  ModelSpec spec_;
  TensorTable weights_;
  ModelFingerprint fingerprint_ = {};
};

}  // namespace kvasir
