#include "exec/cpu/attention_pass.h"

#include <algorithm>
#include <new>

#include "base/check.h"
#include "base/mutant.h"
#include "exec/cpu/faults.h"
#include "ops/leaf_run.h"

namespace kvasir {
namespace {

// Where all heads share one KV head, so many go into a tile, so that threads have heads to share out: as many
// as a kernel takes at once, if they divide evenly.
int64_t heads_of_tile(const ModelSpec& spec, const HeadShape& shape) {
  if (!spec.is_latent()) return shape.heads / shape.kv_heads;
  int64_t heads = std::min<int64_t>(spec.heads, ops::kLanes);
  while (spec.heads % heads != 0) --heads;
  return heads;
}

}  // namespace

AttentionPass::Work::Work(const ModelSpec& spec, int32_t layer, const ops::KvShape& frame_of_layer)
    : tiles(spec.layer(layer).window, spec.layer(layer).chunked),
      frame(&frame_of_layer),
      heads(spec.heads_of(layer)),
      tile_heads(heads_of_tile(spec, heads)),
      head_groups(spec.heads / tile_heads),
      value_dim(spec.attended_head_dim_of(layer)),
      row_width(spec.qkv_dim_of(layer)) {}

AttentionPass::AttentionPass(const ModelSpec& spec, const ops::Kernels& kernels,
                             const CacheGeometry& geometry, const std::vector<ops::KvShape>& frames,
                             std::byte* device_memory, int threads)
    : spec_(spec),
      kernels_(kernels),
      geometry_(geometry),
      device_memory_(device_memory),
      locals_(static_cast<size_t>(threads)) {
  for (int32_t layer = 0; layer < spec.layers; ++layer) {
    const auto is_for = [&](const Work& work) {
      return work.tiles.is_for(spec.layer(layer)) && work.heads == spec.heads_of(layer);
    };
    size_t work = 0;
    while (work < works_.size() && !is_for(works_[work])) ++work;
    if (work == works_.size()) works_.emplace_back(spec, layer, frames[static_cast<size_t>(layer)]);
    work_of_layer_.push_back(work);
  }
}

// ---------------------------------------------------------------- layout of a step

Status AttentionPass::prepare(std::span<const StepRow> rows) {
  rows_ = rows;
  for (Work& work : works_) {
    try {
      work.tiles.lay_out(rows, work.head_groups);
    } catch (const std::bad_alloc&) {
      return error(ErrorCode::kExhausted, "no memory for the attention of a step of {} tokens", rows.size());
    }
    KV_RETURN_IF_ERROR(cut(work, {}));
  }
  return {};
}

Status AttentionPass::prepare_layer(uint32_t layer, std::span<const RemoteLeaves> runs) {
  Work& work = work_of(layer);
  KV_CHECK(runs.empty() || work.tiles.window() == 0, "layer {}: leaves at peers, and a window", layer);
  return work.tiles.is_cut_for(runs) ? Status() : cut(work, runs);
}

Status AttentionPass::cut(Work& work, std::span<const RemoteLeaves> runs) {
  try {
    work.tiles.cut(runs, static_cast<int>(locals_.size()));
    make_room(work);
  } catch (const std::bad_alloc&) {
    return error(ErrorCode::kExhausted, "no memory for the attention of a step of {} tokens", rows_.size());
  }
  const std::span<const Tile> tiles = work.tiles.tiles();
  work.scores = 0;
  for (size_t t = 0; t < tiles.size(); ++t) {
    work.open_pieces[t] = tiles[t].pieces;
    const int64_t last = position(tiles[t], tiles[t].rows - 1);
    work.scores += tiles[t].rows * (last + 1 - work.tiles.first_position(last)) * work.tile_heads;
  }
  return {};
}

void AttentionPass::make_room(Work& work) {
  const auto at_least = [](auto& buffer, int64_t size) {
    if (buffer.size() < static_cast<size_t>(size)) buffer.resize(static_cast<size_t>(size));
  };
  const std::span<const Tile> tiles = work.tiles.tiles();
  if (work.open_pieces.size() < tiles.size())
    work.open_pieces = std::vector<std::atomic<size_t>>(tiles.size());
  at_least(work.kept, work.tiles.kept_records() * work.record_floats());
  int64_t most_floats = 0;
  for (const Tile& tile : tiles) {
    most_floats = std::max(most_floats, tree_floats(work, tile, tile.end_leaf - tile.first_leaf));
  }
  for (Local& local : locals_) {
    at_least(local.trees.storage, most_floats);
    local.trees.rows.reserve(kTileRows);
    at_least(local.partials, kTileRows * work.record_floats());
    for (LeafTiles& leaf : local.tiles) {
      leaf.k.reserve(static_cast<size_t>(ops::kLeafTokens / geometry_.block_tokens));
      leaf.v.reserve(static_cast<size_t>(ops::kLeafTokens / geometry_.block_tokens));
    }
  }
}

int64_t AttentionPass::tree_floats(const Work& work, const Tile& tile, int64_t leaves) {
  return tile.rows * ops::AttentionTree::storage_floats(leaves, work.tile_heads, work.value_dim);
}

void AttentionPass::leave_out(uint32_t slice) {
  for (Work& work : works_) work.tiles.leave_out(slice);
}

uint64_t AttentionPass::scratch_bytes() const {
  uint64_t floats = 0;
  for (const Work& work : works_) floats += work.kept.size();
  for (const Local& local : locals_) floats += local.trees.storage.size() + local.partials.size();
  return floats * sizeof(float);
}

// ---------------------------------------------------------------- one layer

void AttentionPass::run(const Step& step, uint32_t layer, uint32_t cache_layer, const float* qkv,
                        const Output& out, ThreadPool& pool) {
  Work& work = work_of(layer);
  const auto pieces = static_cast<int64_t>(work.tiles.pieces().size());
  const Pieces all = {this, {work, step, cache_layer, qkv, out}};
  if (work.scores < kSoloScores) {
    pool.for_each(pieces, [&](Share mine, int thread) { all.run(mine, thread); }, {pieces});
  } else if (step.transfers.empty() && work.tiles.remote_tiles().empty()) {
    pool.for_each_replaceable(pieces, all, kLateInput, {1, 1});
  } else {  // what a late helper reads could be overwritten as soon as the layer has been attended
    pool.for_each(pieces, [&](Share mine, int thread) { all.run(mine, thread); }, {1, 1});
  }
}

void AttentionPass::Pieces::run(Share items, int thread) const {
  for (int64_t i = items.begin; i < items.end; ++i) {
    compute({i, i + 1}, thread);
    store({i, i + 1}, thread);
  }
}

void AttentionPass::Pieces::compute(Share item, int thread) const {
  pass->run_piece(layer, static_cast<size_t>(item.begin), pass->locals_[static_cast<size_t>(thread)]);
}

void AttentionPass::Pieces::store(Share item, int thread) const {
  pass->end_piece(layer, static_cast<size_t>(item.begin), pass->locals_[static_cast<size_t>(thread)]);
}

void AttentionPass::run_piece(const Layer& layer, size_t index, Local& local) {
  Work& work = layer.work;
  const Piece& piece = work.tiles.pieces()[index];
  const Tile& tile = work.tiles.tiles()[piece.tile];
  if (tile.left_out) return;
  start_trees(work, local.trees, tile, piece.leaf_begin, piece.leaf_end);
  for (int64_t leaf = piece.leaf_begin; leaf < piece.leaf_end; ++leaf) {
    attend_leaf(layer, tile, piece, leaf, local.trees, local);
  }
}

void AttentionPass::end_piece(const Layer& layer, size_t index, Local& local) {
  Work& work = layer.work;
  const Piece& piece = work.tiles.pieces()[index];
  const Tile& tile = work.tiles.tiles()[piece.tile];
  if (tile.left_out) return;
  if (tile.whole()) {
    store(work, layer.out, tile, local.trees);
    return;
  }
  keep(work, tile, piece, local.trees);
  if (tile.remote()) return;
  if (work.open_pieces[piece.tile].fetch_sub(1, std::memory_order_acq_rel) == 1) {
    work.open_pieces[piece.tile].store(tile.pieces, std::memory_order_relaxed);  // for the next layer
    merge(work, tile, nullptr, local);
    store(work, layer.out, tile, local.trees);
  }
}

void AttentionPass::merge_answers(uint32_t layer, const RemoteAttention& answers, const Output& out,
                                  ThreadPool& pool) {
  const Work& work = work_of(layer);
  const std::span<const size_t> remote = work.tiles.remote_tiles();
  pool.for_each(static_cast<int64_t>(remote.size()), [&](Share mine, int thread) {
    Local& local = locals_[static_cast<size_t>(thread)];
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      const Tile& tile = work.tiles.tiles()[remote[static_cast<size_t>(i)]];
      if (tile.left_out) continue;
      merge(work, tile, &answers, local);
      store(work, out, tile, local.trees);
    }
  });
}

