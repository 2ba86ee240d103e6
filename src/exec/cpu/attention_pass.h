// The attention of a step: leaves of the history, shared out among the threads, and their merging.
//
// A tile is up to kTileRows consecutive rows of one sequence with one KV head. A tile whose history is long
// beside the rest of the step is cut into pieces, aligned subtrees of its leaves, so that one long sequence
// keeps every thread busy. Threads claim pieces; whoever ends a tile's last piece merges them. Leaves and
// tree are fixed by position (ops/attention_tree.h), hence neither cut nor claim changes a bit.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "contract/geometry.h"
#include "contract/step.h"
#include "exec/cpu/row_sets.h"
#include "exec/cpu/thread_pool.h"
#include "model/model_config.h"
#include "ops/attention_tree.h"
#include "ops/cpu/kernels.h"
#include "ops/kv_layout.h"

namespace kvasir {

class AttentionPass {
 public:
  // All that is given outlives the pass. frame: the shape of one layer group's planes in device_memory.
  AttentionPass(const ModelConfig& config, const ops::Kernels& kernels, const CacheGeometry& geometry,
                const ops::KvShape& frame, std::byte* device_memory, int threads);

  // Shares out rows of a step, grouped by slice and in order of position; they stay where they are until the
  // next call. By one thread, while none is in run(). kExhausted: there is no memory for the partial results.
  // For rows for which it was called before it asks for none.
  Status prepare(std::span<const StepRow> rows);

  // The slice is left out from now on: nothing of its history is read, and its rows of `out` stay as they
  // are. By one thread, while none is in run().
  void leave_out(uint32_t slice);

  // Bytes of the partial results' buffers now; they grow with the longest history and never shrink.
  uint64_t scratch_bytes() const;

  // One layer; every thread of the team calls it, and it meets at the end. qkv: [rows][q, k, v], queries
  // rotated and scaled, K and V already in their frames. out: [rows][q_dim], out_stride floats apart.
  void run(const Step& step, uint32_t layer, const float* qkv, float* out, int64_t out_stride,
           const ThreadPool::Worker& worker);

 private:
  struct Tile {
    uint32_t slice;
    int64_t first_row;
    int64_t rows;
    int64_t kv_head;
    int64_t leaves;
    size_t first_piece;
    size_t pieces;
    bool left_out = false;
  };
  struct Piece {
    size_t tile;
    int64_t leaf_begin;
    int64_t leaf_end;
  };
  // What a call for one layer needs, beside the tile.
  struct Layer {
    const Step& step;
    uint32_t index;
    const float* qkv;
    float* out;
    int64_t out_stride;
  };
  // A tree for each row of a tile, over the leaves of one piece.
  struct Trees {
    std::vector<float> storage;
    std::vector<ops::AttentionTree> rows;
  };
  // Where the blocks of a leaf lie, for one layer and KV head.
  struct LeafTiles {
    std::vector<const void*> k, v;
  };
  // Buffers of one thread.
  struct Local {
    Trees trees;
    std::vector<float> partials;
    LeafTiles tiles[2];  // of this leaf and of the next one
  };

  static constexpr int64_t kTileRows = 16;
  // At least so many pieces for each thread, if the tiles are fewer: no thread waits long for the last one,
  // and a piece is mostly of several leaves, each of which fetches the next one's K.
  static constexpr int64_t kPiecesPerThread = 4;

  void add_tiles();
  void cut_tiles();
  void make_room();
  void run_piece(const Layer& layer, size_t index, Local& local);
  void find_tiles(const Layer& layer, const Tile& tile, int64_t leaf, LeafTiles& out) const;
  void attend_leaf(const Layer& layer, const Tile& tile, const Piece& piece, int64_t leaf, Trees& trees,
                   Local& local);
  void unround_own(const Layer& layer, const Tile& tile, int64_t leaf, const ops::AttentionLeafArgs& args);
  void merge_pieces(const Tile& tile, Trees& merged);
  // Empty trees for the tile's rows, over `leaves` leaves from leaf_begin on.
  void plant(Trees& trees, const Tile& tile, int64_t leaf_begin, int64_t leaves) const;
  void store(const Layer& layer, const Tile& tile, Trees& trees) const;
  int64_t tree_floats(const Tile& tile, int64_t leaves) const;
  int64_t row_width() const { return config_.q_dim() + 2 * config_.kv_dim(); }

  const ModelConfig& config_;
  const ops::Kernels& kernels_;
  const CacheGeometry& geometry_;
  const ops::KvShape& frame_;
  std::byte* const device_memory_;

  // Of the step at hand.
  std::span<const StepRow> rows_;
  std::vector<Tile> tiles_;
  std::vector<Piece> pieces_;
  std::vector<Trees> piece_trees_;                // by piece, for those of tiles with several
  std::vector<std::atomic<size_t>> open_pieces_;  // by tile: pieces that have not ended in this layer
  std::atomic<size_t> next_piece_{0};
  std::vector<Local> locals_;
};

}  // namespace kvasir
