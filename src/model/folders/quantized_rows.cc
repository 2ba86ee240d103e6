#include "model/folders/quantized_rows.h"

#include <array>
#include <bit>
#include <cstring>
#include <limits>

namespace kvasir {
namespace {

template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}
template <typename T>
std::byte* store(T value, std::byte* to) {
  std::memcpy(to, &value, sizeof(value));
  return to + sizeof(value);
}

// AWQ: bits 4i of a word are output 0, 2, 4, 6, 1, 3, 5, 7 of eight. This is the i of each.
constexpr uint8_t kAwqPlace[] = {0, 4, 1, 5, 2, 6, 3, 7};

// Sign, four bits of exponent with bias 7, three of fraction. All ones: NaN; exponent 0: subnormal.
constexpr float fp8_value(uint32_t code) {
  const uint32_t exponent = code >> 3 & 15, fraction = code & 7;
  float value = exponent == 0 ? static_cast<float>(fraction) * 0x1p-9F
                              : std::bit_cast<float>((exponent + 120) << 23 | fraction << 20);
  if ((code & 127) == 127) value = std::numeric_limits<float>::quiet_NaN();
  return (code & 128) != 0 ? -value : value;
}
constexpr std::array<float, 256> kFp8Values = [] {
  std::array<float, 256> values = {};
  for (uint32_t i = 0; i < 256; ++i) values[i] = fp8_value(i);
  return values;
}();

}  // namespace

uint32_t PackedCodes::at(uint64_t row, uint64_t column) const {
  const int halvings = bits == 4 ? 3 : 2;  // a word has 2^halvings codes
  const uint64_t place = packs_rows ? (row >> halvings) * row_words + column * column_words
                                    : row * row_words + (column >> halvings) * column_words;
  uint64_t in = (packs_rows ? row : column) & ((uint64_t{1} << halvings) - 1);
  if (awq_order) in = kAwqPlace[in];
  const uint32_t word = load<uint32_t>(words + place * sizeof(uint32_t)) + added;
  return ((word >> (bits * in)) & ((uint32_t{1} << bits) - 1)) ^ flipped;
}

float StoredScales::at(uint64_t row, uint64_t column) const {
  const uint64_t place = row * row_step + column * column_step;
  if (type == ops::WeightType::kF32) return load<float>(data + place * sizeof(float));
  const auto bits = load<uint16_t>(data + place * sizeof(uint16_t));
  return type == ops::WeightType::kF16 ? ops::f16_to_f32(bits) : ops::bf16_to_f32(bits);
}

uint64_t GroupedMatrix::group_of(uint64_t column) const {
  if (order == nullptr) return column / in_group;
  return static_cast<uint64_t>(load<int32_t>(order + column * sizeof(int32_t)));
}

void GroupedRows::read(int64_t row, std::byte* out) const {
  if (ops::is_quantized(type_)) {
    read_blocks(static_cast<uint64_t>(row), out);
  } else {
    read_values(static_cast<uint64_t>(row), out);
  }
}

void GroupedRows::read_blocks(uint64_t row, std::byte* out) const {
  const auto block = static_cast<uint64_t>(ops::block_values(type_));
  const bool has_zero = type_ == ops::WeightType::kZ4 || type_ == ops::WeightType::kZ4x128;
  for (uint64_t begin = 0; begin < matrix_.columns; begin += block) {
    const uint64_t group = matrix_.group_of(begin);
    out = store(ops::f32_to_f16(matrix_.scales.at(row, group)), out);
    if (has_zero) {
      out = store(ops::f32_to_f16(0.0F - static_cast<float>(matrix_.zero(row, group))), out);
    }
    for (uint64_t k = begin; k < begin + block; k += 32) {
      if (type_ == ops::WeightType::kQ8_0) {
        for (uint64_t i = 0; i < 32; ++i) {
          *out++ = static_cast<std::byte>(matrix_.codes.at(row, k + i) ^ 128);  // less 128
        }
        continue;
      }
      for (uint64_t i = 0; i < 16; ++i) {
        *out++ =
            static_cast<std::byte>(matrix_.codes.at(row, k + i) | matrix_.codes.at(row, k + i + 16) << 4);
      }
    }
  }
}

void GroupedRows::read_values(uint64_t row, std::byte* out) const {
  for (uint64_t k = 0; k < matrix_.columns; ++k) {
    const uint64_t group = matrix_.group_of(k);
    const auto steps = static_cast<float>(static_cast<int32_t>(matrix_.codes.at(row, k)) -
                                          static_cast<int32_t>(matrix_.zero(row, group)));
    const float value = matrix_.scales.at(row, group) * steps;  // exact in f32 where the scale has 16 bits
    if (type_ == ops::WeightType::kF32) {
      out = store(value, out);
    } else {
      out = store(type_ == ops::WeightType::kF16 ? ops::f32_to_f16(value) : ops::f32_to_bf16(value), out);
    }
  }
}

void Fp8Rows::read(int64_t row, std::byte* out) const {
  const auto number = static_cast<uint64_t>(row);
  const std::byte* codes = matrix_.codes + number * matrix_.columns;
  for (uint64_t k = 0; k < matrix_.columns; ++k) {
    const float scale = matrix_.scales.at(number / matrix_.block_rows, k / matrix_.block_columns);
    out = store(ops::f32_to_bf16(kFp8Values[std::to_integer<size_t>(codes[k])] * scale), out);
  }
}

}  // namespace kvasir
