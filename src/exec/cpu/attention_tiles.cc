#include "exec/cpu/attention_tiles.h"

#include <algorithm>
#include <bit>

#include "ops/numerics.h"

namespace kvasir {
namespace {

struct BySlice {
  bool operator()(const RemoteLeaves& run, uint32_t slice) const { return run.slice < slice; }
  bool operator()(uint32_t slice, const RemoteLeaves& run) const { return slice < run.slice; }
};

}  // namespace

void AttentionTiles::lay_out(std::span<const StepRow> rows, int64_t kv_heads) {
  tiles_.clear();
  const auto count = static_cast<int64_t>(rows.size());
  for (int64_t first = 0; first < count;) {
    const uint32_t slice = rows[static_cast<size_t>(first)].slice;
    int64_t end = first + 1;
    // Rows of a tile begin at the same leaf, or at neighbours: none crosses the edge of a chunk.
    const auto joins = [&](const StepRow& row) {
      return row.slice == slice && !(chunked_ && row.position % window_ == 0);
    };
    while (end < std::min(count, first + kTileRows) && joins(rows[static_cast<size_t>(end)])) ++end;
    const int64_t first_leaf = first_position(rows[static_cast<size_t>(first)].position) / ops::kLeafTokens;
    const int64_t end_leaf = rows[static_cast<size_t>(end - 1)].position / ops::kLeafTokens + 1;
    for (int64_t h = 0; h < kv_heads; ++h)
      tiles_.push_back({slice, first, end - first, h, first_leaf, end_leaf});
    first = end;
  }
}

bool AttentionTiles::is_cut_for(std::span<const RemoteLeaves> runs) const {
  return std::equal(runs.begin(), runs.end(), runs_.begin(), runs_.end(),
                    [](const RemoteLeaves& a, const RemoteLeaves& b) {
                      return a.slice == b.slice && a.first_leaf == b.first_leaf && a.end_leaf == b.end_leaf;
                    });
}

void AttentionTiles::cut(std::span<const RemoteLeaves> runs, int threads) {
  runs_.assign(runs.begin(), runs.end());
  pieces_.clear();
  remote_tiles_.clear();
  kept_records_ = 0;
  local_work_ = 0;
  for (Tile& tile : tiles_) {
    assign_runs(tile);
    local_work_ += tile.rows * local_leaves(tile);
  }
  const int64_t share = threads == 1 ? local_work_ : local_work_ / (kPiecesPerThread * threads);
  for (size_t t = 0; t < tiles_.size(); ++t) {
    // All of it, or the largest subtree that is no more than a share of the work, and at least a leaf.
    const int64_t fitting = std::max<int64_t>(1, share / tiles_[t].rows);
    const bool all = fitting >= local_leaves(tiles_[t]);
    cut_tile(t,
             all ? tiles_[t].end_leaf : static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(fitting))));
    if (tiles_[t].remote()) remote_tiles_.push_back(t);
  }
}

void AttentionTiles::assign_runs(Tile& tile) const {
  const auto [begin, end] = std::equal_range(runs_.begin(), runs_.end(), tile.slice, BySlice());
  tile.first_run = static_cast<size_t>(begin - runs_.begin());
  tile.end_run = static_cast<size_t>(end - runs_.begin());
}

int64_t AttentionTiles::local_leaves(const Tile& tile) const {
  int64_t leaves = tile.end_leaf - tile.first_leaf;
  for (size_t r = tile.first_run; r < tile.end_run; ++r) leaves -= runs_[r].end_leaf - runs_[r].first_leaf;
  return leaves;
}

void AttentionTiles::cut_tile(size_t index, int64_t span) {
  Tile& tile = tiles_[index];
  tile.first_piece = pieces_.size();
  int64_t leaf = tile.first_leaf;
  for (size_t r = tile.first_run; r < tile.end_run; ++r) {
    add_pieces(index, leaf, runs_[r].first_leaf, span);
    leaf = runs_[r].end_leaf;
  }
  add_pieces(index, leaf, tile.end_leaf, span);
  tile.pieces = pieces_.size() - tile.first_piece;
  if (tile.whole()) return;
  for (size_t p = tile.first_piece; p < pieces_.size(); ++p) {
    Piece& piece = pieces_[p];
    // The first rows may end a leaf before the last ones; with a window the last ones may begin a leaf later.
    piece.peaks = 0;
    for (int64_t begin = piece.leaf_begin; begin <= piece.leaf_begin + (window_ == 0 ? 0 : 1); ++begin) {
      for (int64_t end = std::max(begin, piece.leaf_end - 1); end <= piece.leaf_end; ++end) {
        piece.peaks = std::max<int64_t>(piece.peaks, ops::subtrees_of(leaves(begin, end)));
      }
    }
    piece.kept = kept_records_;
    kept_records_ += tile.rows * piece.peaks;
  }
}

void AttentionTiles::add_pieces(size_t tile, int64_t begin, int64_t end, int64_t span) {
  while (begin < end) {
    const int64_t next = std::min(end, (begin / span + 1) * span);
    pieces_.push_back({tile, begin, next});
    begin = next;
  }
}

void AttentionTiles::leave_out(uint32_t slice) {
  for (Tile& tile : tiles_) tile.left_out = tile.left_out || tile.slice == slice;
}

}  // namespace kvasir
