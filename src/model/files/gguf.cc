// GGUF: names of types and the typed reads of metadata.
#include "model/files/gguf.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "base/untrusted_text.h"

namespace kvasir {
namespace {

constexpr std::array<GgufTensorType, 32> kTensorTypes = {{
    {"F32", 0, 1, 4},         {"F16", 1, 1, 2},         {"Q4_0", 2, 32, 18},      {"Q4_1", 3, 32, 20},
    {"Q5_0", 6, 32, 22},      {"Q5_1", 7, 32, 24},      {"Q8_0", 8, 32, 34},      {"Q8_1", 9, 32, 36},
    {"Q2_K", 10, 256, 84},    {"Q3_K", 11, 256, 110},   {"Q4_K", 12, 256, 144},   {"Q5_K", 13, 256, 176},
    {"Q6_K", 14, 256, 210},   {"Q8_K", 15, 256, 292},   {"IQ2_XXS", 16, 256, 66}, {"IQ2_XS", 17, 256, 74},
    {"IQ3_XXS", 18, 256, 98}, {"IQ1_S", 19, 256, 50},   {"IQ4_NL", 20, 32, 18},   {"IQ3_S", 21, 256, 110},
    {"IQ2_S", 22, 256, 82},   {"IQ4_XS", 23, 256, 136}, {"I8", 24, 1, 1},         {"I16", 25, 1, 2},
    {"I32", 26, 1, 4},        {"I64", 27, 1, 8},        {"F64", 28, 1, 8},        {"IQ1_M", 29, 256, 56},
    {"BF16", 30, 1, 2},       {"TQ1_0", 34, 256, 54},   {"TQ2_0", 35, 256, 66},   {"MXFP4", 39, 32, 17},
}};

template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// Reads one integer of any width. `negative` tells how to read the 64 bits. nullopt: not an integer type.
struct Integer {
  uint64_t bits = 0;
  bool negative = false;
};

Integer from_signed(int64_t value) {
  return {static_cast<uint64_t>(value), value < 0};
}

std::optional<Integer> load_integer(GgufType type, const std::byte* from) {
  switch (type) {
    case GgufType::kU8:
      return Integer{load<uint8_t>(from)};
    case GgufType::kU16:
      return Integer{load<uint16_t>(from)};
    case GgufType::kU32:
      return Integer{load<uint32_t>(from)};
    case GgufType::kU64:
      return Integer{load<uint64_t>(from)};
    case GgufType::kI8:
      return from_signed(load<int8_t>(from));
    case GgufType::kI16:
      return from_signed(load<int16_t>(from));
    case GgufType::kI32:
      return from_signed(load<int32_t>(from));
    case GgufType::kI64:
      return from_signed(load<int64_t>(from));
    default:
      return std::nullopt;
  }
}

// nullopt: it does not fit.
std::optional<int32_t> as_i32(const Integer& integer) {
  const auto number = static_cast<int64_t>(integer.bits);
  const bool fits = integer.negative ? number >= std::numeric_limits<int32_t>::min()
                                     : integer.bits <= std::numeric_limits<int32_t>::max();
  return fits ? std::optional(static_cast<int32_t>(number)) : std::nullopt;
}

std::optional<float> load_float(GgufType type, const std::byte* from) {
  if (type == GgufType::kF32) return load<float>(from);
  if (type == GgufType::kF64) {
    const auto value = load<double>(from);
    // Narrowing a finite double beyond the range of float is undefined, so it becomes an infinity by hand.
    if (std::fabs(value) > std::numeric_limits<float>::max()) {
      return std::copysign(std::numeric_limits<float>::infinity(), static_cast<float>(value > 0 ? 1 : -1));
    }
    return static_cast<float>(value);
  }
  return std::nullopt;
}

}  // namespace

std::string_view gguf_type_name(GgufType type) {
  constexpr std::array<std::string_view, 13> kNames = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                       "bool", "string", "array", "u64", "i64", "f64"};
  const auto index = static_cast<size_t>(type);
  return index < kNames.size() ? kNames[index] : "unknown";
}

size_t gguf_type_bytes(GgufType type) {
  constexpr std::array<size_t, 13> kBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  const auto index = static_cast<size_t>(type);
  return index < kBytes.size() ? kBytes[index] : 0;
}

const GgufTensorType* gguf_tensor_type(uint32_t id) {
  for (const GgufTensorType& type : kTensorTypes) {
    if (type.id == id) return &type;
  }
  return nullptr;
}

std::string gguf_quoted(std::string_view name) {
  constexpr size_t kShown = 64;
  return "'" + one_line(name, kShown) + "'";
}

const GgufValue* Gguf::find(std::string_view key) const {
  auto it = metadata_.find(key);
  return it == metadata_.end() ? nullptr : &it->second;
}

