// Packing of GGUF rows into panels.
#include "ops/cpu/packed_matrix.h"

#include <cstring>

#include "base/check.h"
#include "base/units.h"

namespace kvasir::ops {
namespace {

constexpr size_t kLine = 64;

size_t float_bytes(WeightType type) {
  return type == WeightType::kF32 ? 4 : 2;
}

// Lines of quantised values in one (panel, group), and all lines with scales and minima.
size_t value_lines(WeightType type) {
  return type == WeightType::kQ8_0 ? 16 : 8;
}
size_t group_lines(WeightType type) {
  return value_lines(type) + (type == WeightType::kQ4_1 ? 2 : 1);
}

// One GGUF block of 32 k of one column into the lines of its group. column is 0..31 within the panel.
void pack_block(WeightType type, const uint8_t* block, size_t column, uint8_t* group) {
  uint8_t* tail = group + value_lines(type) * kLine;
  std::memcpy(tail + 2 * column, block, 2);
  block += 2;
  if (type == WeightType::kQ4_1) {
    std::memcpy(tail + kLine + 2 * column, block, 2);
    block += 2;
  }
  const size_t half = column / 16;
  const size_t byte = column % 16 * 4;
  for (size_t k = 0; k < static_cast<size_t>(kGroup); ++k) {
    if (type == WeightType::kQ8_0) {
      group[(k / 4 * 2 + half) * kLine + byte + k % 4] = static_cast<uint8_t>(block[k] + 128);
    } else {
      // GGUF keeps k and k + 16 in one byte.
      const auto nibble = static_cast<uint8_t>(k < 16 ? block[k] & 15 : block[k - 16] >> 4);
      group[k / 4 * kLine + byte + k % 4] |= static_cast<uint8_t>(nibble << (4 * half));
    }
  }
}

}  // namespace

int64_t panel_count(int64_t n) {
  return ceil_div(n, kPanel);
}

size_t panel_bytes(WeightType type, int64_t k) {
  if (type == WeightType::kBf16) return static_cast<size_t>(round_up<int64_t>(k, 2) * kPanel) * 2;
  if (!is_quantized(type)) return static_cast<size_t>(k * kPanel) * float_bytes(type);
  KV_CHECK(k % kGroup == 0, "type={} k={}", weight_type_name(type), k);
  return static_cast<size_t>(k / kGroup) * group_lines(type) * kLine;
}

size_t packed_bytes(WeightType type, int64_t n, int64_t k) {
  return static_cast<size_t>(panel_count(n)) * panel_bytes(type, k);
}

void clear_packed(WeightType type, int64_t total_n, int64_t k, void* dst) {
  std::memset(dst, 0, packed_bytes(type, total_n, k));
}

void pack_columns(WeightType type, const void* src, int64_t n_src, int64_t k, int64_t column_offset,
                  int64_t total_n, void* dst) {
  KV_CHECK(n_src >= 0 && k > 0 && column_offset >= 0 && column_offset + n_src <= total_n,
           "n_src={} k={} column_offset={} total_n={}", n_src, k, column_offset, total_n);
  KV_CHECK(reinterpret_cast<uintptr_t>(dst) % kLine == 0, "the packed matrix is not aligned to {} bytes",
           kLine);
  const size_t stride = row_bytes(type, k);
  const size_t panel_stride = panel_bytes(type, k);
  for (int64_t i = 0; i < n_src; ++i) {
    const auto* row = static_cast<const uint8_t*>(src) + static_cast<size_t>(i) * stride;
    const int64_t column = column_offset + i;
    uint8_t* panel = static_cast<uint8_t*>(dst) + static_cast<size_t>(column / kPanel) * panel_stride;
    const auto lane = static_cast<size_t>(column % kPanel);
    if (is_quantized(type)) {
      const size_t block = row_bytes(type, kGroup);
      const size_t group = group_lines(type) * kLine;
      for (size_t g = 0; g < static_cast<size_t>(k / kGroup); ++g) {
        pack_block(type, row + g * block, lane, panel + g * group);
      }
    } else if (type == WeightType::kBf16) {
      for (size_t j = 0; j < static_cast<size_t>(k); ++j) {
        const size_t pair = j / 2 * static_cast<size_t>(kPanel) + lane;
        std::memcpy(panel + 2 * (2 * pair + j % 2), row + 2 * j, 2);
      }
    } else {
      const size_t size = float_bytes(type);
      for (size_t j = 0; j < static_cast<size_t>(k); ++j) {
        std::memcpy(panel + (j * static_cast<size_t>(kPanel) + lane) * size, row + j * size, size);
      }
    }
  }
}

PackedMatrix pack_matrix(WeightType type, const void* src, int64_t n, int64_t k, void* dst) {
  clear_packed(type, n, k, dst);
  pack_columns(type, src, n, k, 0, n, dst);
  return {static_cast<const uint8_t*>(dst), type, n, k};
}

}  // namespace kvasir::ops