void AttentionPass::start_trees(const Work& work, Trees& trees, const Tile& tile, int64_t leaf_begin,
                                int64_t leaf_end) const {
  const int64_t leaves = leaf_end - leaf_begin;
  const int64_t floats = tree_floats(work, tile, leaves) / tile.rows;
  trees.rows.clear();
  for (int64_t i = 0; i < tile.rows; ++i) {
    trees.rows.emplace_back(kernels_, work.tile_heads, work.value_dim, trees.storage.data() + i * floats,
                            leaves, std::max(leaf_begin, first_leaf(work, tile, i)));
  }
}

void AttentionPass::find_tiles(const Layer& layer, const Tile& tile, int64_t leaf, LeafTiles& out) const {
  const StepSlice& slice = layer.step.slices[tile.slice];
  const int64_t kv_head = spec_.is_latent()                 ? 0
                          : mutant(Mutant::kSwappedKvHeads) ? (tile.kv_head + 1) % layer.work.heads.kv_heads
                                                            : tile.kv_head;
  const size_t offset = ops::kv_tile_offset(*layer.work.frame, /*layer=*/0, kv_head);
  const int64_t blocks_per_leaf = ops::kLeafTokens / geometry_.block_tokens;
  const int64_t end_block = std::min<int64_t>((leaf + 1) * blocks_per_leaf, slice.blocks);
  out.k.clear();
  out.v.clear();
  for (int64_t b = leaf * blocks_per_leaf; b < end_block; ++b) {
    const auto block = static_cast<uint32_t>(b);
    const KvPlanes planes = mutant(Mutant::kStagedWrongLayer)
                                ? planes_of_next_layer(layer.step, geometry_, slice, block, layer.index)
                                : layer.step.planes(geometry_, slice, block, layer.index);
    // Of what lies behind a window there may be none. It is not read.
    out.k.push_back(planes.present() ? device_memory_ + planes.k + offset : nullptr);
    out.v.push_back(planes.present() ? device_memory_ + planes.v + offset : nullptr);
  }
}

