// The container of a model: typed metadata and named tensors, as a GGUF file has them (versions 2 and 3,
// little-endian).
//
// Gguf::parse() reads one file; GgufAssembler (gguf_assembler.h) makes one of several files, also of other
// formats. Everything here is a checked view into bytes that the caller owns. After parse() every length,
// count and offset has been verified against the size of the file, so the accessors cannot read outside it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "model/files/tensor_rows.h"

namespace kvasir {

// The numbers are the file's.
enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};
// "u32", "string", "array"...
std::string_view gguf_type_name(GgufType type);

// Bytes of one value of a fixed-size type; 0 for kString and kArray.
size_t gguf_type_bytes(GgufType type);

struct GgufValue {
  GgufType type = GgufType::kU8;
  GgufType element = GgufType::kU8;    // of the elements, where type is kArray; never kArray itself
  uint64_t count = 1;                  // elements of an array; 1 otherwise
  std::span<const std::byte> payload;  // the values as they lie in the file; a string is u64 length + bytes
};

// The number of types that folders have and GGUF files have not.
constexpr uint32_t kNoGgufType = UINT32_MAX;

// How a tensor type of the file stores its numbers: rows of whole blocks.
struct GgufTensorType {
  std::string_view name;  // "Q8_0"
  uint32_t id;            // the file's number, or kNoGgufType
  uint32_t block_values;
  uint32_t block_bytes;
};
// nullptr: an unknown number.
const GgufTensorType* gguf_tensor_type(uint32_t id);

struct GgufTensor {
  std::string_view name;  // any bytes, in the file
  const GgufTensorType* type = nullptr;
  uint32_t dimensions = 0;                       // 1 to 4
  std::array<uint64_t, 4> shape = {1, 1, 1, 1};  // shape[0] is the contiguous one: the values of a row
  std::span<const std::byte> data;               // exactly the bytes that type and shape imply, or:
  // What makes the rows, where a folder has them in another form; `data` is then a part of what they are made
  // of.
  const TensorRows* rows = nullptr;
  uint64_t bytes() const { return values() / type->block_values * type->block_bytes; }
  uint64_t values() const { return shape[0] * shape[1] * shape[2] * shape[3]; }
};

// The name of a tensor or key, fit for a message: quoted, one line, ASCII, at most about 80 characters.
std::string gguf_quoted(std::string_view name);

// Immutable once made, hence thread-safe. Copyable; copies view the same bytes.
class Gguf {
 public:
  // Reads and checks the whole header. `origin` (a path) begins every error message.
  // kInvalidArgument: not a GGUF file. kUnsupported: a version, byte order, nested array or tensor type that
  // is not supported. kCorrupt: an inconsistent or truncated file.
  // REQUIRES: `bytes` outlive the object and all that it returns by view.
  static Result<Gguf> parse(std::span<const std::byte> bytes, std::string origin);

  const std::string& origin() const { return origin_; }
  uint32_t version() const { return version_; }  // 0: not of GGUF files
  uint64_t alignment() const { return alignment_; }
  // What says how the tensors are to be read: of a GGUF file, from its start to the end of the tensor infos.
  const std::vector<std::span<const std::byte>>& headers() const { return headers_; }

  const std::vector<std::string_view>& keys() const { return keys_; }  // in the order of the file
  bool has(std::string_view key) const { return metadata_.contains(key); }
  const GgufValue* find(std::string_view key) const;  // nullptr: not there

  // Typed reads. kNotFound: no such key. kInvalidArgument: another type, or a number out of range. Integers
  // of any width are read where the value fits; get_f32 reads f32 and f64.
  Result<uint32_t> get_u32(std::string_view key) const;
  Result<int32_t> get_i32(std::string_view key) const;
  Result<float> get_f32(std::string_view key) const;
  Result<bool> get_bool(std::string_view key) const;
  Result<std::string> get_string(std::string_view key) const;
  Result<std::vector<std::string>> get_strings(std::string_view key) const;
  // Any integers that fit in i32, and bools as 0 and 1.
  Result<std::vector<int32_t>> get_i32s(std::string_view key) const;
  Result<std::vector<float>> get_f32s(std::string_view key) const;  // f32 or f64

  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // in the order of the file
  const GgufTensor* find_tensor(std::string_view name) const;          // nullptr: not there

 private:
  friend class GgufParser;
  friend class GgufAssembler;
  Gguf() = default;

  Result<const GgufValue*> require(std::string_view key) const;
  Result<const GgufValue*> require_array(std::string_view key, std::string_view wanted) const;
  Status wrong_type(std::string_view key, const GgufValue& value, std::string_view wanted) const;

  std::string origin_;
  uint32_t version_ = 0;
  uint64_t alignment_ = 32;
  std::vector<std::span<const std::byte>> headers_;
  std::shared_ptr<const void> owned_;  // bytes that lie in no file
  std::vector<std::string_view> keys_;
  std::unordered_map<std::string_view, GgufValue> metadata_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string_view, size_t> tensor_index_;
};

}  // namespace kvasir
