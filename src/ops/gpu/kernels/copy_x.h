// Between the operand of a product and X as a cache holds it.
#pragma once

#include "ops/gpu/device.h"
#include "ops/gpu/kernel_args.h"
#include "ops/gpu/layouts.h"

namespace kvasir::ops::gpu {

// A block takes 8 tokens of a run, and a thread 16 bytes at a time.
struct CopyX {
  static constexpr int kThreads = 256;
  static constexpr int kTokens = 8;
  static Shape shape(const CopyXArgs& a) {
    return {a.count, (static_cast<int>(a.block_tokens) + kTokens - 1) / kTokens, kThreads, 0};
  }

  struct alignas(2 * kPieceElements) Piece {
    uint64_t halves[2];
  };

  static KV_DEVICE void run(const CopyXArgs& a) {
    const XRun& run = a.runs[block_x()];
    if (a.slices[run.slice].left_out != 0) return;
    const int first = block_y() * kTokens;
    const int end =
        first + kTokens < static_cast<int>(run.tokens) ? first + kTokens : static_cast<int>(run.tokens);
    const int k_tiles = tiles_for(a.dim);
    const int row_pieces = x_row_elements(a.dim) / kPieceElements;
    const int pieces = a.to_image != 0 ? k_tiles * kTileK / kPieceElements : row_pieces;
    const int in_block = static_cast<int>(run.first_position % a.block_tokens);
    auto* kept = reinterpret_cast<Piece*>(a.memory + run.x + a.layer_offset);
    for (int i = thread_index(); i < (end - first) * pieces; i += kThreads) {
      const int token = first + i / pieces, piece = i % pieces;
      Piece& here = kept[int64_t{in_block + token} * row_pieces + piece];
      auto& there = *reinterpret_cast<Piece*>(
          a.image + operand_offset(int64_t{run.first_row} + token, int64_t{piece} * kPieceElements, k_tiles));
      if (a.to_image == 0) {
        here = there;
      } else if (piece < row_pieces) {
        there = here;
      } else {
        there = Piece{{0, 0}};
      }
    }
  }
};

}  // namespace kvasir::ops::gpu
