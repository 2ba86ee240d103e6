#include "exec/cpu/attention_pass.h"

#include <algorithm>
#include <bit>
#include <new>

#include "base/mutant.h"
#include "exec/cpu/faults.h"

namespace kvasir {

AttentionPass::AttentionPass(const ModelConfig& config, const ops::Kernels& kernels,
                             const CacheGeometry& geometry, const ops::KvShape& frame,
                             std::byte* device_memory, int threads)
    : config_(config),
      kernels_(kernels),
      geometry_(geometry),
      frame_(frame),
      device_memory_(device_memory),
      locals_(static_cast<size_t>(threads)) {}

// ---------------------------------------------------------------- layout of a step

Status AttentionPass::prepare(std::span<const StepRow> rows) {
  rows_ = rows;
  next_piece_ = 0;
  try {
    add_tiles();
    cut_tiles();
    make_room();
  } catch (const std::bad_alloc&) {
    return error(ErrorCode::kExhausted, "no memory for the attention of a step of {} tokens", rows.size());
  }
  for (size_t t = 0; t < tiles_.size(); ++t) open_pieces_[t] = tiles_[t].pieces;
  return {};
}

void AttentionPass::add_tiles() {
  tiles_.clear();
  const auto count = static_cast<int64_t>(rows_.size());
  for (int64_t first = 0; first < count;) {
    const uint32_t slice = rows_[static_cast<size_t>(first)].slice;
    int64_t end = first + 1;
    while (end < std::min(count, first + kTileRows) && rows_[static_cast<size_t>(end)].slice == slice) ++end;
    const int64_t leaves = rows_[static_cast<size_t>(end - 1)].position / ops::kLeafTokens + 1;
    for (int64_t h = 0; h < config_.kv_heads; ++h) {
      tiles_.push_back({slice, first, end - first, h, leaves, 0, 0});
    }
    first = end;
  }
}

void AttentionPass::cut_tiles() {
  int64_t work = 0;
  for (const Tile& tile : tiles_) work += tile.rows * tile.leaves;
  const auto threads = static_cast<int64_t>(locals_.size());
  const int64_t share = threads == 1 ? work : work / (kPiecesPerThread * threads);
  pieces_.clear();
  for (Tile& tile : tiles_) {
    // All of it, or the largest subtree that is no more than a share of the work, and at least a leaf.
    const int64_t fitting = std::max<int64_t>(1, share / tile.rows);
    const int64_t span = fitting >= tile.leaves
                             ? tile.leaves
                             : static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(fitting)));
    tile.first_piece = pieces_.size();
    for (int64_t leaf = 0; leaf < tile.leaves; leaf += span) {
      pieces_.push_back(
          {static_cast<size_t>(&tile - tiles_.data()), leaf, std::min(leaf + span, tile.leaves)});
    }
    tile.pieces = pieces_.size() - tile.first_piece;
  }
}

void AttentionPass::make_room() {
  const auto at_least = [](auto& buffer, int64_t size) {
    if (buffer.size() < static_cast<size_t>(size)) buffer.resize(static_cast<size_t>(size));
  };
  at_least(piece_trees_, static_cast<int64_t>(pieces_.size()));
  if (open_pieces_.size() < tiles_.size()) open_pieces_ = std::vector<std::atomic<size_t>>(tiles_.size());
  int64_t most_floats = 0;
  for (const Tile& tile : tiles_) most_floats = std::max(most_floats, tree_floats(tile, tile.leaves));
  for (Local& local : locals_) {
    at_least(local.trees.storage, most_floats);
    local.trees.rows.reserve(kTileRows);
    at_least(local.partials, kTileRows * ops::partial_floats(config_.queries_per_kv(), config_.head_dim));
    for (LeafTiles& tiles : local.tiles) {
      tiles.k.reserve(static_cast<size_t>(ops::kLeafTokens / geometry_.block_tokens));
      tiles.v.reserve(static_cast<size_t>(ops::kLeafTokens / geometry_.block_tokens));
    }
  }
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const Tile& tile = tiles_[pieces_[i].tile];
    if (tile.pieces == 1) continue;
    at_least(piece_trees_[i].storage, tree_floats(tile, pieces_[i].leaf_end - pieces_[i].leaf_begin));
    piece_trees_[i].rows.reserve(kTileRows);
  }
}

