// The attention of a step in one layer, as tiles and the pieces into which their local leaves are cut.
//
//   leaves of a tile   0   1   2   3   4   5   6   7   8   9
//                     |piece 0| at a peer |  piece 1  |piece 2|     leaves at peers are not computed here
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/mutant.h"
#include "contract/step.h"
#include "exec/cpu/row_sets.h"
#include "model/architectures/model_spec.h"
#include "ops/leaf_run.h"

namespace kvasir {

// One thread changes it; others read while it does not.
class AttentionTiles {
 public:
  static constexpr int64_t kTileRows = 16;

  // Consecutive rows of one slice with one KV head.
  struct Tile {
    uint32_t slice;
    int64_t first_row;
    int64_t rows;
    int64_t kv_head;
    int64_t first_leaf;  // that the first row attends to
    int64_t end_leaf;    // behind the last one that the last row attends to; here and at peers
    // Those at peers: runs()[first_run .. end_run).
    size_t first_run = 0;
    size_t end_run = 0;
    size_t first_piece = 0;  // pieces()[first_piece .. + pieces), in order of leaves
    size_t pieces = 0;
    bool left_out = false;

    bool remote() const { return first_run < end_run; }
    // All of its leaves are in one piece.
    bool whole() const { return pieces == 1 && !remote(); }
  };
  struct Piece {
    size_t tile;
    int64_t leaf_begin;
    int64_t leaf_end;
    // If the tile is not whole, the peaks of its rows are kept until they are merged: records
    // [row of the tile][peaks], from record `kept` on.
    int64_t kept = 0;
    int64_t peaks = 0;  // of a row at most
  };

  // Rows attend to the last `window` positions, their own included; 0: to all. chunked: to those from the
  // last multiple of `window` on.
  explicit AttentionTiles(int64_t window = 0, bool chunked = false)
      : window_(window), chunked_(chunked && window > 0) {}

  static ops::LeafRun leaves(int64_t begin, int64_t end) {
    return {static_cast<uint32_t>(begin), static_cast<uint32_t>(end)};
  }

  // Makes tiles of rows that are grouped by slice and in order of position. cut() makes their pieces.
  void lay_out(std::span<const StepRow> rows, int64_t kv_heads);
  // The first position that a row attends to.
  int64_t first_position(int64_t position) const {
    if (window_ == 0) return 0;
    const int64_t first = chunked_ ? position - position % window_ : position - window_ + 1;
    return std::max<int64_t>(0, first - (mutant(Mutant::kWindowOffByOne) ? 1 : 0));
  }
  int64_t window() const { return window_; }
  bool is_for(const LayerSpec& layer) const {
    return layer.window == window_ && (layer.chunked && window_ > 0) == chunked_;
  }
  // All leaves are local except for these runs, which are in the order of slices and leaves, and in the past
  // of every row of their slices.
  void cut(std::span<const RemoteLeaves> runs, int threads);
  // True if the last cut() was for these runs.
  bool is_cut_for(std::span<const RemoteLeaves> runs) const;

  void leave_out(uint32_t slice);

  std::span<const Tile> tiles() const { return tiles_; }
  std::span<const Piece> pieces() const { return pieces_; }
  std::span<const RemoteLeaves> runs() const { return runs_; }
  // Leaves times rows times KV heads that are attended here.
  int64_t local_work() const { return local_work_; }
  // Tiles that have leaves at peers.
  std::span<const size_t> remote_tiles() const { return remote_tiles_; }
  int64_t kept_records() const { return kept_records_; }

 private:
  // At least so many pieces for each thread if there are fewer tiles. Then no thread waits long for the last
  // piece, and most pieces have several leaves, each of which prefetches the next one's K.
  static constexpr int64_t kPiecesPerThread = 4;

  void assign_runs(Tile& tile) const;
  int64_t local_leaves(const Tile& tile) const;
  void cut_tile(size_t index, int64_t span);
  void add_pieces(size_t tile, int64_t begin, int64_t end, int64_t span);

  int64_t window_;
  bool chunked_;
  std::vector<Tile> tiles_;
  std::vector<Piece> pieces_;
  std::vector<RemoteLeaves> runs_;
  std::vector<size_t> remote_tiles_;
  int64_t local_work_ = 0;
  int64_t kept_records_ = 0;
};

}  // namespace kvasir
