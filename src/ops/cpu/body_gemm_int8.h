// gemm_int8: a panel is unpacked a block of K at a time, and then tiles of rows are multiplied with it;
// between blocks the chains rest in memory, which is exact. A few rows do not repay the unpacking: their
// tiles read the panel. Included after body_unpack.h.
//
// Each instruction set defines before: int8_form(traits), a number for what its tiles distinguish;
// tile_heights(form); and int8_tile<form, rows>(tile, source).
#pragma once

#include <cstdint>

namespace kvasir::ops {
namespace {

// Calls the tile of exactly `rows` rows, 1 <= rows <= R.
template <int kForm, int R, typename Source>
void call_int8_tile(int64_t rows, const Int8Tile& t, const Source& source) {
  if (rows == R) {
    int8_tile<kForm, R>(t, source);
  } else if constexpr (R > 1) {
    call_int8_tile<kForm, R - 1>(rows, t, source);
  }
}
inline void zero_chains(float* chains, int64_t rows) {
  for (int64_t i = 0; i < 2 * rows; ++i) f_store(chains + 16 * i, f_zero());
}
// Where a panel's columns of C begin, in the first row.
struct Int8Output {
  float* c;
  int64_t ldc;
  int64_t columns;
  bool accumulate;

  void store(int64_t row, int64_t rows, const float* chains) const {
    for (int64_t r = 0; r < rows; ++r) {
      const float* chain = chains + r * kPanel;
      store_columns(c + (row + r) * ldc, f_load(chain), f_load(chain + 16), columns, accumulate);
    }
  }
};

// Rows by a panel. One tile fetches what comes soon, several share out the next panel. Each stores its rows
// at once, so that C, which lies far away, is written while the next one multiplies.
template <WeightType T>
void int8_packed(int64_t rows, const Int8Tile& all, const uint8_t* panel, const Int8Output& out) {
  constexpr int kForm = int8_form(kTraitsOf<T>), kHeight = tile_heights(kForm).packed;
  constexpr int64_t kShare = GroupPlaces<T>::kShare;
  alignas(64) float chains[kHeight * kPanel];
  if (rows == 1) {  // as in decode
    zero_chains(chains, 1);
    Int8Tile t = all;
    t.chains = chains;
    int8_tile<kForm, 1>(t, PackedAlone<T>{{panel, {}}});
    out.store(0, 1, chains);
    return;
  }
  const int64_t tiles = (rows + kHeight - 1) / kHeight;
  int64_t tile = 0;
  for (int64_t done = 0; done < rows; ++tile) {
    const int64_t height = tile_rows(rows - done, kHeight);
    zero_chains(chains, height);
    Int8Tile t = all.from_row(done);
    t.chains = chains;
    const Ahead ahead =
        tiles == 1 ? Ahead{0, 1, kBlockGroups * kShare} : fetches_of(tile, tiles, t.groups * kShare);
    call_int8_tile<kForm, kHeight>(height, t, Packed<T>{panel, ahead});
    out.store(done, height, chains);
    done += height;
  }
}
// Rows by unpacked groups. out: where chains end that are complete.
template <int kForm>
void int8_unpacked(int64_t rows, const Int8Tile& all, const Unpacked& source, const Int8Output* out) {
  constexpr int kHeight = tile_heights(kForm).unpacked;
  for (int64_t done = 0; done < rows;) {
    const int64_t height = tile_rows(rows - done, kHeight);
    const Int8Tile t = all.from_row(done);
    call_int8_tile<kForm, kHeight>(height, t, source);
    if (out != nullptr) out->store(done, height, t.chains);
    done += height;
  }
}

// What differs by type.
struct Int8Product {
  int64_t packed_rows;  // up to so many rows, tiles read the panel
  void (*packed)(int64_t rows, const Int8Tile& all, const uint8_t* panel, const Int8Output& out);
  // For more:
  UnpackGroups unpack;
  int64_t stride;  // of groups whose codes are bytes in the panel; 0: they are unpacked
  void (*tiles)(int64_t rows, const Int8Tile& t, const Unpacked& source, const Int8Output* out);
};
constexpr ByType<Int8Product> kInt8Products = by_type<Int8Product>([]<WeightType T>() -> Int8Product {
  constexpr WeightTraits t = kTraitsOf<T>;
  constexpr int kForm = int8_form(t);
  constexpr TileHeights kHeights = tile_heights(kForm);
  if constexpr (kHeights.packed_rows == kAllRows) {
    return {kAllRows, int8_packed<T>, nullptr, 0, nullptr};
  } else {
    constexpr bool kBytes = t.low_bits == 8;
    constexpr Codes kCodes = kBytes ? Codes::kNone : Codes::kUnsigned;
    return {kHeights.packed_rows, int8_packed<T>, unpack_groups<T, kCodes>,
            kBytes ? GroupPlaces<T>::kStride : 0, int8_unpacked<kForm>};
  }
});

// Up to kBlockRows rows by one panel.
void gemm_int8_block(const GemmArgs& g, const Int8Product& product, int64_t row, int64_t rows,
                     int64_t panel) {
  const uint8_t* data = g.w.data + panel * g.panel_stride;
  const int64_t column = panel * kPanel;
  const int64_t columns = g.w.n - column < kPanel ? g.w.n - column : kPanel;
  const Int8Output out = {g.c + row * g.ldc + column, g.ldc, columns, g.accumulate};
  alignas(64) float chains[kBlockRows * kPanel];
  Int8Tile tile = int8_tile_of(g, row, chains);
  if (rows <= product.packed_rows) {
    product.packed(rows, tile, data, out);
  } else {
    zero_chains(chains, rows);
    UnpackedGroups weights;
    for (int64_t first = 0; first < g.groups;) {
      tile.groups = tile_rows(g.groups - first, kBlockGroups);
      product.unpack(data, first, tile.groups, &weights);
      const Unpacked source = product.stride > 0
                                  ? Unpacked{weights, data + first * product.stride, product.stride}
                                  : Unpacked{weights, weights.values[0][0], kByteLines * kLineBytes};
      const bool last = first + tile.groups == g.groups;
      product.tiles(rows, tile.from_group(first), source, last ? &out : nullptr);
      first += tile.groups;
    }
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
