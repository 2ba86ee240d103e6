#include "cluster/memory/lent_attention.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "ops/attention_tree.h"
#include "ops/cpu/isa.h"

namespace kvasir {
namespace {

// Rows that share a pass over K and V, as in the pass at home. It changes no bit.
constexpr int64_t kLentTileRows = 16;

struct LentTile {
  int64_t kv_head;
  int64_t first_row;
  int64_t rows;
};

// One run, one tile.
class LentRunPass {
 public:
  LentRunPass(const MemoryShape& shape, const ops::Kernels& kernels, const LentQuery& query)
      : shape_(shape), kernels_(kernels), query_(query), records_(kLentTileRows * shape.record_floats()) {
    valid_.fill(static_cast<int32_t>(ops::kLeafTokens));
    trees_.reserve(kLentTileRows);
  }

  bool attend(LeafRun run, size_t first_cell, const LentTile& tile, const std::function<bool()>& go_on) {
    find_tiles(run, first_cell, tile.kv_head);
    plant(run, tile.rows);
    for (uint32_t i = 0; i < run.leaves(); ++i) {
      attend_leaf(run, i, tile);
      if (!go_on()) return false;
    }
    return true;
  }

  const ops::AttentionTree& tree(int64_t row) const { return trees_[static_cast<size_t>(row)]; }

 private:
  void find_tiles(LeafRun run, size_t first_cell, int64_t kv_head) {
    const size_t blocks = size_t{run.leaves()} * shape_.blocks_per_leaf();
    const size_t offset =
        query_.layer * shape_.piece_bytes() + ops::kv_tile_offset(shape_.kv, /*layer=*/0, kv_head);
    k_.resize(blocks);
    v_.resize(blocks);
    for (size_t b = 0; b < blocks; ++b) {
      const std::byte* k = query_.cells[first_cell + b] + offset;
      k_[b] = k;
      v_[b] = k + shape_.geometry.layer_plane_bytes();
    }
  }

  void plant(LeafRun run, int64_t rows) {
    const int64_t floats =
        ops::AttentionTree::storage_floats(run.leaves(), shape_.queries_per_kv, shape_.kv.head_dim);
    storage_.resize(static_cast<size_t>(rows * floats));
    trees_.clear();
    for (int64_t i = 0; i < rows; ++i) {
      trees_.emplace_back(kernels_, shape_.queries_per_kv, shape_.kv.head_dim, storage_.data() + i * floats,
                          run.leaves(), run.first);
    }
  }

  void attend_leaf(LeafRun run, uint32_t i, const LentTile& tile) {
    const size_t block = size_t{i} * shape_.blocks_per_leaf();
    ops::AttentionLeafArgs args;
    args.q = query_.q + tile.first_row * shape_.q_dim() +
             tile.kv_head * shape_.queries_per_kv * shape_.kv.head_dim;
    args.q_stride = shape_.q_dim();
    args.rows = tile.rows;
    args.heads = shape_.queries_per_kv;
    args.head_dim = shape_.kv.head_dim;
    args.valid = valid_.data();
    args.k_tiles = k_.data() + block;
    args.v_tiles = v_.data() + block;
    if (i + 1 < run.leaves()) {
      args.next_k_tiles = args.k_tiles + shape_.blocks_per_leaf();
      args.next_tiles = shape_.blocks_per_leaf();
    }
    args.block_tokens = shape_.kv.block_tokens;
    args.type = shape_.kv.type;
    args.out = records_.data();
    args.out_stride = shape_.record_floats();
    kernels_.attention_leaf(args);
    for (int64_t r = 0; r < tile.rows; ++r) {
      trees_[static_cast<size_t>(r)].push(records_.data() + r * shape_.record_floats());
    }
  }

  const MemoryShape& shape_;
  const ops::Kernels& kernels_;
  const LentQuery& query_;
  std::array<int32_t, kLentTileRows> valid_{};
  std::vector<float> records_;
  std::vector<float> storage_;
  std::vector<ops::AttentionTree> trees_;
  std::vector<const void*> k_, v_;
};

}  // namespace

uint32_t peaks_of(std::span<const LeafRun> runs) {
  uint32_t peaks = 0;
  for (const LeafRun& run : runs) peaks += subtrees_of(run);
  return peaks;
}

bool attend_lent(const MemoryShape& shape, const ops::Kernels& kernels, const LentQuery& query,
                 std::span<std::byte> out, const std::function<bool()>& go_on) {
  const ops::FlushToZero mode;
  const auto rows = static_cast<int64_t>(query.rows);
  const int64_t peaks = peaks_of(query.runs);
  const auto record_bytes = static_cast<size_t>(shape.record_floats()) * sizeof(float);
  LentRunPass pass(shape, kernels, query);
  for (int64_t head = 0; head < shape.kv.kv_heads; ++head) {
    for (int64_t first = 0; first < rows; first += kLentTileRows) {
      const LentTile tile{head, first, std::min(kLentTileRows, rows - first)};
      size_t cell = 0;
      int64_t peak = 0;
      for (const LeafRun& run : query.runs) {
        if (!pass.attend(run, cell, tile, go_on)) return false;
        for (int64_t r = 0; r < tile.rows; ++r) {
          const ops::AttentionTree& tree = pass.tree(r);
          const int64_t to = ((first + r) * shape.kv.kv_heads + head) * peaks + peak;
          for (int i = 0; i < tree.peak_count(); ++i) {
            std::memcpy(out.data() + static_cast<size_t>(to + i) * record_bytes, tree.peak(i).partial,
                        record_bytes);
          }
        }
        cell += size_t{run.leaves()} * shape.blocks_per_leaf();
        peak += subtrees_of(run);
      }
    }
  }
  return true;
}

}  // namespace kvasir
