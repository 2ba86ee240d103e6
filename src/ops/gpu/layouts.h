// Where operands of the tensor cores lie in the device's memory: as shared memory needs them, so that
// contiguous bytes are copied and nothing is rearranged on the way. Elements are bf16; offsets are in
// elements.
//
// Inside a panel of W columns (64, 32 or 16, rows of 128, 64 or 32 bytes) the 16-byte pieces of a row are
// permuted by the row (a *swizzle*), so that eight rows of one piece lie in different banks:
//   piece c of row r lies at place c ^ ((r / (64 / W)) mod (W / 8))
// These are the three swizzles that descriptors of wgmma name. A pattern repeats every 8 rows and begins anew
// in each panel, which lies at a multiple of 1,024 bytes in shared memory.
//
// Weights and the rows that a product takes, [rows][k]: tiles of 64 x 64, each one panel, k fastest. Both
// sides are padded to whole tiles. K padding is +0, so that it adds nothing; rows of padding may hold
// anything. K and V of one layer of a block of B tokens: [kv head][panel][B][W], panels of 64 dimensions,
// then of 32 and 16 for the rest of a head.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/gpu/scalar.h"

namespace kvasir::ops {

constexpr int kTileRows = 64;
constexpr int kTileK = 64;
constexpr int kTileElements = kTileRows * kTileK;
constexpr int kTileBytes = 2 * kTileElements;
// Columns in a widest panel; a row of it is 128 bytes.
constexpr int kPanelColumns = 64;
// Elements of a piece that a swizzle moves as a whole.
constexpr int kPieceElements = 8;

KV_BOTH int tiles_for(int n) {
  return (n + kTileK - 1) / kTileK;
}

// Of an element inside a panel. REQUIRES: 0 <= column < width, width 64, 32 or 16
KV_BOTH int panel_offset(int row, int column, int width) {
  const int piece = column / kPieceElements;
  const int moved = piece ^ ((row / (kPanelColumns / width)) & (width / kPieceElements - 1));
  return row * width + moved * kPieceElements + column % kPieceElements;
}

// Of an element of [rows][k] in tiles.
KV_BOTH int64_t operand_offset(int64_t row, int64_t k, int64_t k_tiles) {
  const int64_t tile = row / kTileRows * k_tiles + k / kTileK;
  return tile * kTileElements +
         panel_offset(static_cast<int>(row % kTileRows), static_cast<int>(k % kTileK), kTileK);
}
// Elements of an image of so many rows.
KV_BOTH int64_t operand_elements(int64_t rows, int64_t k) {
  return (rows + kTileRows - 1) / kTileRows * ((k + kTileK - 1) / kTileK) * kTileElements;
}

// The columns [first, first + width) of a head.
struct KvPanel {
  int first;
  int width;
};
// The panel of a dimension. REQUIRES: head_dim is a multiple of 16
KV_BOTH KvPanel kv_panel(int dim, int head_dim) {
  const int wide = head_dim / kPanelColumns * kPanelColumns;
  if (dim < wide) return {dim / kPanelColumns * kPanelColumns, kPanelColumns};
  const int half = head_dim & 32;
  return dim < wide + half ? KvPanel{wide, 32} : KvPanel{wide + half, 16};
}
// Of an element in `positions` rows of one head, such as a block's or those of a leaf in shared memory.
KV_BOTH int kv_head_offset(int position, int dim, int head_dim, int positions) {
  const KvPanel panel = kv_panel(dim, head_dim);
  return panel.first * positions + panel_offset(position, dim - panel.first, panel.width);
}
// Of an element in K, or in V, of one layer of a block.
KV_BOTH int64_t kv_offset(int head, int position, int dim, int head_dim, int block_tokens) {
  return static_cast<int64_t>(head) * block_tokens * head_dim +
         kv_head_offset(position, dim, head_dim, block_tokens);
}

// X, the operand of the product of Q, K and V, as a cache holds it: a layer of a block of B tokens is
// [B][x_row_elements(dim)], the padding +0, so that rows are whole pieces.
KV_BOTH int x_row_elements(int dim) {
  return (dim + kPieceElements - 1) / kPieceElements * kPieceElements;
}

// Writes [rows][k] to its place as an operand, the padding of k and of rows as +0.
// from: row 0; stride in elements. to: operand_elements(rows, k). Host only.
inline void pack_operand(const uint16_t* from, int64_t stride, int64_t rows, int64_t k, uint16_t* to) {
  const int64_t k_tiles = (k + kTileK - 1) / kTileK;
  memset(to, 0, static_cast<size_t>(operand_elements(rows, k)) * sizeof(uint16_t));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < k; i += kPieceElements) {
      const int64_t count = k - i < kPieceElements ? k - i : kPieceElements;
      memcpy(to + operand_offset(row, i, k_tiles), from + row * stride + i,
             static_cast<size_t>(count) * sizeof(uint16_t));
    }
  }
}

}  // namespace kvasir::ops
