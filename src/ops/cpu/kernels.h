// The CPU kernels: one object per instruction set, all with the same bits.
//
// Every function is pure (it writes its outputs and nothing else) and thread-safe; threads split work by
// giving each call its own rows, panels or heads, which never changes a bit. Rows are contiguous floats.
// Outputs do not overlap inputs unless said. "chain" = fp32 fma, one after the other, from +0. "tree" = 16
// values added as (0+8, 1+9, ...), then (0+4, ...), (0+2, ...), (0+1).
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cpu/isa.h"
#include "ops/cpu/views.h"
#include "ops/kv_layout.h"

namespace kvasir::ops {

struct KernelTable;

// Bytes of the four arrays of a QuantizedRows, each rounded up to 64, and the view over such a buffer
// (q first, then scales, sums and moments). REQUIRES: k % 32 == 0, buffer aligned to 64.
size_t quantized_rows_bytes(int64_t rows, int64_t k);
QuantizedRows make_quantized_rows(void* buffer, int64_t rows, int64_t k);

// Bytes from one row of floats (f32 or bf16) to the next that serve the products best: an odd number of lines
// of 64, so that the same element of the rows of a tile does not fall into one set of the cache.
int64_t row_stride_bytes(int64_t row_bytes);
// Bytes of rows in bf16 with that stride, and the view over such a buffer. REQUIRES: buffer aligned to 64
size_t bf16_rows_bytes(int64_t rows, int64_t k);
Bf16Rows make_bf16_rows(void* buffer, int64_t rows, int64_t k);

// Floats of one partial result of attention for `heads` query heads: [m: heads][l: heads][o:
// heads][head_dim].
int64_t partial_floats(int64_t heads, int64_t head_dim);

class Kernels {
 public:
  explicit Kernels(const KernelTable* table, IsaClass isa) : table_(table), isa_(isa) {}

  IsaClass isa() const { return isa_; }

  // Rows [row_begin, row_end) of x into out. Per group of 32: d = f16(amax / 127), at most 65504;
  // q = round to even(x * (1 / d)) in -127..127, all zero where d is; NaN counts as -127 and is not in amax.
  // x: row 0; x_stride in floats.
  void quantize_rows(const float* x, int64_t x_stride, const QuantizedRows& out, int64_t row_begin,
                     int64_t row_end) const;
  // Fills scales, sums and moments from rows.q and the scales as f16, [rows][k / 32]: for rows that come from
  // a cache.
  void complete_rows(const uint16_t* d, const QuantizedRows& rows, int64_t row_begin, int64_t row_end) const;

  // Rows [row_begin, row_end) of x into out, each element rounded as f32_to_bf16 does, the padding +0.
  // x: row 0; x_stride in floats.
  void round_rows_bf16(const float* x, int64_t x_stride, const Bf16Rows& out, int64_t row_begin,
                       int64_t row_end) const;

  // C[r][c] for rows [row_begin, row_end) and the columns of panels [panel_begin, panel_end) that exist.
  // Per output, groups ascending: acc = fma(S*da, I, acc), and with a minimum then acc = fma(B, moment, acc);
  // I is the sum of weight values times q, moment = da * sum q, S and B as dequantize_row has them. Types
  // with a scale for each 16 k: S is d, and the scales are factors inside I; kQ2K then adds fma(-dmin*da, M,
  // acc), M the sum of q times the factors of its minima. accumulate: C = C_old + acc, one addition. c: row
  // 0, column 0; ldc in floats. a and w agree on k. REQUIRES: is_quantized(w.type)
  void gemm_int8(const QuantizedRows& a, int64_t row_begin, int64_t row_end, const PackedMatrix& w,
                 int64_t panel_begin, int64_t panel_end, float* c, int64_t ldc, bool accumulate) const;
  // The same with f32 rows (a: row 0; lda in floats) and weights dequantised exactly as dequantize_row does:
  // one chain per output, k ascending. Any weight type.
  void gemm_f32(const float* a, int64_t lda, int64_t row_begin, int64_t row_end, const PackedMatrix& w,
                int64_t panel_begin, int64_t panel_end, float* c, int64_t ldc, bool accumulate) const;

  // The same with rows and weights in bf16. One chain per output over pairs of k, ascending, the odd element
  // of each pair first: acc = fma(x[2j], w[2j], fma(x[2j+1], w[2j+1], acc)); an odd k ends with a pair whose
  // second elements are +0. Not a number is that, whatever its bits.
  // REQUIRES: w.type == kBf16
  void gemm_bf16(const Bf16Rows& a, int64_t row_begin, int64_t row_end, const PackedMatrix& w,
                 int64_t panel_begin, int64_t panel_end, float* c, int64_t ldc, bool accumulate) const;

