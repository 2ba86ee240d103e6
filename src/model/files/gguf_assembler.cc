// Metadata of its own in memory that does not move; tensors as views.
#include "model/files/gguf_assembler.h"

#include <deque>
#include <utility>

#include "base/check.h"
#include "model/files/gguf_bytes.h"

namespace kvasir {

// Deques: what they hold does not move when they grow.
struct GgufAssembler::Store {
  std::deque<std::string> names;
  std::deque<std::vector<std::byte>> bytes;
  std::vector<std::unique_ptr<const TensorRows>> rows;
};

GgufAssembler::GgufAssembler(std::string origin) : store_(std::make_shared<Store>()) {
  container_.origin_ = std::move(origin);
  container_.owned_ = store_;
}

void GgufAssembler::set(std::string_view key, const GgufValue& value) {
  const std::string_view name = store_->names.emplace_back(key);
  const bool is_new = container_.metadata_.emplace(name, value).second;
  KV_CHECK(is_new, "key={}", key);
  container_.keys_.push_back(name);
}

void GgufAssembler::set_encoded(std::string_view key, GgufType type, GgufType element, uint64_t count,
                                std::vector<std::byte> payload) {
  set(key, GgufValue{type, element, count, keep(std::move(payload))});
}

template <typename T>
void GgufAssembler::set_plain(std::string_view key, GgufType type, std::span<const T> values, bool array) {
  std::vector<std::byte> payload;
  append_bytes(payload, std::as_bytes(values));
  set_encoded(key, array ? GgufType::kArray : type, type, values.size(), std::move(payload));
}

void GgufAssembler::set_u32(std::string_view key, uint32_t value) {
  set_plain<uint32_t>(key, GgufType::kU32, {&value, 1}, false);
}
void GgufAssembler::set_i32(std::string_view key, int32_t value) {
  set_plain<int32_t>(key, GgufType::kI32, {&value, 1}, false);
}
void GgufAssembler::set_f32(std::string_view key, float value) {
  set_plain<float>(key, GgufType::kF32, {&value, 1}, false);
}
void GgufAssembler::set_bool(std::string_view key, bool value) {
  const uint8_t byte = value ? 1 : 0;
  set_plain<uint8_t>(key, GgufType::kBool, {&byte, 1}, false);
}
void GgufAssembler::set_i32s(std::string_view key, const std::vector<int32_t>& values) {
  set_plain<int32_t>(key, GgufType::kI32, values, true);
}
void GgufAssembler::set_f32s(std::string_view key, const std::vector<float>& values) {
  set_plain<float>(key, GgufType::kF32, values, true);
}

void GgufAssembler::set_string(std::string_view key, std::string_view value) {
  std::vector<std::byte> payload;
  append_text(payload, value);
  set_encoded(key, GgufType::kString, GgufType::kString, 1, std::move(payload));
}

void GgufAssembler::set_strings(std::string_view key, const std::vector<std::string>& values) {
  std::vector<std::byte> payload;
  for (const std::string& value : values) append_text(payload, value);
  set_encoded(key, GgufType::kArray, GgufType::kString, values.size(), std::move(payload));
}

bool GgufAssembler::add_tensor(std::string_view name, const GgufTensor& tensor) {
  if (container_.tensor_index_.contains(name)) return false;
  GgufTensor& added = container_.tensors_.emplace_back(tensor);
  added.name = store_->names.emplace_back(name);
  container_.tensor_index_.emplace(added.name, container_.tensors_.size() - 1);
  return true;
}

bool GgufAssembler::add_vector(std::string_view name, const std::vector<float>& values) {
  return add_vectors(name, values, values.size());
}

bool GgufAssembler::add_vectors(std::string_view name, const std::vector<float>& values, uint64_t of) {
  constexpr uint32_t kF32 = 0;  // the file's number
  std::vector<std::byte> bytes;
  append_bytes(bytes, std::as_bytes(std::span(values)));
  GgufTensor tensor;
  tensor.type = gguf_tensor_type(kF32);
  tensor.dimensions = of == values.size() ? 1 : 2;
  tensor.shape = {of, values.size() / of, 1, 1};
  tensor.data = keep(std::move(bytes));
  return add_tensor(name, tensor);
}

bool GgufAssembler::add_rows(std::string_view name, const GgufTensor& tensor,
                             std::unique_ptr<const TensorRows> rows) {
  GgufTensor made = tensor;
  made.rows = keep(std::move(rows));
  return add_tensor(name, made);
}

const TensorRows* GgufAssembler::keep(std::unique_ptr<const TensorRows> rows) {
  return store_->rows.emplace_back(std::move(rows)).get();
}

void GgufAssembler::add_header(std::span<const std::byte> bytes) {
  container_.headers_.push_back(bytes);
}

std::span<const std::byte> GgufAssembler::keep(std::vector<std::byte> bytes) {
  return store_->bytes.emplace_back(std::move(bytes));
}

Gguf GgufAssembler::finish() {
  Gguf out = std::move(container_);
  *this = GgufAssembler(out.origin_);
  return out;
}

}  // namespace kvasir