void AttentionPass::attend_leaf(const Layer& layer, const Tile& tile, const Piece& piece, int64_t leaf,
                                Trees& trees, Local& local) {
  const Work& work = layer.work;
  const int64_t heads = work.tile_heads, head_dim = work.heads.head_dim;
  const int64_t record = work.record_floats();
  // Rows are in order of position: those before `skip` do not reach this leaf, and the windows of those from
  // `end` on begin behind it.
  int32_t first[kTileRows], valid[kTileRows];
  int64_t skip = 0, end = 0;
  const auto in_leaf = [leaf](int64_t position) {
    return static_cast<int32_t>(std::clamp<int64_t>(position - leaf * ops::kLeafTokens, 0, ops::kLeafTokens));
  };
  for (int64_t i = 0; i < tile.rows; ++i) {
    first[i] = in_leaf(layer.work.tiles.first_position(position(tile, i)));
    valid[i] = in_leaf(position(tile, i) + 1);
    if (valid[i] == 0) ++skip;
    if (first[i] < ops::kLeafTokens) ++end;
  }
  LeafTiles& now = local.tiles[leaf % 2];
  LeafTiles& next = local.tiles[(leaf + 1) % 2];
  if (leaf == piece.leaf_begin) find_tiles(layer, tile, leaf, now);
  next.k.clear();
  if (leaf + 1 < piece.leaf_end) find_tiles(layer, tile, leaf + 1, next);
  ops::AttentionLeafArgs args;
  args.q = layer.qkv + (tile.first_row + skip) * work.row_width + tile.kv_head * heads * head_dim;
  args.q_stride = work.row_width;
  args.rows = end - skip;
  args.heads = heads;
  args.head_dim = head_dim;
  args.value_dim = work.frame->value_dim;
  args.valid = valid + skip;
  if (layer.work.tiles.window() > 0) args.first = first + skip;
  args.score_cap = mutant(Mutant::kScoreUncapped) && args.rows == 1 ? 0 : spec_.score_cap;
  args.k_tiles = now.k.data();
  args.v_tiles = now.v.data();
  args.next_k_tiles = next.k.data();
  args.next_tiles = static_cast<int64_t>(next.k.size());
  args.block_tokens = geometry_.block_tokens;
  args.type = work.frame->type;
  args.out = local.partials.data();
  args.out_stride = record;
  kernels_.attention_leaf(args);
  if (mutant(Mutant::kOwnKvUnrounded) && !spec_.is_latent()) unround_own(layer, tile, leaf, args);
  for (int64_t i = skip; i < end; ++i) {
    trees.rows[static_cast<size_t>(i)].push(local.partials.data() + (i - skip) * record);
  }
}

