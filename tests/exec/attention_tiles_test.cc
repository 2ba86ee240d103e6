// Pieces cover the local leaves of every tile once, whatever lies at peers, and what they keep has a place of
// its own.
#include "exec/cpu/attention_tiles.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"
#include "ops/leaf_run.h"
#include "ops/numerics.h"

namespace kvasir {
namespace {

struct Work {
  std::vector<StepRow> rows;
  std::vector<RemoteLeaves> runs;
};

Work random_work(Random& random) {
  Work out;
  for (uint32_t slice = 0; slice < 1 + random.below(5); ++slice) {
    const auto begin = static_cast<uint32_t>(random.below(random.below(2) == 0 ? 500 : 12000));
    const auto rows = static_cast<uint32_t>(1 + random.below(40));
    for (uint32_t p = begin; p < begin + rows; ++p) out.rows.push_back({slice, p, 0});
    const auto whole = static_cast<uint32_t>(begin / ops::kLeafTokens);
    for (uint32_t leaf = 0; leaf < whole;) {
      const auto end = static_cast<uint32_t>(leaf + 1 + random.below(whole - leaf));
      if (random.below(2) == 0) out.runs.push_back({0, slice, leaf, end, 0});
      leaf = end;
    }
  }
  return out;
}

// 'L' for each leaf that a piece of the tile has, 'R' for one at a peer.
std::string leaves_of(const AttentionTiles& work, const AttentionTiles::Tile& tile) {
  std::string out(static_cast<size_t>(tile.end_leaf), '.');
  const auto mark = [&](int64_t begin, int64_t end, char as) {
    for (int64_t leaf = begin; leaf < end; ++leaf) {
      char& now = out[static_cast<size_t>(leaf)];
      now = now == '.' ? as : 'x';
    }
  };
  for (size_t r = tile.first_run; r < tile.end_run; ++r) {
    mark(work.runs()[r].first_leaf, work.runs()[r].end_leaf, 'R');
  }
  for (size_t p = tile.first_piece; p < tile.first_piece + tile.pieces; ++p) {
    mark(work.pieces()[p].leaf_begin, work.pieces()[p].leaf_end, 'L');
  }
  return out;
}

TEST(AttentionTiles, PiecesAreTheLocalLeaves) {
  Random random(3);
  size_t several = 0;
  for (int i = 0; i < 300; ++i) {
    const Work w = random_work(random);
    AttentionTiles work;
    work.lay_out(w.rows, 2);
    const int threads = static_cast<int>(1 + random.below(4));
    work.cut(w.runs, threads);
    EXPECT_TRUE(work.is_cut_for(w.runs));
    int64_t rows = 0, kept = 0;
    for (const AttentionTiles::Tile& tile : work.tiles()) {
      std::string expected(static_cast<size_t>(tile.end_leaf), 'L');
      for (const RemoteLeaves& run : w.runs) {
        if (run.slice != tile.slice) continue;
        std::fill(expected.begin() + run.first_leaf, expected.begin() + run.end_leaf, 'R');
      }
      ASSERT_EQ(leaves_of(work, tile), expected);
      rows += tile.rows;
      several += tile.pieces > 2 ? 1 : 0;
      for (size_t p = tile.first_piece; p < tile.first_piece + tile.pieces && !tile.whole(); ++p) {
        const AttentionTiles::Piece& piece = work.pieces()[p];
        ASSERT_EQ(piece.kept, kept);
        for (int64_t end = std::max(piece.leaf_begin, piece.leaf_end - 1); end <= piece.leaf_end; ++end) {
          ASSERT_GE(piece.peaks, ops::subtrees_of(AttentionTiles::leaves(piece.leaf_begin, end)));
        }
        kept += tile.rows * piece.peaks;
      }
    }
    EXPECT_EQ(rows, static_cast<int64_t>(2 * w.rows.size()));
    EXPECT_EQ(kept, work.kept_records());
    EXPECT_EQ(work.remote_tiles().size(),
              static_cast<size_t>(std::count_if(work.tiles().begin(), work.tiles().end(),
                                                [](const auto& t) { return t.remote(); })));
  }
  EXPECT_GT(several, 100u);
}

TEST(AttentionTiles, OneLongHistoryIsWorkForEveryThread) {
  std::vector<StepRow> rows = {{0, 100 * 256, 0}};
  AttentionTiles work;
  work.lay_out(rows, 1);
  work.cut({}, 4);
  EXPECT_GE(work.pieces().size(), 4u);
  const std::vector<RemoteLeaves> runs = {{0, 0, 10, 50, 0}, {0, 0, 60, 90, 0}};
  EXPECT_FALSE(work.is_cut_for(runs));
  work.cut(runs, 4);
  EXPECT_GE(work.pieces().size(), 4u);
  for (const AttentionTiles::Piece& piece : work.pieces()) {
    EXPECT_LE(piece.leaf_end - piece.leaf_begin, 8) << "a thread has much more than the others";
  }
}

}  // namespace
}  // namespace kvasir
