// Every operation of the GPU numerics once in scalars: what the kernels and the host twin compute, bit for
// bit.
//
// Operands of products and what the cache holds are bf16; every other value is f32, and is rounded to bf16
// where it becomes an operand and nowhere else. So kernels may fuse operations, and no bit changes. Matrices
// are row-major without padding. Elements are bf16 as uint16_t. Additions and products are rounded one by
// one, where it does not say fma; division and root are correctly rounded. "Not a number" is that, whatever
// its bits. docs/gpu.md gives each rule's reason. Pure and thread-safe; slow. REQUIRES: the thread keeps
// subnormals (KeepSubnormals in ops/cpu/isa.h)
#pragma once

#include <cstdint>

#include "ops/leaf_run.h"

namespace kvasir::ops::reference {

// Partial sums of a norm: element i belongs to partial i mod 256.
constexpr int64_t kNormPartials = 256;

// ---------------------------------------------------------------- products

// out[i][j] = sum over k of x[i][k] w[j][k]: a chain of fused16 from +0, 16 k at a time, ascending; where k
// is no multiple of 16, the last step is filled up with +0 in both. x: [rows][k], w: [n][k], out: [rows][n]
void gemm(const uint16_t* x, const uint16_t* w, int64_t rows, int64_t n, int64_t k, float* out);

// ---------------------------------------------------------------- functions of one value

// 2^x, relative error below 2e-7. t = min(x, 127) + 1.5 2^23, n = t - 1.5 2^23, r = min(x, 127) - n; a
// polynomial of degree 5 in r by fma, its constant term 1; times 2^n. So exp2(0) is 1. +0 below -126,
// -infinity included.
float exp2(float x);
// limit * tanh(x / limit), as limit * (1 - 2 / (1 + exp2(x * factor))).
struct Cap {
  float limit = 0;   // 0: none
  float factor = 0;  // 2 log2(e) / limit
};
float cap(float x, const Cap& with);
// Of values in their own units, such as logits; and of scores, which are in powers of 2: limit is log2(e)
// times `limit`, the factor 2 / limit. Each number is made in double and rounded once. 0: none.
Cap cap_of(float limit);
Cap score_cap_of(float limit);
// gate / (1 + exp2(gate * -log2(e)))
float silu(float gate);
// gate / (1 + exp2(gate * fma(gate * gate, c3, c1))): GELU by tanh. c1 = -2 log2(e) sqrt(2 / pi), c3 =
// 0.044715 c1
float gelu(float gate);
float relu(float x);

// ---------------------------------------------------------------- rows

// To nearest even; see f32_to_bf16.
void round_row(const float* x, int64_t n, uint16_t* out);

// x = row * scale (where scale is not 1), and then + position (where there is one). out: [n]
void embed(const uint16_t* row, float scale, const uint16_t* position, int64_t n, float* out);

enum class NormKind : uint8_t { kRms, kLayer };
// weight: null: no norm. bias: of kLayer; may be null.
struct Norm {
  NormKind kind = NormKind::kRms;
  const float* weight = nullptr;  // [n]
  const float* bias = nullptr;    // [n]
  float epsilon = 0;
};
// Sums go into 256 partials, ascending, which are added as (0+128, 1+129, ...), then (0+64, ...) down to
// (0+1).
//   kRms    (x * inv) * weight; inv = 1 / sqrt(sum / n + epsilon), sum of squares by fma(x, x, partial)
//   kLayer  ((x - mean) * inv) * weight + bias; mean = sum / n, then the sum of the squares of x - mean, by
//   fma
// Without a weight: a copy. out may be x.
void normalise(const Norm& norm, const float* x, int64_t n, float* out);

// What a product takes: bf16 of normalise().
void normalise_to_operand(const Norm& norm, const float* x, int64_t n, uint16_t* out);

// How attention's or the feed-forward's output comes to the residual stream, in this order.
struct Branch {
  const float* bias = nullptr;  // [n]; null: none
  Norm post_norm;
  float scale = 1;  // 1: no product
};
// x = x + branch(y), one addition. y: what the product gives.
void add_to_residual(const Branch& branch, const float* y, int64_t n, float* x);

// bf16 of what the feed-forward's second product takes. gate_up: [2 n], gate first.
void silu_mul(const float* gate_up, int64_t n, uint16_t* out);
void gelu_mul(const float* gate_up, int64_t n, uint16_t* out);
// bf16(relu(up + bias)); bias may be null.
void relu_bias(const float* up, const float* bias, int64_t n, uint16_t* out);

// ---------------------------------------------------------------- Q, K and V

// Rotates pairs (2i, 2i+1) of the first 2 * half values: y0 = fma(x0, c, -(x1 * s)), y1 = fma(x1, c, x0 * s).
void rope(const float* cos, const float* sin, int64_t half, float* head);

struct QkvFinish {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  const float* bias = nullptr;    // [q, k, v as in a row]; null: none
  const float* q_norm = nullptr;  // null: no norms
  const float* k_norm = nullptr;
  bool norm_of_row = false;  // one norm over all heads, its weight as long; else over each head, [head_dim]
  float norm_epsilon = 0;
};
// One row of QKV's product (q: heads, k: kv_heads, v: kv_heads, each of head_dim), in this order: bias,
// RMSNorm of q and k, rope (half 0: none), q * q_factor, bf16. half: pairs that turn. q_factor: see
// query_factor().
void finish_qkv(const QkvFinish& how, const float* qkv, const float* cos, const float* sin, int64_t half,
                float q_factor, uint16_t* q, uint16_t* k, uint16_t* v);
// What q is multiplied by, so that scores are in powers of 2: scale * log2(e), in double, rounded once.
float query_factor(double scale);

// ---------------------------------------------------------------- attention

// A partial result of one query head: m, l, o[head_dim], f32.
constexpr int64_t partial_floats(int64_t head_dim) {
  return 2 + head_dim;
}

// One query head over positions [first, end) of one leaf of 256; first < end. k, v: row 0 is the leaf's first
// position, and rows are `stride` elements apart.
//   s = chain of fused16 over head_dim, from +0; then cap() where there is one
//   m = the largest s; e = bf16(exp2(s - m)), +0 outside of [first, end)
//   l = the sum of e in 8 partials by position mod 8, ascending; ((0+1) + (2+3)) + ((4+5) + (6+7))
//   o = chain of fused16 over the leaf's positions, 16 a step, from +0; V counts as +0 where it is not read
// A step whose e are all +0 leaves o as it is, so it may be left out. head_dim: a multiple of 16.
void leaf(const uint16_t* q, const uint16_t* k, const uint16_t* v, int64_t stride, int64_t head_dim,
          int64_t first, int64_t end, const Cap& with, float* partial);

// The middle of leaf(): from scores, of which those of [first, end) count and are capped in place, to e [256]
// (only [first, end) is written) and to m and l, the first two floats of a partial result.
void weigh_scores(float* scores, int64_t first, int64_t end, const Cap& with, uint16_t* e, float* partial);

// m = max(m1, m2), a = exp2(m1 - m), b = exp2(m2 - m), l = fma(l1, a, l2 * b), o = fma(o1, a, o2 * b).
// out may be left or right.
void merge(const float* left, const float* right, int64_t head_dim, float* out);

// The leaves of positions [first, end). REQUIRES: 0 <= first < end
LeafRun leaves_of(int64_t first, int64_t end);

// The aligned tree of ops/attention_tree.h over the leaves of a run: its subtrees, folded left to right.
// leaves: [run.leaves()][partial_floats(head_dim)]; they are overwritten, and the first becomes the result.
void merge_leaves(LeafRun run, int64_t head_dim, float* leaves);

// bf16(o * (1 / l))
void finish_attention(const float* partial, int64_t head_dim, uint16_t* out);

// One query head over positions [first, end) of a history: its leaves, merged and finished. k, v: row 0 is
// position 0.
void attend(const uint16_t* q, const uint16_t* k, const uint16_t* v, int64_t stride, int64_t head_dim,
            int64_t first, int64_t end, const Cap& with, uint16_t* out);

// ---------------------------------------------------------------- logits and the draw

// logit * scale (where scale is not 1), then cap() where there is one. In place.
void finish_logits(float scale, const Cap& with, int64_t n, float* logits);

struct Draw {
  float temperature = 0;  // 0: the largest logit
  int64_t top_k = 0;      // 0: all
  double top_p = 1;       // in (0, 1]
  uint64_t bits = 0;      // random_bits(seed, 0, position)
};
// The id that is drawn. A logit that is not a number counts as -infinity. Ties go to the smaller id; the
// order of candidates is by logit, ties by id.
//   weight = floor(exp2((logit - largest) * f) * 2^40), an integer; f = min(log2(e) / temperature, the
//   largest f32),
//            in double, rounded once
//   kept   = the first top_k in that order; of those the fewest first ones whose weights reach
//            ceil(top_p * their sum)
//   drawn  = the smallest kept id such that the weights of the kept ids up to it exceed floor(bits * S /
//   2^64),
//            where S is the sum of the kept
// Sums are of integers, hence exact, and the order in which they are made is free. Where the largest logit is
// not finite, it is drawn. REQUIRES: 0 < n < 2^23.
int32_t draw(const float* logits, int64_t n, const Draw& how);
// f of a temperature; 0: the largest logit is drawn. And draw() by f, whatever the temperature.
float draw_factor(float temperature);
int32_t draw(const float* logits, int64_t n, const Draw& how, float factor);

}  // namespace kvasir::ops::reference
