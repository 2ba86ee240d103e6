// Makes a container of what lies in several places: the parts of a split file, or files of another format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/files/gguf.h"

namespace kvasir {

// Metadata is encoded as a GGUF file would have it, so that a file made of keys() and find() is a
// correct one. Names are copied; the bytes of tensors, headers and given values are not: they
// outlive the container, or keep() holds them. Not thread-safe.
class GgufAssembler {
 public:
  // `origin` begins every error message about the container.
  explicit GgufAssembler(std::string origin);

  // REQUIRES of all: the key is not there yet.
  void set_u32(std::string_view key, uint32_t value);
  void set_i32(std::string_view key, int32_t value);
  void set_f32(std::string_view key, float value);
  void set_bool(std::string_view key, bool value);
  void set_string(std::string_view key, std::string_view value);
  void set_strings(std::string_view key, const std::vector<std::string>& values);
  void set_i32s(std::string_view key, const std::vector<int32_t>& values);
  void set_f32s(std::string_view key, const std::vector<float>& values);
  void set(std::string_view key, const GgufValue& value);
  bool has(std::string_view key) const { return container_.has(key); }

  // Everything but the name is taken from `tensor`. False: there is a tensor of this name.
  bool add_tensor(std::string_view name, const GgufTensor& tensor);
  // The same for a vector of F32, which is kept.
  bool add_vector(std::string_view name, const std::vector<float>& values);
  // The same for several vectors of so many values.
  bool add_vectors(std::string_view name, const std::vector<float>& values, uint64_t of);
  // The same for a tensor whose rows are made by `rows`, which is kept.
  bool add_rows(std::string_view name, const GgufTensor& tensor, std::unique_ptr<const TensorRows> rows);
  const GgufTensor* find_tensor(std::string_view name) const { return container_.find_tensor(name); }

  // Holds what makes rows for as long as the container lives.
  const TensorRows* keep(std::unique_ptr<const TensorRows> rows);

  void add_header(std::span<const std::byte> bytes);
  void set_version(uint32_t version) { container_.version_ = version; }

  // Holds the bytes for as long as the container lives.
  std::span<const std::byte> keep(std::vector<std::byte> bytes);

  // The container; the assembler is then empty.
  Gguf finish();

 private:
  struct Store;
  template <typename T>
  void set_plain(std::string_view key, GgufType type, std::span<const T> values, bool array);
  void set_encoded(std::string_view key, GgufType type, GgufType element, uint64_t count,
                   std::vector<std::byte> payload);

  std::shared_ptr<Store> store_;
  Gguf container_;
};

}  // namespace kvasir