  // y = (x * inv) * weight, inv = 1 / sqrt(sum / n + eps); sum of squares in 16 chains, then the tree.
  // out may be x.
  void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* out) const;
  // y = ((x - mean) * inv) * weight + bias, inv = 1 / sqrt(sum / n + eps); mean and the sum of squares of
  // x - mean in 16 chains each, then the tree. bias may be null; out may be x.
  void layer_norm(const float* x, const float* weight, const float* bias, int64_t n, float eps,
                  float* out) const;
  // Rotates pairs (2i, 2i+1) of the first 2 * half dimensions of each head, in place: x [heads][head_dim],
  // cos and sin [half] (one row of a RopeTable). y0 = fma(x0, c, -(x1*s)), y1 = fma(x1, c, x0*s).
  void rope(float* x, int64_t heads, int64_t head_dim, const float* cos, const float* sin,
            int64_t half) const;
  // out = (gate / (1 + exp(-gate))) * up. out may be gate or up.
  void silu_mul(const float* gate, const float* up, int64_t n, float* out) const;
  // out = (gate / (1 + exp(gate * (-2 sqrt(2/pi) - 2 sqrt(2/pi) 0.044715 gate^2)))) * up: GELU by tanh. out
  // may be gate or up.
  void gelu_mul(const float* gate, const float* up, int64_t n, float* out) const;
  // out = (g / (1 + exp(g * -slope))) * (u + 1), g = min(gate, limit), u = up from -limit to limit. out may
  // be gate or up.
  void clamped_swiglu(const float* gate, const float* up, float slope, float limit, int64_t n,
                      float* out) const;
  // out = x * (1 / (1 + exp(-gate))). out may be gate or x.
  void sigmoid_mul(const float* gate, const float* x, int64_t n, float* out) const;
  // A causal convolution of 16 channels over rows, one after the other: y = s / (1 + exp(-s)), s one chain
  // over the taps, the oldest input first. REQUIRES: taps >= 1
  void convolve(const ConvolutionArgs& args) const;
  // The gated delta rule for 16 * units values of a head over rows, one after the other. For each value, with
  // S its column of the state: m = the chain over keys of (decay * S[i]) * k[i]; d = (v - m) * beta;
  // S[i] = fma(k[i], d, decay * S[i]); out = the chain over keys of S[i] * q[i].
  void delta_rule(const DeltaRuleArgs& args) const;
  // out = limit * tanh(x / limit), as limit * (1 - 2 / (1 + exp(x * (2 / limit)))). out may be x.
  void cap(const float* x, float limit, int64_t n, float* out) const;
  // out = a + b. out may be a or b.
  void add(const float* a, const float* b, int64_t n, float* out) const;
  // out = x * factor. out may be x.
  void scale(const float* x, float factor, int64_t n, float* out) const;
  // out = fma(x, factor, out).
  void add_scaled(const float* x, float factor, int64_t n, float* out) const;
  // exp(x - shift): exp(0) = 1 and exp(-inf) = +0 exactly, +0 below -87, exp(88) above 88, relative error
  // below 2e-7. out may be x.
  void exp_shifted(const float* x, float shift, int64_t n, float* out) const;
  // The maximum of a row and the sum of exp(x - max): 16 partials by index mod 16, then the tree.
  // REQUIRES: n > 0
  void softmax_stats(const float* x, int64_t n, float* max, float* sum) const;

  // Rounds one token's K and V rows ([kv_heads][head_dim] f32, K after RoPE) to the cache type and stores
  // them for one layer. token is the index in the block. Either plane may be null (then its row is not read).
  // Two threads may write different tokens or layers of one frame. kBf16: to nearest even, NaN stays NaN.
  // kQ8_0: as quantize_rows says, with the row of one KV head as the group. REQUIRES: is_valid(shape), 0 <=
  // layer < layers, 0 <= token < block_tokens. With a value_dim there is K alone: V's row and plane are not
  // looked at.
  void write_kv(const KvShape& shape, int64_t layer, int64_t token, const float* k_row, const float* v_row,
                void* k_plane, void* v_plane) const;
  // (m, l, o) of every query row and head over its valid positions of one leaf; o is not divided by l.
  // Scores are chains over head_dim, then capped as cap() does if there is a cap; m their maximum; e = exp(s
  // - m); l their sum in 16 partials by position mod 16, then the tree; o chains over positions. A row's
  // result does not depend on the other rows. kQ8_0: the chains are over the int8 values; a score is its
  // chain times the position's K scale, and a position's weight in o is e times its V scale, each product
  // rounded once.
  void attention_leaf(const AttentionLeafArgs& args) const;
  // out = left + right, as partial records: m = max(m1, m2), a = exp(m1 - m), b = exp(m2 - m),
  // l = fma(l1, a, l2*b), o = fma(o1, a, o2*b). out may be left or right.
  void merge(const float* left, const float* right, int64_t heads, int64_t head_dim, float* out) const;
  // out [heads][head_dim] = o / l. sinks: [heads], or null. A head's sink is merged before, as a part with m
  // the sink, l = 1, o = 0: m' = max(m, sink), a = exp(m - m'), o = o*a, l = fma(l, a, exp(sink - m')).
  void finalize(const float* partial, const float* sinks, int64_t heads, int64_t head_dim, float* out) const;

 private:
  const KernelTable* table_;
  IsaClass isa_;
};

}  // namespace kvasir::ops
