// gemm_int8: a panel is unpacked a block of K at a time, and then tiles of rows are multiplied with it;
// between blocks the chains rest in memory, which is exact. Included after body_unpack.h.
//
// A row alone shares no unpacking, and codes of 8 bits need none: their tiles read the panel.
//
// Each instruction set defines before: kInt8Rows, the rows of its largest tile; int8_form(traits), a number
// for what its tiles distinguish; int8_tile<form, rows>(args), and
// int8_packed_tile<type, rows>(args), which reads the panel.
#pragma once

#include <cstdint>

namespace kvasir::ops {
namespace {

// What tiles need to know of rows: scales as floats, and what their integer sums begin with, the weights'
// offset times the rows' sums, taken off.
struct UnpackedRows {
  float scales[kBlockRows][2 * kBlockGroups];    // the second half is unused
  int32_t starts[kBlockRows][2 * kBlockGroups];  // of each group, or of both its halves
  float sums[kBlockRows][2 * kBlockGroups];      // of both halves
};

// Of one row: d and sums begin at the first group.
inline void unpack_row(const WeightTraits& t, const uint16_t* d, const int16_t* sums, int64_t count,
                       int64_t r, UnpackedRows* out) {
  if (count == kBlockGroups) {
    f_store(out->scales[r], f_load_f16_eight(d));
    if (t.scales == 1) {
      i_scale_pair_sums(sums, -t.offset, out->starts[r]);
    } else {
      i_scale_sums(sums, -t.offset, out->starts[r]);
    }
  } else {
    for (int64_t i = 0; i < count; ++i) out->scales[r][i] = s_from_f16(d[i]);
    for (int64_t i = 0; i < count && t.scales == 1; ++i) {
      out->starts[r][i] = -t.offset * (sums[2 * i] + sums[2 * i + 1]);
    }
    for (int64_t i = 0; i < 2 * count && t.scales == 2; ++i) out->starts[r][i] = -t.offset * sums[i];
  }
  for (int64_t i = 0; i < 2 * count && t.scales == 2 && t.has_min; ++i) {
    out->sums[r][i] = static_cast<float>(sums[i]);
  }
}

// Calls the tile of exactly `rows` rows, 1 <= rows <= R.
template <int kForm, int R = kInt8Rows>
void call_int8_tile(int64_t rows, const Int8Tile& t) {
  if (rows == R) {
    int8_tile<kForm, R>(t);
  } else if constexpr (R > 1) {
    call_int8_tile<kForm, R - 1>(rows, t);
  }
}
template <WeightType T, int R = kInt8Rows>
void call_int8_packed_tile(int64_t rows, const Int8Tile& t) {
  if (rows == R) {
    int8_packed_tile<T, R>(t);
  } else if constexpr (R > 1) {
    call_int8_packed_tile<T, R - 1>(rows, t);
  }
}
using CallInt8Tile = void (*)(int64_t rows, const Int8Tile& t);

// What differs by type.
struct Int8Product {
  UnpackGroups unpack;
  CallInt8Tile tile;
  UnpackGroups unpack_scales;
  void (*row)(const Int8Tile& t);
  const uint8_t* (*lines)(const uint8_t* panel, int64_t group);
};
template <WeightType T>
constexpr Int8Product product_of() {
  constexpr WeightTraits t = kTraitsOf<T>;
  Int8Product p = {unpack_scales_of<T>, nullptr, unpack_scales_of<T>, int8_packed_tile<T, 1>,
                   GroupPlaces<T>::lines};
  if constexpr (t.low_bits == 8) {
    p.tile = call_int8_packed_tile<T>;
  } else {
    p.unpack = unpack_groups<T>;
    p.tile = call_int8_tile<int8_form(t)>;
  }
  return p;
}
template <WeightType T>
constexpr Int8Product kProductOf = product_of<T>();
// In the order of WeightType.
constexpr Int8Product kInt8Products[] = {{},
                                         {},
                                         {},
                                         kProductOf<WeightType::kQ8_0>,
                                         kProductOf<WeightType::kQ4_0>,
                                         kProductOf<WeightType::kQ4_1>,
                                         kProductOf<WeightType::kQ5_0>,
                                         kProductOf<WeightType::kQ5_1>,
                                         kProductOf<WeightType::kQ2K>,
                                         kProductOf<WeightType::kQ3K>,
                                         kProductOf<WeightType::kQ4K>,
                                         kProductOf<WeightType::kQ5K>,
                                         kProductOf<WeightType::kQ6K>,
                                         kProductOf<WeightType::kIq4Nl>,
                                         kProductOf<WeightType::kIq4Xs>};

// Up to kBlockRows rows by one panel.
void gemm_int8_block(const GemmArgs& g, const Int8Product& product, int64_t row, int64_t rows,
                     int64_t panel) {
  const WeightTraits& t = traits_of(g.w.type);
  const uint8_t* data = g.w.data + panel * g.panel_stride;
  const int64_t row_groups = g.a.k / kGroup;
  UnpackedGroups weights;
  UnpackedRows unpacked;
  alignas(64) float chains[kBlockRows * kPanel];
  for (int64_t i = 0; i < 2 * rows; ++i) f_store(chains + 16 * i, f_zero());
  for (int64_t first = 0; first < g.groups; first += kBlockGroups) {
    const int64_t count = g.groups - first < kBlockGroups ? g.groups - first : kBlockGroups;
    (rows == 1 ? product.unpack_scales : product.unpack)(data, first, count, &weights);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t at = (row + r) * row_groups + first;
      unpack_row(t, g.a.d + at, g.a.sums + 2 * at, count, r, &unpacked);
    }
    for (int64_t done = 0; done < rows;) {
      const int64_t height = tile_rows(rows - done, kInt8Rows);
      const int64_t at = row + done;
      const Int8Tile tile = {&weights,
                             product.lines(data, first),
                             count,
                             g.a.q + at * g.a.k + first * kGroup,
                             g.a.k,
                             unpacked.scales + done,
                             unpacked.starts + done,
                             unpacked.sums + done,
                             g.a.moments + at * row_groups + first,
                             row_groups,
                             chains + done * kPanel};
      if (rows == 1) {
        product.row(tile);
      } else {
        product.tile(height, tile);
      }
      done += height;
    }
  }
  const int64_t column = panel * kPanel;
  const int64_t columns = g.w.n - column < kPanel ? g.w.n - column : kPanel;
  for (int64_t r = 0; r < rows; ++r) {
    const float* chain = chains + r * kPanel;
    store_columns(g.c + (row + r) * g.ldc + column, f_load(chain), f_load(chain + 16), columns, g.accumulate);
  }
}

void gemm_int8(const GemmArgs& g) {
  const Int8Product& product = kInt8Products[static_cast<int>(g.w.type)];
  for (int64_t row = g.row_begin; row < g.row_end;) {
    const int64_t rows = tile_rows(g.row_end - row, kBlockRows);
    for (int64_t panel = g.panel_begin; panel < g.panel_end; ++panel)
      gemm_int8_block(g, product, row, rows, panel);
    row += rows;
  }
}

}  // namespace
}  // namespace kvasir::ops
