// The attention of a step: the leaves of the history are shared out among the threads, and merged.
//
// A tile is up to kTileRows consecutive rows of one sequence with one KV head, or, where all heads share one
// (latent attention), with some of the heads. If its history is long
// compared with the rest of the step, it is cut into pieces, aligned subtrees of its leaves, so that one long
// sequence keeps every thread busy. Threads claim pieces; the thread that ends a tile's last piece merges
// them. Leaves and tree are fixed by position (ops/attention_tree.h), so neither the cut nor the claims
// change a bit. In layers with a window a row's tree begins at the leaf of its first position.
//
// Leaves that lie at peers are not computed here. A tile that has some keeps the results of its pieces until
// the answers have come; then all of them are merged by the same tree.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "contract/geometry.h"
#include "contract/step.h"
#include "exec/cpu/attention_tiles.h"
#include "exec/cpu/remote_attention.h"
#include "exec/cpu/row_sets.h"
#include "exec/cpu/thread_pool.h"
#include "model/architectures/model_spec.h"
#include "ops/attention_tree.h"
#include "ops/cpu/kernels.h"
#include "ops/kv_layout.h"

namespace kvasir {

class AttentionPass {
 public:
  struct Output {
    float* rows;         // [rows][attended_dim]
    int64_t stride;      // floats from one row to the next
    const float* sinks;  // [heads], of the layer; null: none
  };

  // The arguments outlive the pass. frames: by layer, the shape of its part of a plane in device_memory.
  AttentionPass(const ModelSpec& spec, const ops::Kernels& kernels, const CacheGeometry& geometry,
                const std::vector<ops::KvShape>& frames, std::byte* device_memory, int threads);

  // Shares out rows of a step, grouped by slice and in order of position; they stay where they are until the
  // next call. All leaves are local. By one thread, while none is in run(). kExhausted: there is no memory
  // for the partial results. A second call for the same rows allocates nothing.
  Status prepare(std::span<const StepRow> rows);
  // From now on just these leaves of the layer lie at peers; they are in the order of slices and leaves.
  // Holds until the next call of this or of prepare(). Threads and errors: as prepare(). REQUIRES: none in a
  // layer with a window.
  Status prepare_layer(uint32_t layer, std::span<const RemoteLeaves> runs);

  // From now on the slice is skipped: its history is not read, and its rows of `out` stay as they are. Not
  // during run().
  void leave_out(uint32_t slice);

  // Bytes of the buffers for partial results; they grow with the longest history and never shrink.
  uint64_t scratch_bytes() const;

  // One layer. qkv: [rows][qkv_dim], queries rotated and scaled, K and V already in their frames. Rows that
  // have leaves at peers are in `out` only after merge_answers(). The pool has no more than `threads`. A
  // helper may be late: until settle() it reads qkv, the step, the history's frames and what prepare(),
  // prepare_layer() and leave_out() change.
  // cache_layer: what that layer is in the cache (CacheLayers).
  void run(const Step& step, uint32_t layer, uint32_t cache_layer, const float* qkv, const Output& out,
           ThreadPool& pool);

  static void settle(ThreadPool& pool) { pool.settle(kLateInput); }

  // Leaves times rows, with all KV heads, that run() attends to in the layer with each of its threads.
  double leaf_rows_of_thread(uint32_t layer) const {
    return static_cast<double>(work_of(layer).tiles.local_work()) /
           (static_cast<double>(work_of(layer).head_groups) * static_cast<double>(locals_.size()));
  }
  // True if some rows have leaves at peers in the layer.
  bool awaits_answers(uint32_t layer) const { return !work_of(layer).tiles.remote_tiles().empty(); }
  // After run(), when the answers for all slices that are not left out have come: the rest of the layer.
  void merge_answers(uint32_t layer, const RemoteAttention& answers, const Output& out, ThreadPool& pool);

