#include "exec/cpu/leaf_run.h"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "base/check.h"
#include "ops/attention_tree.h"

namespace kvasir {
namespace {

constexpr int64_t kRowsAtOnce = 16;  // of one pass over the leaves

// Some rows of a run with one KV head.
class RowsOfRun {
 public:
  RowsOfRun(const ops::Kernels& kernels, const LeafRun& run)
      : kernels_(kernels),
        run_(run),
        record_(ops::partial_floats(run.queries_per_kv, run.shape.head_dim)),
        tree_floats_(ops::AttentionTree::storage_floats(run.end_leaf - run.first_leaf, run.queries_per_kv,
                                                        run.shape.head_dim)),
        storage_(static_cast<size_t>(kRowsAtOnce * tree_floats_)),
        leaf_(static_cast<size_t>(kRowsAtOnce * record_)) {}

  void attend(int64_t first_row, int64_t rows, int64_t kv_head, float* partials) {
    std::vector<ops::AttentionTree> trees;
    for (int64_t i = 0; i < rows; ++i) {
      trees.emplace_back(kernels_, run_.queries_per_kv, run_.shape.head_dim,
                         storage_.data() + i * tree_floats_, run_.end_leaf - run_.first_leaf,
                         run_.first_leaf);
    }
    for (int64_t leaf = run_.first_leaf; leaf < run_.end_leaf; ++leaf) {
      attend_leaf(first_row, rows, kv_head, leaf);
      for (int64_t i = 0; i < rows; ++i) trees[static_cast<size_t>(i)].push(leaf_.data() + i * record_);
    }
    const int64_t peaks = peak_count(run_.first_leaf, run_.end_leaf);
    for (int64_t i = 0; i < rows; ++i) {
      float* out = partials + ((first_row + i) * run_.shape.kv_heads + kv_head) * peaks * record_;
      const ops::AttentionTree& tree = trees[static_cast<size_t>(i)];
      for (int k = 0; k < std::min<int64_t>(peaks, tree.peak_count()); ++k) {
        std::copy_n(tree.peak(k).partial, record_, out + k * record_);
      }
    }
  }

 private:
  void attend_leaf(int64_t first_row, int64_t rows, int64_t kv_head, int64_t leaf) {
    const int64_t blocks = ops::kLeafTokens / run_.shape.block_tokens;
    const size_t at = ops::kv_tile_offset(run_.shape, /*layer=*/0, kv_head);
    k_.clear();
    v_.clear();
    for (int64_t b = (leaf - run_.first_leaf) * blocks; b < (leaf - run_.first_leaf + 1) * blocks; ++b) {
      const std::byte* piece = run_.pieces[static_cast<size_t>(b)];
      k_.push_back(piece + at);
      v_.push_back(piece + ops::kv_plane_bytes(run_.shape) + at);
    }
    std::array<int32_t, kRowsAtOnce> valid;
    valid.fill(ops::kLeafTokens);
    ops::AttentionLeafArgs args;
    args.q = run_.q + first_row * run_.q_stride + kv_head * run_.queries_per_kv * run_.shape.head_dim;
    args.q_stride = run_.q_stride;
    args.rows = rows;
    args.heads = run_.queries_per_kv;
    args.head_dim = run_.shape.head_dim;
    args.valid = valid.data();
    args.k_tiles = k_.data();
    args.v_tiles = v_.data();
    args.block_tokens = run_.shape.block_tokens;
    args.type = run_.shape.type;
    args.out = leaf_.data();
    args.out_stride = record_;
    kernels_.attention_leaf(args);
  }

  const ops::Kernels& kernels_;
  const LeafRun& run_;
  const int64_t record_;
  const int64_t tree_floats_;
  std::vector<float> storage_, leaf_;
  std::vector<const void*> k_, v_;
};

}  // namespace

int peak_level(int64_t begin, int64_t end) {
  KV_CHECK(0 <= begin && begin < end, "leaves [{}, {})", begin, end);
  const int fits = static_cast<int>(std::bit_width(static_cast<uint64_t>(end - begin))) - 1;
  return begin == 0 ? fits : std::min(fits, std::countr_zero(static_cast<uint64_t>(begin)));
}

int64_t peak_count(int64_t begin, int64_t end) {
  int64_t count = 0;
  for (; begin < end; begin += int64_t{1} << peak_level(begin, end)) ++count;
  return count;
}

int64_t answer_floats(const LeafRun& run) {
  return run.rows * run.shape.kv_heads * peak_count(run.first_leaf, run.end_leaf) *
         ops::partial_floats(run.queries_per_kv, run.shape.head_dim);
}

void attend_leaf_run(const ops::Kernels& kernels, const LeafRun& run, std::span<float> partials) {
  KV_CHECK(run.shape.layers == 1 && run.first_leaf < run.end_leaf, "layers={} leaves [{}, {})",
           run.shape.layers, run.first_leaf, run.end_leaf);
  KV_CHECK(static_cast<int64_t>(run.pieces.size()) * run.shape.block_tokens ==
               (run.end_leaf - run.first_leaf) * ops::kLeafTokens,
           "{} blocks of {} for leaves [{}, {})", run.pieces.size(), run.shape.block_tokens, run.first_leaf,
           run.end_leaf);
  KV_CHECK(static_cast<int64_t>(partials.size()) >= answer_floats(run), "room for {} floats of {}",
           partials.size(), answer_floats(run));
  RowsOfRun some(kernels, run);
  for (int64_t row = 0; row < run.rows; row += kRowsAtOnce) {
    for (int64_t h = 0; h < run.shape.kv_heads; ++h) {
      some.attend(row, std::min(kRowsAtOnce, run.rows - row), h, partials.data());
    }
  }
}

}  // namespace kvasir