int64_t AttentionPass::tree_floats(const Tile& tile, int64_t leaves) const {
  return tile.rows * ops::AttentionTree::storage_floats(leaves, config_.queries_per_kv(), config_.head_dim);
}

void AttentionPass::leave_out(uint32_t slice) {
  for (Tile& tile : tiles_) tile.left_out = tile.left_out || tile.slice == slice;
}

uint64_t AttentionPass::scratch_bytes() const {
  uint64_t floats = 0;
  for (const Trees& trees : piece_trees_) floats += trees.storage.size();
  for (const Local& local : locals_) floats += local.trees.storage.size() + local.partials.size();
  return floats * sizeof(float);
}

// ---------------------------------------------------------------- one layer

void AttentionPass::run(const Step& step, uint32_t layer, const float* qkv, float* out, int64_t out_stride,
                        const ThreadPool::Worker& worker) {
  Local& local = locals_[static_cast<size_t>(worker.index)];
  for (size_t i = next_piece_.fetch_add(1); i < pieces_.size(); i = next_piece_.fetch_add(1)) {
    run_piece({step, layer, qkv, out, out_stride}, i, local);
  }
  worker.barrier.wait();
  if (worker.index == 0) next_piece_ = 0;  // read again only after the next barrier
}

void AttentionPass::run_piece(const Layer& layer, size_t index, Local& local) {
  const Piece& piece = pieces_[index];
  const Tile& tile = tiles_[piece.tile];
  if (tile.left_out) return;
  Trees& trees = tile.pieces == 1 ? local.trees : piece_trees_[index];
  plant(trees, tile, piece.leaf_begin, piece.leaf_end - piece.leaf_begin);
  for (int64_t leaf = piece.leaf_begin; leaf < piece.leaf_end; ++leaf) {
    attend_leaf(layer, tile, piece, leaf, trees, local);
  }
  if (tile.pieces == 1) {
    store(layer, tile, trees);
  } else if (open_pieces_[piece.tile].fetch_sub(1, std::memory_order_acq_rel) == 1) {
    open_pieces_[piece.tile].store(tile.pieces, std::memory_order_relaxed);  // for the next layer
    merge_pieces(tile, local.trees);
    store(layer, tile, local.trees);
  }
}

void AttentionPass::plant(Trees& trees, const Tile& tile, int64_t leaf_begin, int64_t leaves) const {
  const int64_t floats = tree_floats(tile, leaves) / tile.rows;
  trees.rows.clear();
  for (int64_t i = 0; i < tile.rows; ++i) {
    trees.rows.emplace_back(kernels_, config_.queries_per_kv(), config_.head_dim,
                            trees.storage.data() + i * floats, leaves, leaf_begin);
  }
}

void AttentionPass::find_tiles(const Layer& layer, const Tile& tile, int64_t leaf, LeafTiles& out) const {
  const StepSlice& slice = layer.step.slices[tile.slice];
  const int64_t kv_head =
      mutant(Mutant::kSwappedKvHeads) ? (tile.kv_head + 1) % config_.kv_heads : tile.kv_head;
  const size_t offset = ops::kv_tile_offset(frame_, /*layer=*/0, kv_head);
  const int64_t blocks_per_leaf = ops::kLeafTokens / geometry_.block_tokens;
  const int64_t end_block = std::min<int64_t>((leaf + 1) * blocks_per_leaf, slice.blocks);
  out.k.clear();
  out.v.clear();
  for (int64_t b = leaf * blocks_per_leaf; b < end_block; ++b) {
    const auto block = static_cast<uint32_t>(b);
    const KvPlanes planes = mutant(Mutant::kStagedWrongLayer)
                                ? planes_of_next_layer(layer.step, geometry_, slice, block, layer.index)
                                : layer.step.planes(geometry_, slice, block, layer.index);
    out.k.push_back(device_memory_ + planes.k + offset);
    out.v.push_back(device_memory_ + planes.v + offset);
  }
}

