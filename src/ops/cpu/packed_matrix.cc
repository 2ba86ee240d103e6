// Packing of GGUF rows into panels.
#include "ops/cpu/packed_matrix.h"

#include <cstring>

#include "base/check.h"
#include "base/units.h"
#include "ops/weight_blocks.h"
#include "ops/weight_traits.h"

namespace kvasir::ops {
namespace {

constexpr size_t kLine = 64;

const WeightTraits& traits(WeightType type) {
  return kWeightTraits[static_cast<size_t>(type)];
}

size_t float_bytes(WeightType type) {
  return type == WeightType::kF32 ? 4 : 2;
}

// Puts `bits` bits of every code, from bit `from` on, into lines: as many groups of four k as fit share a
// line.
void pack_bits(const WeightGroup& group, int from, int bits, size_t column, uint8_t* lines) {
  const size_t half = column / 16;
  const size_t byte = column % 16 * 4;
  const auto quads = static_cast<size_t>(4 / bits);  // in a line, of 16 columns each twice
  for (size_t k = 0; k < static_cast<size_t>(kGroup); ++k) {
    const size_t quad = k / 4;
    const auto shift = static_cast<size_t>(bits) * (2 * (quad % quads) + half);
    const int code = (group.codes[k] >> from) & ((1 << bits) - 1);
    lines[quad / quads * kLine + byte + k % 4] |= static_cast<uint8_t>(code << shift);
  }
}

// One group of one column. block: the panel's, of which this is group `index`; column is 0..31 in the panel.
void pack_group(const WeightTraits& t, const WeightGroup& group, size_t index, size_t column,
                uint8_t* block) {
  uint8_t* lines = block + index * static_cast<size_t>(t.value_lines) * kLine;
  if (t.low_bits == 8) {
    for (size_t k = 0; k < static_cast<size_t>(kGroup); ++k) {
      lines[(k / 4 * 2 + column / 16) * kLine + column % 16 * 4 + k % 4] = group.codes[k];
    }
  } else {
    pack_bits(group, 0, t.low_bits, column, lines);
    if (t.high_bits > 0) {
      pack_bits(group, t.low_bits, t.high_bits, column, lines + static_cast<size_t>(t.low_lines) * kLine);
    }
  }
  uint8_t* tail = block + static_cast<size_t>(t.block_values / kGroup * t.value_lines) * kLine;
  std::memcpy(tail + 2 * column, &group.d, 2);
  tail += kLine;
  if (t.has_min) {
    std::memcpy(tail + 2 * column, &group.min, 2);
    tail += kLine;
  }
  const auto bytes = static_cast<size_t>(t.scale_bytes);
  for (size_t i = 0; i < bytes; ++i) {
    tail[(index * bytes + i) * static_cast<size_t>(kPanel) + column] = group.scale_bytes[i];
  }
}

}  // namespace

int64_t panel_count(int64_t n) {
  return ceil_div(n, kPanel);
}

size_t panel_bytes(WeightType type, int64_t k) {
  if (type == WeightType::kBf16) return static_cast<size_t>(round_up<int64_t>(k, 2) * kPanel) * 2;
  if (!is_quantized(type)) return static_cast<size_t>(k * kPanel) * float_bytes(type);
  const WeightTraits& t = traits(type);
  KV_CHECK(k % t.block_values == 0, "type={} k={}", t.name, k);
  return static_cast<size_t>(k / t.block_values * t.block_lines) * kLine;
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
      const WeightTraits& t = traits(type);
      for (int64_t block = 0; block < k / t.block_values; ++block) {
        uint8_t* to = panel + static_cast<size_t>(block * t.block_lines) * kLine;
        for (int64_t g = 0; g < t.block_values / kGroup; ++g) {
          pack_group(t, read_group(type, row + block * t.block_bytes, g), static_cast<size_t>(g), lane, to);
        }
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
