// Builds GGUF files in memory, well formed or wrong on purpose.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/files/gguf.h"
#include "ops/numerics.h"

namespace kvasir::test {

// Not thread-safe. Setting a key again replaces its value and keeps its place; nothing is checked, so that a
// test can write what the reader must refuse.
class GgufBuilder {
 public:
  void set_u32(std::string_view key, uint32_t value);
  void set_u64(std::string_view key, uint64_t value);
  void set_i32(std::string_view key, int32_t value);
  void set_f32(std::string_view key, float value);
  void set_bool(std::string_view key, bool value);
  void set_string(std::string_view key, std::string_view value);
  void set_strings(std::string_view key, const std::vector<std::string>& values);
  void set_i32s(std::string_view key, const std::vector<int32_t>& values);
  void set_f32s(std::string_view key, const std::vector<float>& values);
  // The bytes after the type, as they are.
  void set_raw(std::string_view key, uint32_t type, std::vector<std::byte> payload);
  void remove(std::string_view key);
  // Writes the key a second time, which the reader must refuse.
  void duplicate(std::string_view key);

  // `shape[0]` is the contiguous dimension; `type` is the file's number; `data` goes into the file as it is.
  void add_tensor(std::string_view name, std::vector<uint64_t> shape, uint32_t type,
                  std::vector<std::byte> data);
  void remove_tensor(std::string_view name);
  struct Tensor {
    std::string name;
    std::vector<uint64_t> shape;
    uint32_t type = 0;
    std::vector<std::byte> data;
    int64_t offset = -1;  // -1: wherever the data is placed
  };
  // To change a tensor that is there. REQUIRES: it is.
  Tensor& tensor(std::string_view name);

  void set_version(uint32_t version) { version_ = version; }
  // Of the layout; it does not write the key general.alignment.
  void set_alignment(uint64_t alignment) { alignment_ = alignment; }

  // The file; it ends with the last byte of the last tensor, without padding.
  std::vector<std::byte> build() const;

 private:
  struct Entry {
    std::string key;
    uint32_t type = 0;
    std::vector<std::byte> payload;
  };
  std::vector<Entry> entries_;
  std::vector<Tensor> tensors_;
  uint32_t version_ = 3;
  uint64_t alignment_ = 32;
};

// The file's number of a weight type.
uint32_t gguf_type_id(ops::WeightType type);

// Appends the bytes of a plain value, little-endian.
template <typename T>
void append(std::vector<std::byte>& out, T value) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof(T));
}
// Length as u64, then the bytes.
void append_string(std::vector<std::byte>& out, std::string_view text);

// Rows of `columns` values in the layout of `type`. REQUIRES: columns are whole blocks.
std::vector<std::byte> quantize(ops::WeightType type, std::span<const float> values, int64_t columns);
// `type`, or what llama.cpp stores in its place where rows of so many values are no whole blocks of 256.
ops::WeightType type_that_fits(ops::WeightType type, int64_t columns);

}  // namespace kvasir::test
