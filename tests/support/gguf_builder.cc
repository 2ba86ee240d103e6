// Writes GGUF and quantises rows, independently of the code that reads them.
#include "support/gguf_builder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace kvasir::test {
namespace {

constexpr size_t kBlock = 32;

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

uint8_t clamp_round(float value, float most) {
  return static_cast<uint8_t>(std::clamp(std::nearbyint(value), 0.0F, most));
}

// Element i in the low half of byte i, element i + 16 in the high half.
void append_nibbles(std::vector<std::byte>& out, const std::array<uint8_t, kBlock>& q) {
  for (size_t i = 0; i < kBlock / 2; ++i) append(out, static_cast<uint8_t>(q[i] | (q[i + kBlock / 2] << 4)));
}

void append_q8_0(std::vector<std::byte>& out, std::span<const float> x) {
  float most = 0;
  for (float v : x) most = std::max(most, std::fabs(v));
  const uint16_t bits = ops::f32_to_f16(most / 127.0F);
  const float d = ops::f16_to_f32(bits);
  append(out, bits);
  for (float v : x) {
    const float q = d == 0 ? 0 : std::clamp(std::nearbyint(v / d), -127.0F, 127.0F);
    append(out, static_cast<int8_t>(q));
  }
}

// The value of the largest magnitude becomes q = 0, that is -8 d, which makes use of the longer negative
// side.
void append_q4_0(std::vector<std::byte>& out, std::span<const float> x) {
  float extreme = 0;
  for (float v : x) extreme = std::fabs(v) > std::fabs(extreme) ? v : extreme;
  const uint16_t bits = ops::f32_to_f16(extreme / -8.0F);
  const float d = ops::f16_to_f32(bits);
  append(out, bits);
  std::array<uint8_t, kBlock> q = {};
  for (size_t i = 0; i < kBlock; ++i) q[i] = d == 0 ? 8 : clamp_round(x[i] / d + 8.0F, 15.0F);
  append_nibbles(out, q);
}

void append_q4_1(std::vector<std::byte>& out, std::span<const float> x) {
  const auto [low, high] = std::minmax_element(x.begin(), x.end());
  const uint16_t d_bits = ops::f32_to_f16((*high - *low) / 15.0F);
  const uint16_t m_bits = ops::f32_to_f16(*low);
  const float d = ops::f16_to_f32(d_bits);
  const float m = ops::f16_to_f32(m_bits);
  append(out, d_bits);
  append(out, m_bits);
  std::array<uint8_t, kBlock> q = {};
  for (size_t i = 0; i < kBlock; ++i) q[i] = d == 0 ? 0 : clamp_round((x[i] - m) / d, 15.0F);
  append_nibbles(out, q);
}

}  // namespace

void append_string(std::vector<std::byte>& out, std::string_view text) {
  append(out, static_cast<uint64_t>(text.size()));
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  out.insert(out.end(), bytes, bytes + text.size());
}

uint32_t gguf_type_id(ops::WeightType type) {
  switch (type) {
    case ops::WeightType::kF32:
      return 0;
    case ops::WeightType::kF16:
      return 1;
    case ops::WeightType::kQ4_0:
      return 2;
    case ops::WeightType::kQ4_1:
      return 3;
    case ops::WeightType::kQ8_0:
      return 8;
    case ops::WeightType::kBf16:
      return 30;
  }
  return 0;
}

std::vector<std::byte> quantize(ops::WeightType type, std::span<const float> values, int64_t columns) {
  KV_CHECK(columns > 0 && values.size() % static_cast<size_t>(columns) == 0, "{} values in rows of {}",
           values.size(), columns);
  std::vector<std::byte> out;
  if (!ops::is_quantized(type)) {
    for (float v : values) {
      if (type == ops::WeightType::kF32) append(out, v);
      if (type == ops::WeightType::kF16) append(out, ops::f32_to_f16(v));
      if (type == ops::WeightType::kBf16) append(out, ops::f32_to_bf16(v));
    }
    return out;
  }
  KV_CHECK(columns % static_cast<int64_t>(kBlock) == 0, "rows of {}", columns);
  for (size_t i = 0; i < values.size(); i += kBlock) {
    const auto block = values.subspan(i, kBlock);
    if (type == ops::WeightType::kQ8_0) append_q8_0(out, block);
    if (type == ops::WeightType::kQ4_0) append_q4_0(out, block);
    if (type == ops::WeightType::kQ4_1) append_q4_1(out, block);
  }
  return out;
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
