// What kernels are called with: plain data, pointers of the device's memory. ops/gpu/reference.h says what
// each computes, ops/gpu/layouts.h where operands lie.
//
// "Image" is an operand in tiles. Rows are rows of the step. A null pointer is allowed where it says so.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/gpu/scalar.h"

namespace kvasir::ops::gpu {

// The blocks of a launch, the threads of each, and the bytes of shared memory.
struct Shape {
  int grid_x;
  int grid_y;
  int threads;
  int shared_bytes;
};

// A row of a step, as the host uploads it.
struct RowPlace {
  int32_t token;      // its id, or -1 - i: the id is `earlier[i]`
  uint32_t position;  // in its sequence
  uint32_t slice;
  float query_factor;  // see reference::query_factor()
  // Of its partial results of attention, that of leaf l is record first_record + l.
  int64_t first_record;
};

// The bytes where K and V of a block begin, from the beginning of the memory of all frames. kAbsent: nowhere.
struct KvPlace {
  static constexpr uint64_t kAbsent = UINT64_MAX;
  uint64_t k;
  uint64_t v;
};

// Rows of one sequence, and where its history lies.
struct SlicePlace {
  const KvPlace* table;   // [block * groups + group]: of a group's first layer
  uint32_t staged_begin;  // blocks [begin, end) may lie elsewhere in this step:
  uint32_t staged_end;
  uint32_t first_staged;  // KvLayer::staged[first_staged + layer * (staged_end - staged_begin) + block -
                          // staged_begin]
  uint32_t left_out;      // not 0: its rows write and attend to nothing
};

// One layer of K and V of all sequences.
struct KvLayer {
  std::byte* memory;
  const SlicePlace* slices;
  const KvPlace* staged;  // may be null
  uint32_t groups;
  uint32_t group;
  uint32_t layer;
  uint32_t block_tokens;  // a multiple of 16 that divides 256
  uint64_t layer_offset;  // bytes from a group's first layer to this one
  int32_t kv_heads;
  int32_t head_dim;  // a multiple of 16, at most 256
};

enum class NormOf : int32_t { kNone, kRms, kLayer };
struct NormArgs {
  NormOf kind;
  float epsilon;
  const float* weight;
  const float* bias;  // of kLayer; may be null
};

// x[r] = embedding of a row's token.
struct EmbedArgs {
  const RowPlace* rows;
  const int32_t* earlier;     // ids sampled in the step before; may be null
  const uint16_t* table;      // image, [vocabulary][dim]
  const uint16_t* positions;  // image, [positions][dim]; null: none
  int32_t position_offset;
  float scale;
  float* x;  // [count][dim]
  int32_t count;
  int32_t dim;
};

// A row for a product: bf16 of the norm, the padding of k +0.
struct NormRowsArgs {
  const float* x;  // rows of n, x_stride apart
  int64_t x_stride;
  const int32_t* source;  // out row r is of row source[r]; null: r
  NormArgs norm;
  int32_t count;
  int32_t n;
  uint16_t* image;  // [count][n]; may be null
  float* values;    // [count][n] before rounding; may be null
};

// out[r][j] = x[r] w[j], for j < n; or adds it, one addition each.
struct GemmArgs {
  const uint16_t* weights;  // image, [n][k]
  const uint16_t* x;        // image, [rows][k]
  float* out;               // row 0
  int64_t out_stride;
  int32_t rows;
  int32_t n;
  int32_t k;
  int32_t accumulate;  // not 0: out = out + product
  // Which kernel and tile, from 1 on (Gpu::product_cases()); 0: what should be fastest. Bits do not depend on
  // it.
  int32_t tile;
};

// Bias, norm, rope and the factor of Q; Q to where attention reads it, K and V into their blocks.
struct FinishQkvArgs {
  const float* qkv;  // [count][(heads + 2 kv_heads) * head_dim]
  const RowPlace* rows;
  const float* bias;    // of a whole row; may be null
  const float* q_norm;  // null: no norms
  const float* k_norm;
  int32_t norm_of_row;  // not 0: over all heads together
  float norm_epsilon;
  const float* cos;  // [position][half]
  const float* sin;
  int32_t half;  // pairs that turn; 0: none
  int32_t heads;
  uint16_t* q;  // [count][heads][head_dim]
  KvLayer kv;
  int32_t count;
};

// Tokens of one block, one behind the other, whose X is kept, or was, and rows of an image for them.
struct XRun {
  uint64_t x;  // of the whole block in one layer: bytes from the beginning of the memory of all frames
  KvPlace to;  // of K and V that are made of it
  uint32_t first_position;
  uint32_t tokens;
  int32_t first_row;
  uint32_t slice;  // if it is left out, nothing happens
};

// X of each run: from rows of an image to where it is kept, or back.
struct CopyXArgs {
  const XRun* runs;  // [count]
  const SlicePlace* slices;
  std::byte* memory;
  uint64_t layer_offset;  // bytes, added to each `x`
  uint32_t block_tokens;
  uint16_t* image;   // [rows][dim]
  int32_t to_image;  // not 0: that way; the padding of k is +0
  int32_t count;
  int32_t dim;
};

// What FinishQkvArgs does with K and V, for rows of the product of K and V alone, each by its own place.
struct FinishKvArgs {
  const float* product;  // [rows][stride], K from column first_k on, V behind it
  int64_t stride;
  int32_t first_k;
  const XRun* runs;     // [count]
  const float* bias;    // of K and V; may be null
  const float* k_norm;  // null: no norm
  int32_t norm_of_row;
  float norm_epsilon;
  const float* cos;
  const float* sin;
  int32_t half;
  KvLayer kv;  // without its tables
  int32_t count;
};

// Some rows of one slice, at consecutive positions, and a leaf that at least one of them attends to.
struct LeafWork {
  int32_t first_row;
  int32_t rows;
  int32_t leaf;
};
struct LeafArgs {
  const LeafWork* work;  // [count]
  const uint16_t* q;     // [row][heads][head_dim]
  const RowPlace* rows;
  float* partials;  // [record][heads][2 + head_dim]: m, l, o
  KvLayer kv;
  int32_t heads;
  int32_t window;  // positions, a row's own included; 0: all
  Cap cap;         // of scores in powers of 2
  int32_t count;
  // Bits depend on neither. Rows of the largest piece of work; 0: 1. Blocks that run at once; 0: any number.
  int32_t most_rows;
  int32_t most_blocks;

