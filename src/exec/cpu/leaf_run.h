// Attention over a run of whole leaves, as it is computed for somebody else where their K and V lie: what
// PeerMemory::attend() answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/cpu/kernels.h"
#include "ops/kv_layout.h"

namespace kvasir {

// The maximal aligned subtrees of leaves [begin, end), left to right, are the peaks of an AttentionTree over
// them. How many there are, and the level of the one that begins at `begin`, one of 2^level leaves.
int64_t peak_count(int64_t begin, int64_t end);
// REQUIRES: begin < end
int peak_level(int64_t begin, int64_t end);

struct LeafRun {
  ops::KvShape shape;          // of one layer of a block: layers = 1
  int64_t queries_per_kv = 0;  // query heads that share a KV head
  int64_t first_leaf = 0;
  int64_t end_leaf = 0;
  // Queries, rotated and scaled: [rows][kv_heads * queries_per_kv][head_dim], q_stride floats apart. Every
  // row sees all of every leaf.
  int64_t rows = 0;
  const float* q = nullptr;
  int64_t q_stride = 0;
  // The layer's piece of each block of the leaves: K, and V right behind it.
  std::span<const std::byte* const> pieces;
};

// Floats of the answer.
int64_t answer_floats(const LeafRun& run);

// partials[(row * kv_heads + kv head) * peaks + peak][ops::partial_floats()], the peaks left to right.
// Allocates. REQUIRES: subnormals are flushed to zero (ops::FlushToZero), as they are where the rows are;
// there is room for answer_floats()
void attend_leaf_run(const ops::Kernels& kernels, const LeafRun& run, std::span<float> partials);

}  // namespace kvasir