// Only under its mutant: see attend_own_unrounded().
void AttentionPass::unround_own(const Layer& layer, const Tile& tile, int64_t leaf,
                                const ops::AttentionLeafArgs& args) {
  int64_t skip = 0;
  while (position(tile, skip) / ops::kLeafTokens < leaf) ++skip;
  for (int64_t i = 0; i < args.rows; ++i) {
    const int64_t row = tile.first_row + skip + i;
    if (rows_[static_cast<size_t>(row)].position / ops::kLeafTokens != leaf) continue;
    ops::AttentionLeafArgs one = args;
    one.q = args.q + i * args.q_stride;
    one.rows = 1;
    one.valid = args.valid + i;
    if (args.first) one.first = args.first + i;
    one.out = args.out + i * args.out_stride;
    const HeadShape& shape = layer.work.heads;
    const float* k = layer.qkv + row * args.q_stride + shape.q_dim() + tile.kv_head * shape.head_dim;
    attend_own_unrounded(kernels_, one, k, k + shape.kv_dim());
  }
}

// ---------------------------------------------------------------- merge

void AttentionPass::keep(Work& work, const Tile& tile, const Piece& piece, const Trees& trees) {
  const int64_t record = work.record_floats();
  for (int64_t i = 0; i < tile.rows; ++i) {
    const ops::AttentionTree& tree = trees.rows[static_cast<size_t>(i)];
    float* to = work.kept.data() + (piece.kept + i * piece.peaks) * record;
    KV_CHECK(tree.peak_count() <= piece.peaks, "{} peaks of leaves [{}, {})", tree.peak_count(),
             piece.leaf_begin, piece.leaf_end);
    for (int k = 0; k < tree.peak_count(); ++k) std::copy_n(tree.peak(k).partial, record, to + k * record);
  }
}