  // Whether its kernel is that for many queries, which heads of some sizes have.
  constexpr bool has_many_queries() const {
    return has_many_queries(most_rows, heads / kv.kv_heads, kv.head_dim);
  }
  static constexpr bool has_many_queries(int32_t most_rows, int32_t queries_per_kv, int32_t head_dim) {
    constexpr int32_t kFew = 16;
    const bool has_kernel = head_dim == 64 || head_dim == 80 || head_dim == 96 || head_dim == 128;
    return has_kernel && most_rows * queries_per_kv > kFew;
  }
};

struct MergeArgs {
  const float* partials;
  const RowPlace* rows;
  const SlicePlace* slices;
  uint16_t* image;  // [count][heads * head_dim]
  int32_t heads;
  int32_t head_dim;
  int32_t window;
  int32_t count;
};

enum class Activate : int32_t { kSilu, kGelu, kRelu };
// What the feed-forward's second product takes.
struct ActivateArgs {
  Activate kind;
  const float* in;    // [count][2 n], gate first; of kRelu [count][n]
  const float* bias;  // of kRelu: [n]; may be null
  uint16_t* image;    // [count][n]
  int32_t count;
  int32_t n;
};

// x[r] = x[r] + branch(y[r]).
struct AddBranchArgs {
  const float* y;     // [count][n]
  const float* bias;  // may be null
  NormArgs norm;
  float scale;
  float* x;  // [count][n]
  int32_t count;
  int32_t n;
};

struct DrawPlace {
  float factor;   // log2(e) / temperature; 0: the largest logit
  int32_t top_k;  // 0: all
  double top_p;   // (0, 1]
  uint64_t bits;  // random_bits(seed, 0, position)
};
struct DrawArgs {
  float* logits;  // [count][vocabulary]; finished in place
  float scale;    // of logits
  Cap cap;
  const DrawPlace* draws;  // [count]
  int32_t* tokens;         // [count]
  int32_t count;
  int32_t vocabulary;  // below 2^23
};

}  // namespace kvasir::ops::gpu
