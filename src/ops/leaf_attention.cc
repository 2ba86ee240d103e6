#include "ops/leaf_attention.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "ops/attention_tree.h"
#include "ops/cpu/isa.h"

namespace kvasir::ops {
namespace {

// Rows that share a pass over K and V, as in the executor's own pass. It changes no bit.
constexpr int64_t kTileRows = 16;

struct LeafTile {
  int64_t kv_head;
  int64_t first_row;
  int64_t rows;
};

// One run, one tile.
class LeafRunPass {
 public:
  LeafRunPass(const Kernels& kernels, const LeafQuery& query)
      : kernels_(kernels),
        query_(query),
        blocks_per_leaf_(static_cast<size_t>(kLeafTokens / query.kv.block_tokens)),
        record_floats_(partial_floats(query.queries_per_kv, query.kv.head_dim)),
        records_(static_cast<size_t>(kTileRows * record_floats_)) {
    valid_.fill(static_cast<int32_t>(kLeafTokens));
    trees_.reserve(kTileRows);
  }

  bool attend(LeafRun run, size_t first_cell, const LeafTile& tile, const std::function<bool()>& go_on) {
    find_tiles(run, first_cell, tile.kv_head);
    plant(run, tile.rows);
    for (uint32_t i = 0; i < run.leaves(); ++i) {
      attend_leaf(run, i, tile);
      if (!go_on()) return false;
    }
    return true;
  }

  const AttentionTree& tree(int64_t row) const { return trees_[static_cast<size_t>(row)]; }

 private:
  void find_tiles(LeafRun run, size_t first_cell, int64_t kv_head) {
    const size_t blocks = size_t{run.leaves()} * blocks_per_leaf_;
    const size_t offset = query_.layer_offset + kv_tile_offset(query_.kv, /*layer=*/0, kv_head);
    k_.resize(blocks);
    v_.resize(blocks);
    for (size_t b = 0; b < blocks; ++b) {
      const std::byte* k = query_.cells[first_cell + b] + offset;
      k_[b] = k;
      v_[b] = k + kv_plane_bytes(query_.kv);
    }
  }

  void plant(LeafRun run, int64_t rows) {
    const int64_t floats =
        AttentionTree::storage_floats(run.leaves(), query_.queries_per_kv, query_.kv.head_dim);
    storage_.resize(static_cast<size_t>(rows * floats));
    trees_.clear();
    for (int64_t i = 0; i < rows; ++i) {
      trees_.emplace_back(kernels_, query_.queries_per_kv, query_.kv.head_dim, storage_.data() + i * floats,
                          run.leaves(), run.first);
    }
  }

  void attend_leaf(LeafRun run, uint32_t i, const LeafTile& tile) {
    const size_t block = size_t{i} * blocks_per_leaf_;
    const int64_t q_stride = query_.kv.kv_heads * query_.queries_per_kv * query_.kv.head_dim;
    AttentionLeafArgs args;
    args.q = query_.q + tile.first_row * q_stride + tile.kv_head * query_.queries_per_kv * query_.kv.head_dim;
    args.q_stride = q_stride;
    args.rows = tile.rows;
    args.heads = query_.queries_per_kv;
    args.head_dim = query_.kv.head_dim;
    args.valid = valid_.data();
    args.k_tiles = k_.data() + block;
    args.v_tiles = v_.data() + block;
    if (i + 1 < run.leaves()) {
      args.next_k_tiles = args.k_tiles + blocks_per_leaf_;
      args.next_tiles = static_cast<int64_t>(blocks_per_leaf_);
    }
    args.block_tokens = query_.kv.block_tokens;
    args.type = query_.kv.type;
    args.out = records_.data();
    args.out_stride = record_floats_;
    kernels_.attention_leaf(args);
    for (int64_t r = 0; r < tile.rows; ++r) {
      trees_[static_cast<size_t>(r)].push(records_.data() + r * record_floats_);
    }
  }

  const Kernels& kernels_;
  const LeafQuery& query_;
  const size_t blocks_per_leaf_;
  const int64_t record_floats_;
  std::array<int32_t, kTileRows> valid_{};
  std::vector<float> records_;
  std::vector<float> storage_;
  std::vector<AttentionTree> trees_;
  std::vector<const void*> k_, v_;
};

}  // namespace

uint32_t subtrees_of(std::span<const LeafRun> runs) {
  uint32_t count = 0;
  for (const LeafRun& run : runs) count += subtrees_of(run);
  return count;
}

bool attend_leaves(const Kernels& kernels, const LeafQuery& query, std::span<std::byte> out,
                   const std::function<bool()>& go_on) {
  const FlushToZero mode;
  const int64_t rows = query.rows, peaks = subtrees_of(query.runs);
  const auto record_bytes =
      static_cast<size_t>(partial_floats(query.queries_per_kv, query.kv.head_dim)) * sizeof(float);
  KV_CHECK(query.kv.layers == 1 &&
               out.size() >= static_cast<size_t>(rows * query.kv.kv_heads * peaks) * record_bytes,
           "layers={} rows={} peaks={} bytes={}", query.kv.layers, rows, peaks, out.size());
  LeafRunPass pass(kernels, query);
  for (int64_t head = 0; head < query.kv.kv_heads; ++head) {
    for (int64_t first = 0; first < rows; first += kTileRows) {
      const LeafTile tile{head, first, std::min(kTileRows, rows - first)};
      size_t cell = 0;
      int64_t peak = 0;
      for (const LeafRun& run : query.runs) {
        if (!pass.attend(run, cell, tile, go_on)) return false;
        for (int64_t r = 0; r < tile.rows; ++r) {
          const AttentionTree& tree = pass.tree(r);
          const int64_t to = ((first + r) * query.kv.kv_heads + head) * peaks + peak;
          for (int i = 0; i < tree.peak_count(); ++i) {
            std::memcpy(out.data() + static_cast<size_t>(to + i) * record_bytes, tree.peak(i).partial,
                        record_bytes);
          }
        }
        cell += size_t{run.leaves()} * static_cast<size_t>(kLeafTokens / query.kv.block_tokens);
        peak += subtrees_of(run);
      }
    }
  }
  return true;
}

}  // namespace kvasir::ops
