// gemm_int8: a panel is unpacked a block of K at a time, and then tiles of rows are multiplied with it;
// between blocks the chains rest in memory, which is exact. A row alone shares no unpacking: its tile reads
// the panel. Included after body_unpack.h.
//
// Each instruction set defines before: kInt8Rows, the rows of its largest tile; int8_form(traits), a number
// for what its tiles distinguish; and int8_tile<form, rows>(tile, source).
#pragma once

#include <cstdint>

namespace kvasir::ops {
namespace {

// Calls the tile of exactly `rows` rows, 1 <= rows <= R.
template <int kForm, int R = kInt8Rows>
void call_int8_tile(int64_t rows, const Int8Tile& t, const Unpacked& source) {
  if (rows == R) {
    int8_tile<kForm, R>(t, source);
  } else if constexpr (R > 1) {
    call_int8_tile<kForm, R - 1>(rows, t, source);
  }
}
// All tiles of some rows.
template <int kForm>
void int8_tiles(int64_t rows, const Int8Tile& all, const Unpacked& source) {
  for (int64_t done = 0; done < rows;) {
    const int64_t height = tile_rows(rows - done, kInt8Rows);
    call_int8_tile<kForm>(height, all.from_row(done), source);
    done += height;
  }
}
// A row by a panel.
template <WeightType T>
void int8_row(const Int8Tile& t, const uint8_t* panel) {
  int8_tile<int8_form(kTraitsOf<T>), 1>(t, Packed<T>{panel});
}

// What differs by type.
struct Int8Product {
  UnpackGroups unpack;
  int64_t stride;  // of groups whose codes are bytes in the panel; 0: they are unpacked
  void (*tiles)(int64_t rows, const Int8Tile& t, const Unpacked& source);
  void (*row)(const Int8Tile& t, const uint8_t* panel);
};
constexpr ByType<Int8Product> kInt8Products = by_type<Int8Product>([]<WeightType T>() -> Int8Product {
  constexpr WeightTraits t = kTraitsOf<T>;
  constexpr bool kBytes = t.low_bits == 8;
  return {unpack_groups < T, kBytes ? Codes::kNone : Codes::kUnsigned >, kBytes ? GroupPlaces<T>::kStride : 0,
          int8_tiles<int8_form(t)>, int8_row<T>};
});

// Up to kBlockRows rows by one panel.
void gemm_int8_block(const GemmArgs& g, const Int8Product& product, int64_t row, int64_t rows,
                     int64_t panel) {
  const uint8_t* data = g.w.data + panel * g.panel_stride;
  alignas(64) float chains[kBlockRows * kPanel];
  for (int64_t i = 0; i < 2 * rows; ++i) f_store(chains + 16 * i, f_zero());
  Int8Tile tile = int8_tile_of(g, row, chains);
  if (rows == 1) {
    product.row(tile, data);
  } else {
    UnpackedGroups weights;
    for (int64_t first = 0; first < g.groups;) {
      tile.groups = tile_rows(g.groups - first, kBlockGroups);
      product.unpack(data, first, tile.groups, &weights);
      const Unpacked source = product.stride > 0
                                  ? Unpacked{weights, data + first * product.stride, product.stride}
                                  : Unpacked{weights, weights.values[0][0], kByteLines * kLineBytes};
      product.tiles(rows, tile.from_group(first), source);
      first += tile.groups;
    }
  }
  const int64_t column = panel * kPanel;
  const int64_t columns = g.w.n - column < kPanel ? g.w.n - column : kPanel;
  for (int64_t r = 0; r < rows; ++r) {
    const float* chain = chains + r * kPanel;
    store_columns(g.c + (row + r) * g.ldc + column, f_load(chain), f_load(chain + 16), columns, g.accumulate);
  }
}

// Blocks of rows outside, panels inside: the rows stay in cache while the weights stream past.
inline void gemm_int8_by(const ByType<Int8Product>& products, const GemmArgs& g) {
  for (int64_t row = g.row_begin; row < g.row_end;) {
    const int64_t rows = tile_rows(g.row_end - row, kBlockRows);
    for (int64_t panel = g.panel_begin; panel < g.panel_end; ++panel) {
      gemm_int8_block(g, products[g.w.type], row, rows, panel);
    }
    row += rows;
  }
}
void gemm_int8(const GemmArgs& g) {
  gemm_int8_by(kInt8Products, g);
}

}  // namespace
}  // namespace kvasir::ops