void AttentionPass::attend_leaf(const Layer& layer, const Tile& tile, const Piece& piece, int64_t leaf,
                                Trees& trees, Local& local) {
  const int64_t heads = config_.queries_per_kv();
  const int64_t record = ops::partial_floats(heads, config_.head_dim);
  // Rows are in order of position: those before `skip` do not reach this leaf.
  int32_t valid[kTileRows];
  int64_t skip = 0;
  for (int64_t i = 0; i < tile.rows; ++i) {
    const int64_t position = rows_[static_cast<size_t>(tile.first_row + i)].position;
    const int64_t seen = position + 1 - leaf * ops::kLeafTokens;
    valid[i] = static_cast<int32_t>(std::clamp<int64_t>(seen, 0, ops::kLeafTokens));
    if (valid[i] == 0) ++skip;
  }
  LeafTiles& now = local.tiles[leaf % 2];
  LeafTiles& next = local.tiles[(leaf + 1) % 2];
  if (leaf == piece.leaf_begin) find_tiles(layer, tile, leaf, now);
  next.k.clear();
  if (leaf + 1 < piece.leaf_end) find_tiles(layer, tile, leaf + 1, next);
  ops::AttentionLeafArgs args;
  args.q = layer.qkv + (tile.first_row + skip) * row_width() + tile.kv_head * heads * config_.head_dim;
  args.q_stride = row_width();
  args.rows = tile.rows - skip;
  args.heads = heads;
  args.head_dim = config_.head_dim;
  args.valid = valid + skip;
  args.k_tiles = now.k.data();
  args.v_tiles = now.v.data();
  args.next_k_tiles = next.k.data();
  args.next_tiles = static_cast<int64_t>(next.k.size());
  args.block_tokens = geometry_.block_tokens;
  args.type = frame_.type;
  args.out = local.partials.data();
  args.out_stride = record;
  kernels_.attention_leaf(args);
  if (mutant(Mutant::kOwnKvUnrounded)) unround_own(layer, tile, leaf, args);
  for (int64_t i = skip; i < tile.rows; ++i) {
    trees.rows[static_cast<size_t>(i)].push(local.partials.data() + (i - skip) * record);
  }
}

// Only under its mutant: see attend_own_unrounded().
void AttentionPass::unround_own(const Layer& layer, const Tile& tile, int64_t leaf,
                                const ops::AttentionLeafArgs& args) {
  const int64_t skip = tile.rows - args.rows;
  for (int64_t i = 0; i < args.rows; ++i) {
    const int64_t row = tile.first_row + skip + i;
    if (rows_[static_cast<size_t>(row)].position / ops::kLeafTokens != leaf) continue;
    ops::AttentionLeafArgs one = args;
    one.q = args.q + i * args.q_stride;
    one.rows = 1;
    one.valid = args.valid + i;
    one.out = args.out + i * args.out_stride;
    const float* k = layer.qkv + row * args.q_stride + config_.q_dim() + tile.kv_head * config_.head_dim;
    attend_own_unrounded(kernels_, one, k, k + config_.kv_dim());
  }
}

// ---------------------------------------------------------------- merge

// A piece's subtrees are those that one tree over the whole history would hold, so pushing them in order
// gives that tree.
void AttentionPass::merge_pieces(const Tile& tile, Trees& merged) {
  plant(merged, tile, 0, tile.leaves);
  const size_t there = mutant(Mutant::kMergedEarly) ? tile.pieces - 1 : tile.pieces;
  for (size_t p = 0; p < there; ++p) {
    const bool swapped = mutant(Mutant::kPieceOrder) && p < 2 && tile.pieces > 2;
    const size_t index = tile.first_piece + (swapped ? 1 - p : p);
    for (size_t i = 0; i < merged.rows.size(); ++i) {
      const ops::AttentionTree& part = piece_trees_[index].rows[i];
      for (int k = 0; k < part.peak_count(); ++k)
        merged.rows[i].push(part.peak(k).partial, part.peak(k).level);
    }
  }
}

void AttentionPass::store(const Layer& layer, const Tile& tile, Trees& trees) const {
  const int64_t heads = config_.queries_per_kv();
  for (int64_t i = 0; i < tile.rows; ++i) {
    float* out =
        layer.out + (tile.first_row + i) * layer.out_stride + tile.kv_head * heads * config_.head_dim;
    kernels_.finalize(trees.rows[static_cast<size_t>(i)].finish(), heads, config_.head_dim, out);
  }
}

}  // namespace kvasir
