// Writes GGUF, independently of the code that reads it.
#include "support/gguf_builder.h"

#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace kvasir::test {
namespace {

template <typename T>
std::vector<std::byte> plain(T value) {
  std::vector<std::byte> out;
  append(out, value);
  return out;
}

std::vector<std::byte> array_head(GgufType element, size_t count) {
  std::vector<std::byte> out;
  append(out, static_cast<uint32_t>(element));
  append(out, static_cast<uint64_t>(count));
  return out;
}

}  // namespace

void append_string(std::vector<std::byte>& out, std::string_view text) {
  append(out, static_cast<uint64_t>(text.size()));
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  out.insert(out.end(), bytes, bytes + text.size());
}

uint32_t gguf_type_id(ops::WeightType type) {
  constexpr std::pair<ops::WeightType, uint32_t> kIds[] = {
      {ops::WeightType::kF32, 0},    {ops::WeightType::kF16, 1},    {ops::WeightType::kQ4_0, 2},
      {ops::WeightType::kQ4_1, 3},   {ops::WeightType::kQ5_0, 6},   {ops::WeightType::kQ5_1, 7},
      {ops::WeightType::kQ8_0, 8},   {ops::WeightType::kQ2K, 10},   {ops::WeightType::kQ3K, 11},
      {ops::WeightType::kQ4K, 12},   {ops::WeightType::kQ5K, 13},   {ops::WeightType::kQ6K, 14},
      {ops::WeightType::kIq4Nl, 20}, {ops::WeightType::kIq4Xs, 23}, {ops::WeightType::kBf16, 30},
      {ops::WeightType::kMxfp4, 39},
  };
  for (const auto& [known, id] : kIds) {
    if (known == type) return id;
  }
  KV_CHECK(false, "type {}", static_cast<int>(type));
}

void GgufBuilder::set_raw(std::string_view key, uint32_t type, std::vector<std::byte> payload) {
  for (Entry& entry : entries_) {
    if (entry.key == key) {
      entry.type = type;
      entry.payload = std::move(payload);
      return;
    }
  }
  entries_.push_back({std::string(key), type, std::move(payload)});
}

void GgufBuilder::set_u32(std::string_view key, uint32_t value) {
  set_raw(key, 4, plain(value));
}
void GgufBuilder::set_u64(std::string_view key, uint64_t value) {
  set_raw(key, 10, plain(value));
}
void GgufBuilder::set_i32(std::string_view key, int32_t value) {
  set_raw(key, 5, plain(value));
}
void GgufBuilder::set_f32(std::string_view key, float value) {
  set_raw(key, 6, plain(value));
}
void GgufBuilder::set_bool(std::string_view key, bool value) {
  set_raw(key, 7, plain(static_cast<uint8_t>(value)));
}

void GgufBuilder::set_string(std::string_view key, std::string_view value) {
  std::vector<std::byte> payload;
  append_string(payload, value);
  set_raw(key, 8, std::move(payload));
}

void GgufBuilder::set_strings(std::string_view key, const std::vector<std::string>& values) {
  std::vector<std::byte> payload = array_head(GgufType::kString, values.size());
  for (const std::string& value : values) append_string(payload, value);
  set_raw(key, 9, std::move(payload));
}

void GgufBuilder::set_i32s(std::string_view key, const std::vector<int32_t>& values) {
  std::vector<std::byte> payload = array_head(GgufType::kI32, values.size());
  for (int32_t value : values) append(payload, value);
  set_raw(key, 9, std::move(payload));
}

void GgufBuilder::set_f32s(std::string_view key, const std::vector<float>& values) {
  std::vector<std::byte> payload = array_head(GgufType::kF32, values.size());
  for (float value : values) append(payload, value);
  set_raw(key, 9, std::move(payload));
}

void GgufBuilder::remove(std::string_view key) {
  std::erase_if(entries_, [key](const Entry& entry) { return entry.key == key; });
}

void GgufBuilder::duplicate(std::string_view key) {
  for (const Entry& entry : entries_) {
    if (entry.key == key) {
      entries_.push_back(Entry(entry));
      return;
    }
  }
  KV_CHECK(false, "no key {}", key);
}

void GgufBuilder::add_tensor(std::string_view name, std::vector<uint64_t> shape, uint32_t type,
                             std::vector<std::byte> data) {
  tensors_.push_back({std::string(name), std::move(shape), type, std::move(data)});
}

void GgufBuilder::remove_tensor(std::string_view name) {
  std::erase_if(tensors_, [name](const Tensor& tensor) { return tensor.name == name; });
}

GgufBuilder::Tensor& GgufBuilder::tensor(std::string_view name) {
  for (Tensor& tensor : tensors_) {
    if (tensor.name == name) return tensor;
  }
  KV_CHECK(false, "no tensor {}", name);
  return tensors_.front();
}

std::vector<std::byte> GgufBuilder::build() const {
  std::vector<std::byte> out;
  for (char c : std::string_view("GGUF")) append(out, c);
  append(out, version_);
  append(out, static_cast<uint64_t>(tensors_.size()));
  append(out, static_cast<uint64_t>(entries_.size()));
  for (const Entry& entry : entries_) {
    append_string(out, entry.key);
    append(out, entry.type);
    out.insert(out.end(), entry.payload.begin(), entry.payload.end());
  }
  uint64_t offset = 0;
  std::vector<uint64_t> places;
  for (const Tensor& t : tensors_) {
    append_string(out, t.name);
    append(out, static_cast<uint32_t>(t.shape.size()));
    for (uint64_t size : t.shape) append(out, size);
    append(out, t.type);
    append(out, t.offset >= 0 ? static_cast<uint64_t>(t.offset) : offset);
    places.push_back(offset);
    offset = round_up(offset + t.data.size(), alignment_);
  }
  if (tensors_.empty()) return out;
  const uint64_t begin = round_up<uint64_t>(out.size(), alignment_);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    out.resize(begin + places[i]);
    out.insert(out.end(), tensors_[i].data.begin(), tensors_[i].data.end());
  }
  return out;
}

}  // namespace kvasir::test
