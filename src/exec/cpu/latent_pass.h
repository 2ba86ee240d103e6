// The products of latent attention beside the layer's first and last ones (LatentSpec): they make queries
// that attend to the rows in the cache, and each head's value of what these give.
//
//   x --[q | kv] or [q_a | kv_a]--> (q_a --norm--> q_b -->) q = [nope | rope] of each head
//   nope of head h x absorb[h] --> the query's first `rank` values;  rope of head h --> the others
//   attended of head h x value_up[h] --> the value of head h
//
// Rows of the same head lie side by side, as those of an expert do, so a product of one head is one of a
// bucket.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/cpu/operand.h"
#include "exec/cpu/packed_model.h"
#include "exec/cpu/product_runner.h"

namespace kvasir {

class LatentPass {
 public:
  // The arguments outlive it. For a model without latent attention it takes no memory, and is not called.
  LatentPass(const PackedModel& model, const ops::Kernels& kernels, ProductRunner& products);

  // Makes room for so many rows. Throws std::bad_alloc.
  void grow(int64_t rows);
  // The largest operands with a row for each head, of so many rows.
  OperandBuffers::Extent extent(int64_t rows) const;
  // Items of the largest job of so many rows.
  int64_t most_items(int64_t rows) const;

  // The layer's product of `normed`, into buffers of its own.
  void multiply(const PackedLayer& layer, const Operand& normed, int64_t rows);
  // From those buffers, qkv: [rows][qkv_dim]: queries with neither RoPE nor scale, and the rows for the cache
  // with neither norm nor RoPE (QkvFinisher does these).
  void make_qkv(const PackedLayer& layer, int64_t rows, float* qkv);
  // What the layer's last product takes, of what attention gave: [rows], `stride` floats apart.
  Operand make_values(const PackedLayer& layer, const float* attended, int64_t stride, int64_t rows);

  uint64_t bytes() const;

 private:
  const LatentSpec& latent() const { return model_.spec().latent; }
  void group_by_head(int64_t rows);

  const PackedModel& model_;
  const ops::Kernels& kernels_;
  ProductRunner& products_;
  std::vector<float> first_;            // [rows][qkv.n]
  std::vector<float> q_;                // [rows][heads][nope + rope], where queries have a rank
  std::vector<float> by_head_;          // [heads][rows][rank or value_dim]
  std::vector<int64_t> first_of_head_;  // [heads + 1]
};

}  // namespace kvasir