 private:
  using Tile = AttentionTiles::Tile;
  using Piece = AttentionTiles::Piece;
  // What layers with the same window and heads share.
  struct Work {
    Work(const ModelSpec& spec, int32_t layer, const ops::KvShape& frame);
    int64_t record_floats() const { return ops::partial_floats(tile_heads, value_dim); }
    AttentionTiles tiles;
    const ops::KvShape* frame;
    HeadShape heads;
    int64_t tile_heads;                            // query heads of a tile
    int64_t head_groups;                           // tiles of the same rows
    int64_t value_dim;                             // values that a head gets
    int64_t row_width;                             // Q, K and V
    std::vector<float> kept;                       // records of AttentionTiles::Piece::kept
    std::vector<std::atomic<size_t>> open_pieces;  // by tile: pieces that have not ended in this layer
    int64_t scores = 0;                            // to be computed in a layer, about
  };
  // The arguments of a call for one layer.
  struct Layer {
    Work& work;
    const Step& step;
    uint32_t index;  // in the cache
    const float* qkv;
    Output out;
  };
  // The pieces of a layer as a replaceable job; items of compute() and store() are one piece.
  struct Pieces {
    AttentionPass* pass;
    Layer layer;
    void run(Share items, int thread) const;
    void compute(Share item, int thread) const;
    void store(Share item, int thread) const;
  };
  // A tree for each row of a tile, over the leaves of one piece.
  struct Trees {
    std::vector<float> storage;
    std::vector<ops::AttentionTree> rows;
  };
  // K and V of the blocks of a leaf, for one layer and KV head.
  struct LeafTiles {
    std::vector<const void*> k, v;
  };
  // Buffers of one thread.
  struct Local {
    Trees trees;
    std::vector<float> partials;
    LeafTiles tiles[2];  // of this leaf and of the next one
  };

  // The number of what the jobs read, beside those of ThreadPool::inputs().
  static constexpr int kLateInput = ThreadPool::kInputs;
  // The caller computes fewer scores by itself: a job for them would take longer.
  static constexpr int64_t kSoloScores = 1024;
  static constexpr int64_t kTileRows = AttentionTiles::kTileRows;

  Work& work_of(uint32_t layer) { return works_[work_of_layer_[layer]]; }
  const Work& work_of(uint32_t layer) const { return works_[work_of_layer_[layer]]; }
  Status cut(Work& work, std::span<const RemoteLeaves> runs);
  void make_room(Work& work);
  // Attends to the leaves of a piece, in trees of the thread.
  void run_piece(const Layer& layer, size_t index, Local& local);
  // Stores the trees, or keeps them; merges the pieces of the tile if this was the last of them.
  void end_piece(const Layer& layer, size_t index, Local& local);
  void find_tiles(const Layer& layer, const Tile& tile, int64_t leaf, LeafTiles& out) const;
  void attend_leaf(const Layer& layer, const Tile& tile, const Piece& piece, int64_t leaf, Trees& trees,
                   Local& local);
  void unround_own(const Layer& layer, const Tile& tile, int64_t leaf, const ops::AttentionLeafArgs& args);
  // Stores the peaks of a piece's trees until they are merged.
  void keep(Work& work, const Tile& tile, const Piece& piece, const Trees& trees);
  // Merges all subtrees of a tile, in the order of leaves. answers: null if it has no leaves at peers.
  void merge(const Work& work, const Tile& tile, const RemoteAttention* answers, Local& local) const;
  void push_piece(const Work& work, const Tile& tile, size_t piece, size_t kept_of, Trees& merged) const;
  void push_answer(const Work& work, const Tile& tile, size_t run, const RemoteAttention& answers,
                   Local& local) const;
  // Makes empty trees for the tile's rows, over leaves [leaf_begin, leaf_end) as far as a row attends to
  // them.
  void start_trees(const Work& work, Trees& trees, const Tile& tile, int64_t leaf_begin,
                   int64_t leaf_end) const;
  void store(const Work& work, const Output& out, const Tile& tile, Trees& trees) const;
  static int64_t tree_floats(const Work& work, const Tile& tile, int64_t leaves);
  int64_t position(const Tile& tile, int64_t row) const {
    return rows_[static_cast<size_t>(tile.first_row + row)].position;
  }
  // A row of a tile attends to leaves [first_leaf, end_leaf).
  int64_t first_leaf(const Work& work, const Tile& tile, int64_t row) const {
    return work.tiles.first_position(position(tile, row)) / ops::kLeafTokens;
  }
  int64_t end_leaf(const Tile& tile, int64_t row) const { return position(tile, row) / ops::kLeafTokens + 1; }

  const ModelSpec& spec_;
  const ops::Kernels& kernels_;
  const CacheGeometry& geometry_;
  std::byte* const device_memory_;

  // Of the step at hand.
  std::span<const StepRow> rows_;
  std::vector<Work> works_;  // one for each window and shape of heads that layers have
  std::vector<size_t> work_of_layer_;
  std::vector<Local> locals_;
};

}  // namespace kvasir
