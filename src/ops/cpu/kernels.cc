// The checked front of the kernels: arguments, and the seeded faults, which stay out of the hot code.
#include "ops/cpu/kernels.h"

#include <vector>

#include "base/check.h"
#include "base/mutant.h"
#include "base/units.h"
#include "ops/cpu/faults.h"
#include "ops/cpu/kernel_table.h"
#include "ops/cpu/packed_matrix.h"

namespace kvasir::ops {
namespace {

constexpr int64_t kAlign = 64;

// What every product has in common, checked: rows of length k.
GemmArgs product(const PackedMatrix& w, int64_t k, int64_t row_begin, int64_t row_end, int64_t panel_begin,
                 int64_t panel_end, float* c, int64_t ldc, bool accumulate) {
  KV_CHECK(w.k == k && k > 0, "the rows have k={}, the matrix {}", k, w.k);
  KV_CHECK(row_begin >= 0 && row_begin <= row_end, "rows [{}, {})", row_begin, row_end);
  KV_CHECK(panel_begin >= 0 && panel_begin <= panel_end && panel_end <= panel_count(w.n),
           "panels [{}, {}) of {}", panel_begin, panel_end, panel_count(w.n));
  GemmArgs args;
  args.row_begin = row_begin;
  args.row_end = row_end;
  args.w = w;
  args.panel_stride = static_cast<int64_t>(panel_bytes(w.type, w.k));
  args.panel_begin = panel_begin;
  args.panel_end = panel_end;
  args.c = c;
  args.ldc = ldc;
  args.accumulate = accumulate;
  return args;
}

}  // namespace

size_t quantized_rows_bytes(int64_t rows, int64_t k) {
  const int64_t groups = k / kGroup;
  return static_cast<size_t>(round_up(rows * k, kAlign) + 3 * round_up(rows * groups * 4, kAlign));
}

QuantizedRows make_quantized_rows(void* buffer, int64_t rows, int64_t k) {
  KV_CHECK(rows >= 0 && k > 0 && k % kGroup == 0, "rows={} k={}", rows, k);
  KV_CHECK(reinterpret_cast<uintptr_t>(buffer) % kAlign == 0, "the buffer is not aligned to {} bytes",
           kAlign);
  auto* q = static_cast<int8_t*>(buffer);
  const int64_t array = round_up(rows * (k / kGroup) * 4, kAlign);
  int8_t* scales = q + round_up(rows * k, kAlign);
  return {q,
          reinterpret_cast<float*>(scales),
          reinterpret_cast<int16_t*>(scales + array),
          reinterpret_cast<float*>(scales + 2 * array),
          rows,
          k};
}

int64_t row_stride_bytes(int64_t row_bytes) {
  return (ceil_div(row_bytes, kAlign) | 1) * kAlign;
}

size_t bf16_rows_bytes(int64_t rows, int64_t k) {
  return static_cast<size_t>(rows * row_stride_bytes(round_up<int64_t>(k, 2) * 2));
}

Bf16Rows make_bf16_rows(void* buffer, int64_t rows, int64_t k) {
  KV_CHECK(rows >= 0 && k > 0, "rows={} k={}", rows, k);
  KV_CHECK(reinterpret_cast<uintptr_t>(buffer) % kAlign == 0, "the buffer is not aligned to {} bytes",
           kAlign);
  return {static_cast<uint16_t*>(buffer), rows, k, row_stride_bytes(round_up<int64_t>(k, 2) * 2) / 2};
}

int64_t partial_floats(int64_t heads, int64_t head_dim) {
  return heads * (head_dim + 2);
}

void Kernels::quantize_rows(const float* x, int64_t x_stride, const QuantizedRows& out, int64_t row_begin,
                            int64_t row_end) const {
  KV_CHECK(row_begin >= 0 && row_begin <= row_end && row_end <= out.rows && out.k % kGroup == 0,
           "rows [{}, {}) of {}, k={}", row_begin, row_end, out.rows, out.k);
  const int64_t groups = out.k / kGroup;
  for (int64_t r = row_begin; r < row_end; ++r) {
    table_->quantize_row(x + r * x_stride, out.k, out.q + r * out.k, out.scales + r * groups,
                         out.sums + 2 * r * groups, out.moments + r * groups);
  }
  if (mutant(Mutant::kBatchScale) || mutant(Mutant::kScaleUnrounded)) {
    quantize_with_fault(x, x_stride, out, row_begin, row_end);
  }
}

void Kernels::round_rows_bf16(const float* x, int64_t x_stride, const Bf16Rows& out, int64_t row_begin,
                              int64_t row_end) const {
  KV_CHECK(row_begin >= 0 && row_begin <= row_end && row_end <= out.rows, "rows [{}, {}) of {}", row_begin,
           row_end, out.rows);
  for (int64_t r = row_begin; r < row_end; ++r) {
    table_->round_row_bf16(x + r * x_stride, out.k, out.x + r * out.stride);
  }
}

void Kernels::complete_rows(const uint16_t* d, const QuantizedRows& rows, int64_t row_begin,
                            int64_t row_end) const {
  KV_CHECK(row_begin >= 0 && row_begin <= row_end && row_end <= rows.rows, "rows [{}, {}) of {}", row_begin,
           row_end, rows.rows);
  const int64_t groups = rows.k / kGroup;
  for (int64_t g = row_begin * groups; g < row_end * groups; ++g) {
    int32_t sums[2] = {};
    for (int64_t i = 0; i < kGroup; ++i) sums[i / (kGroup / 2)] += rows.q[g * kGroup + i];
    rows.sums[2 * g] = static_cast<int16_t>(-sums[0] - sums[1]);
    rows.sums[2 * g + 1] = static_cast<int16_t>(-sums[1]);
    rows.scales[g] = f16_to_f32(d[g]);
    rows.moments[g] = rows.scales[g] * static_cast<float>(sums[0] + sums[1]);
  }
}

void Kernels::gemm_int8(const QuantizedRows& a, int64_t row_begin, int64_t row_end, const PackedMatrix& w,
                        int64_t panel_begin, int64_t panel_end, float* c, int64_t ldc,
                        bool accumulate) const {
  GemmArgs args = product(w, a.k, row_begin, row_end, panel_begin, panel_end, c, ldc, accumulate);
  KV_CHECK(is_quantized(w.type) && row_end <= a.rows, "type={} rows={} of {}", weight_type_name(w.type),
           row_end, a.rows);
  args.a = a;
  args.groups = a.k / kGroup;
  if (mutant(Mutant::kKTailDropped) && a.rows == 1) --args.groups;
  if (mutant(Mutant::kScaleOfNextGroup) && a.rows == 1) {
    gemm_int8_with_fault(*table_, args);
  } else {
    table_->gemm_int8(args);
  }
}

void Kernels::gemm_f32(const float* a, int64_t lda, int64_t row_begin, int64_t row_end, const PackedMatrix& w,
                       int64_t panel_begin, int64_t panel_end, float* c, int64_t ldc, bool accumulate) const {
  GemmArgs args = product(w, w.k, row_begin, row_end, panel_begin, panel_end, c, ldc, accumulate);
  args.af = a;
  args.lda = lda;
  table_->gemm_f32(args);
}

void Kernels::gemm_bf16(const Bf16Rows& a, int64_t row_begin, int64_t row_end, const PackedMatrix& w,
                        int64_t panel_begin, int64_t panel_end, float* c, int64_t ldc,
                        bool accumulate) const {
  GemmArgs args = product(w, a.k, row_begin, row_end, panel_begin, panel_end, c, ldc, accumulate);
  KV_CHECK(w.type == WeightType::kBf16 && row_end <= a.rows, "type={} rows={} of {}",
           weight_type_name(w.type), row_end, a.rows);
  args.ab = a.x;
  args.lda = a.stride;
  if (mutant(Mutant::kBf16PairSwapped) && a.rows == 1) {
    gemm_bf16_with_fault(*table_, args);
  } else {
    table_->gemm_bf16(args);
  }
}

void Kernels::rms_norm(const float* x, const float* weight, int64_t n, float eps, float* out) const {
  table_->rms_norm(x, weight, n, eps, out);
}

void Kernels::rope(float* x, int64_t heads, int64_t head_dim, const float* cos, const float* sin,
                   int64_t half) const {
  KV_CHECK(half >= 0 && 2 * half <= head_dim, "half={} head_dim={}", half, head_dim);
  table_->rope(x, heads, head_dim, cos, sin, half);
}

void Kernels::silu_mul(const float* gate, const float* up, int64_t n, float* out) const {
  table_->silu_mul(gate, up, n, out);
}

void Kernels::gelu_mul(const float* gate, const float* up, int64_t n, float* out) const {
  table_->gelu_mul(gate, up, n, out);
}

void Kernels::clamped_swiglu(const float* gate, const float* up, float slope, float limit, int64_t n,
                             float* out) const {
  table_->clamped_swiglu(gate, up, slope, limit, n, out);
}

void Kernels::sigmoid_mul(const float* gate, const float* x, int64_t n, float* out) const {
  table_->sigmoid_mul(gate, x, n, out);
}

void Kernels::convolve(const ConvolutionArgs& args) const {
  KV_CHECK(args.taps >= 1, "taps={}", args.taps);
  table_->convolve(args);
}

void Kernels::delta_rule(const DeltaRuleArgs& args) const {
  KV_CHECK(args.keys >= 1, "keys={}", args.keys);
  table_->delta_rule(args);
}

void Kernels::cap(const float* x, float limit, int64_t n, float* out) const {
  KV_CHECK(limit > 0, "limit={}", limit);
  table_->cap(x, limit, n, out);
}

void Kernels::layer_norm(const float* x, const float* weight, const float* bias, int64_t n, float eps,
                         float* out) const {
  table_->layer_norm(x, weight, bias, n, eps, out);
}

void Kernels::add(const float* a, const float* b, int64_t n, float* out) const {
  table_->add(a, b, n, out);
}

void Kernels::scale(const float* x, float factor, int64_t n, float* out) const {
  table_->scale(x, factor, n, out);
}

void Kernels::add_scaled(const float* x, float factor, int64_t n, float* out) const {
  table_->add_scaled(x, factor, n, out);
}

void Kernels::exp_shifted(const float* x, float shift, int64_t n, float* out) const {
  table_->exp_shifted(x, shift, n, out);
}

void Kernels::softmax_stats(const float* x, int64_t n, float* max, float* sum) const {
  KV_CHECK(n > 0, "n={}", n);
  table_->softmax_stats(x, n, max, sum);
}

void Kernels::write_kv(const KvShape& shape, int64_t layer, int64_t token, const float* k_row,
                       const float* v_row, void* k_plane, void* v_plane) const {
  KV_CHECK(is_valid(shape), "layers={} kv_heads={} head_dim={} block={}", shape.layers, shape.kv_heads,
           shape.head_dim, shape.block_tokens);
  KV_CHECK(layer >= 0 && layer < shape.layers && token >= 0 && token < shape.block_tokens,
           "layer={} of {}, token={} of {}", layer, shape.layers, token, shape.block_tokens);
  const size_t run = static_cast<size_t>(token / kLanes) * kv_run_bytes(shape);
  const bool fault = mutant(Mutant::kKvScaleUnrounded) || mutant(Mutant::kKvScaleShared);
  for (int64_t head = 0; head < shape.kv_heads; ++head) {
    const size_t at = kv_tile_offset(shape, layer, head) + run;
    const int64_t first = head * shape.head_dim;
    if (shape.value_dim > 0) {
      uint8_t* to = static_cast<uint8_t*>(k_plane) + at;
      table_->store_v(shape.type, k_row + first, shape.head_dim, token % kLanes, to);
      if (fault) store_kv_with_fault(shape, k_row + first, token % kLanes, false, to);
      continue;
    }
    if (k_plane != nullptr) {
      uint8_t* to = static_cast<uint8_t*>(k_plane) + at;
      table_->store_k(shape.type, k_row + first, shape.head_dim, token % kLanes, to);
      if (fault) store_kv_with_fault(shape, k_row + first, token % kLanes, true, to);
    }
    if (v_plane != nullptr) {
      uint8_t* to = static_cast<uint8_t*>(v_plane) + at;
      table_->store_v(shape.type, v_row + first, shape.head_dim, token % kLanes, to);
      if (fault) store_kv_with_fault(shape, v_row + first, token % kLanes, false, to);
    }
    if (mutant(Mutant::kKScaleForV) && k_plane != nullptr && v_plane != nullptr) {
      copy_scale_with_fault(shape, token % kLanes, static_cast<const uint8_t*>(k_plane) + at,
                            static_cast<uint8_t*>(v_plane) + at);
    }
  }
}

void Kernels::attention_leaf(const AttentionLeafArgs& args) const {
  KV_CHECK(args.rows >= 0 && args.heads > 0 && args.head_dim > 0 && args.head_dim % kLanes == 0,
           "rows={} heads={} head_dim={}", args.rows, args.heads, args.head_dim);
  KV_CHECK(args.value_dim >= 0 && args.value_dim % kLanes == 0 && args.value_dim <= args.head_dim &&
               (args.value_dim == 0 || args.head_dim <= kMostLatentRow),
           "value_dim={} head_dim={}", args.value_dim, args.head_dim);
  KV_CHECK(args.block_tokens > 0 && args.block_tokens % kLanes == 0 && kLeafTokens % args.block_tokens == 0,
           "block_tokens={}", args.block_tokens);
  KV_CHECK(args.next_tiles >= 0 && args.next_tiles * args.block_tokens <= kLeafTokens, "next_tiles={}",
           args.next_tiles);
  for (int64_t r = 0; r < args.rows; ++r) {
    const int32_t first = args.first ? args.first[r] : 0;
    KV_CHECK(first >= 0 && first < args.valid[r] && args.valid[r] <= kLeafTokens,
             "row {} has first={} valid={}", r, first, args.valid[r]);
  }
  if (mutant(Mutant::kLeafOffByOne)) {
    // A lone row, as in decode, misses its last position; rows of a chunk do not.
    AttentionLeafArgs shorter = args;
    std::vector<int32_t> valid(args.valid, args.valid + args.rows);
    if (args.rows == 1 && valid[0] > 1) --valid[0];
    shorter.valid = valid.data();
    table_->attention_leaf(shorter);
    return;
  }
  table_->attention_leaf(args);
  if (mutant(Mutant::kSumOrderByChunk)) resum_with_fault(*table_, args);
}

void Kernels::merge(const float* left, const float* right, int64_t heads, int64_t head_dim,
                    float* out) const {
  KV_CHECK(heads > 0 && head_dim % kLanes == 0, "heads={} head_dim={}", heads, head_dim);
  table_->merge(left, right, heads, head_dim, out);
}

void Kernels::finalize(const float* partial, const float* sinks, int64_t heads, int64_t head_dim,
                       float* out) const {
  KV_CHECK(heads > 0 && head_dim % kLanes == 0, "heads={} head_dim={}", heads, head_dim);
  table_->finalize(partial, sinks, heads, head_dim, out);
}

}  // namespace kvasir::ops