// The subtrees of the pieces and of the peers' answers are subtrees of the tree over the whole history, so
// pushing them in order gives that tree.
void AttentionPass::merge(const Work& work, const Tile& tile, const RemoteAttention* answers,
                          Local& local) const {
  start_trees(work, local.trees, tile, tile.first_leaf, tile.end_leaf);
  const size_t there = mutant(Mutant::kMergedEarly) ? tile.pieces - 1 : tile.pieces;
  size_t run = tile.first_run;
  for (size_t p = 0; p < there; ++p) {
    const size_t piece = tile.first_piece + p;
    // At least the row's own leaf is local, so no run comes after the last piece.
    for (; run < tile.end_run && work.tiles.runs()[run].first_leaf < work.tiles.pieces()[piece].leaf_begin;
         ++run) {
      push_answer(work, tile, run, *answers, local);
    }
    const bool swapped = mutant(Mutant::kPieceOrder) && p < 2 && tile.pieces > 2 && !tile.remote();
    push_piece(work, tile, piece, swapped ? tile.first_piece + 1 - p : piece, local.trees);
  }
}

// kept_of: the piece itself, except under a mutant.
void AttentionPass::push_piece(const Work& work, const Tile& tile, size_t piece, size_t kept_of,
                               Trees& merged) const {
  const Piece& range = work.tiles.pieces()[piece];
  const Piece& kept = work.tiles.pieces()[kept_of];
  for (int64_t i = 0; i < tile.rows; ++i) {
    const float* peak = work.kept.data() + (kept.kept + i * kept.peaks) * work.record_floats();
    const int64_t begin = std::max(range.leaf_begin, first_leaf(work, tile, i));
    const int64_t end = std::min(range.leaf_end, end_leaf(tile, i));
    if (begin >= end) continue;
    ops::for_each_subtree(AttentionTiles::leaves(begin, end), [&](int level, uint32_t) {
      merged.rows[static_cast<size_t>(i)].push(peak, level);
      peak += work.record_floats();
    });
  }
}

void AttentionPass::push_answer(const Work& work, const Tile& tile, size_t run,
                                const RemoteAttention& answers, Local& local) const {
  const RemoteLeaves& range = work.tiles.runs()[run];
  const ops::LeafRun leaves{range.first_leaf, range.end_leaf};
  const int64_t peaks = ops::subtrees_of(leaves);
  if (mutant(Mutant::kRemoteRunDropped)) {
    nothing_attended(work.tile_heads, work.value_dim, local.partials.data());
  }
  for (int64_t i = 0; i < tile.rows; ++i) {
    const float* records = answers.peaks(run, tile.first_row + i, tile.kv_head);
    int64_t k = 0;
    ops::for_each_subtree(leaves, [&](int level, uint32_t) {
      int64_t from = mutant(Mutant::kRemotePeaksSwapped) && peaks > 1 && k < 2 ? 1 - k : k;
      if (mutant(Mutant::kRemoteLeafTwice) && k > 0) from = k - 1;
      const float* peak =
          mutant(Mutant::kRemoteRunDropped) ? local.partials.data() : records + from * work.record_floats();
      local.trees.rows[static_cast<size_t>(i)].push(peak, level);
      ++k;
    });
  }
}

void AttentionPass::store(const Work& work, const Output& out, const Tile& tile, Trees& trees) const {
  const int64_t heads = work.tile_heads, first_head = tile.kv_head * heads;
  const bool without = out.sinks == nullptr || (mutant(Mutant::kSinkLeftOut) && tile.rows == 1) ||
                       (mutant(Mutant::kRemoteSinkLeftOut) && tile.remote());
  const float* sinks = without ? nullptr : out.sinks + first_head;
  for (int64_t i = 0; i < tile.rows; ++i) {
    float* row = out.rows + (tile.first_row + i) * out.stride + first_head * work.value_dim;
    kernels_.finalize(trees.rows[static_cast<size_t>(i)].finish(), sinks, heads, work.value_dim, row);
  }
}

}  // namespace kvasir