const GgufTensor* Gguf::find_tensor(std::string_view name) const {
  auto it = tensor_index_.find(name);
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

Result<const GgufValue*> Gguf::require(std::string_view key) const {
  if (const GgufValue* value = find(key)) return value;
  return error(ErrorCode::kNotFound,
               "{}: the metadata has no {}; convert the model again with a current converter", origin_,
               gguf_quoted(key));
}

Status Gguf::wrong_type(std::string_view key, const GgufValue& value, std::string_view wanted) const {
  std::string found(gguf_type_name(value.type));
  if (value.type == GgufType::kArray) {
    found = fmt::format("array of {} {}", value.count, gguf_type_name(value.element));
  }
  return error(ErrorCode::kInvalidArgument,
               "{}: metadata {} is of type {}, or out of range, where {} is needed; convert the model again "
               "with a current converter",
               origin_, gguf_quoted(key), found, wanted);
}

Result<uint32_t> Gguf::get_u32(std::string_view key) const {
  KV_ASSIGN_OR_RETURN(const GgufValue* value, require(key));
  auto integer = load_integer(value->type, value->payload.data());
  if (!integer || integer->negative || integer->bits > std::numeric_limits<uint32_t>::max()) {
    return wrong_type(key, *value, "a non-negative integer of 32 bits");
  }
  return static_cast<uint32_t>(integer->bits);
}

Result<int32_t> Gguf::get_i32(std::string_view key) const {
  KV_ASSIGN_OR_RETURN(const GgufValue* value, require(key));
  const auto integer = load_integer(value->type, value->payload.data());
  const std::optional<int32_t> number = integer ? as_i32(*integer) : std::nullopt;
  if (!number) return wrong_type(key, *value, "an integer of 32 bits");
  return *number;
}

Result<float> Gguf::get_f32(std::string_view key) const {
  KV_ASSIGN_OR_RETURN(const GgufValue* value, require(key));
  auto number = load_float(value->type, value->payload.data());
  if (!number) return wrong_type(key, *value, "a floating-point number");
  return *number;
}

Result<bool> Gguf::get_bool(std::string_view key) const {
  KV_ASSIGN_OR_RETURN(const GgufValue* value, require(key));
  if (value->type != GgufType::kBool) return wrong_type(key, *value, "a bool");
  return load<uint8_t>(value->payload.data()) != 0;
}

Result<std::string> Gguf::get_string(std::string_view key) const {
  KV_ASSIGN_OR_RETURN(const GgufValue* value, require(key));
  if (value->type != GgufType::kString) return wrong_type(key, *value, "a string");
  auto text = value->payload.subspan(sizeof(uint64_t));
  return std::string(reinterpret_cast<const char*>(text.data()), text.size());
}

Result<const GgufValue*> Gguf::require_array(std::string_view key, std::string_view wanted) const {
  KV_ASSIGN_OR_RETURN(const GgufValue* value, require(key));
  if (value->type != GgufType::kArray) return wrong_type(key, *value, wanted);
  return value;
}

Result<std::vector<std::string>> Gguf::get_strings(std::string_view key) const {
  constexpr std::string_view kWanted = "an array of strings";
  KV_ASSIGN_OR_RETURN(const GgufValue* value, require_array(key, kWanted));
  if (value->element != GgufType::kString) return wrong_type(key, *value, kWanted);
  std::vector<std::string> out;
  out.reserve(value->count);
  const std::byte* at = value->payload.data();
  for (uint64_t i = 0; i < value->count; ++i) {
    const auto length = load<uint64_t>(at);
    at += sizeof(uint64_t);
    out.emplace_back(reinterpret_cast<const char*>(at), length);
    at += length;
  }
  return out;
}

Result<std::vector<int32_t>> Gguf::get_i32s(std::string_view key) const {
  constexpr std::string_view kWanted = "an array of integers of 32 bits";
  KV_ASSIGN_OR_RETURN(const GgufValue* value, require_array(key, kWanted));
  std::vector<int32_t> out;
  out.reserve(value->count);
  const size_t step = gguf_type_bytes(value->element);
  for (uint64_t i = 0; i < value->count; ++i) {
    const std::byte* at = value->payload.data() + i * step;
    if (value->element == GgufType::kBool) {
      out.push_back(*at != std::byte{0} ? 1 : 0);
      continue;
    }
    const auto integer = load_integer(value->element, at);
    const std::optional<int32_t> number = integer ? as_i32(*integer) : std::nullopt;
    if (!number) return wrong_type(key, *value, kWanted);
    out.push_back(*number);
  }
  return out;
}

Result<std::vector<float>> Gguf::get_f32s(std::string_view key) const {
  constexpr std::string_view kWanted = "an array of floating-point numbers";
  KV_ASSIGN_OR_RETURN(const GgufValue* value, require_array(key, kWanted));
  std::vector<float> out;
  out.reserve(value->count);
  const size_t step = gguf_type_bytes(value->element);
  for (uint64_t i = 0; i < value->count; ++i) {
    auto number = load_float(value->element, value->payload.data() + i * step);
    if (!number) return wrong_type(key, *value, kWanted);
    out.push_back(*number);
  }
  return out;
}

}  // namespace kvasir
