// The entry points that each instruction set's file exports: one table of plain functions, arguments checked
// by the caller (kernels.cc). Data only, as views.h explains.
#pragma once

#include <cstdint>

#include "ops/cpu/views.h"

namespace kvasir::ops {

// Rows [row_begin, row_end) by panels [panel_begin, panel_end) of one product.
struct GemmArgs {
  QuantizedRows a;               // int8 products
  const float* af = nullptr;     // f32 products: row 0
  const uint16_t* ab = nullptr;  // bf16 products: row 0
  int64_t lda = 0;               // elements from one row of af or ab to the next
  int64_t row_begin = 0;
  int64_t row_end = 0;
  PackedMatrix w;
  int64_t panel_stride = 0;  // bytes
  int64_t groups = 0;        // K groups to sum over (int8 products)
  int64_t panel_begin = 0;
  int64_t panel_end = 0;
  float* c = nullptr;  // row 0, column 0
  int64_t ldc = 0;
  bool accumulate = false;
};

using GemmFunction = void (*)(const GemmArgs& args);

struct KernelTable {
  void (*quantize_row)(const float* x, int64_t k, int8_t* q, float* scales, int16_t* sums, float* moments);
  void (*gemm_int8)(const GemmArgs& args);
  void (*gemm_f32)(const GemmArgs& args);
  void (*rms_norm)(const float* x, const float* weight, int64_t n, float eps, float* out);
  void (*layer_norm)(const float* x, const float* weight, const float* bias, int64_t n, float eps,
                     float* out);
  void (*rope)(float* x, int64_t heads, int64_t head_dim, const float* cos, const float* sin, int64_t half);
  void (*silu_mul)(const float* gate, const float* up, int64_t n, float* out);
  void (*gelu_mul)(const float* gate, const float* up, int64_t n, float* out);
  void (*cap)(const float* x, float limit, int64_t n, float* out);
  void (*add)(const float* a, const float* b, int64_t n, float* out);
  void (*scale)(const float* x, float factor, int64_t n, float* out);
  void (*exp_shifted)(const float* x, float shift, int64_t n, float* out);
  void (*softmax_stats)(const float* x, int64_t n, float* max, float* sum);
  // One row of head_dim floats into its place in a run of 16 tokens; lane: the token's index there.
  void (*store_k)(KvType type, const float* row, int64_t head_dim, int64_t lane, uint8_t* run);
  void (*store_v)(KvType type, const float* row, int64_t head_dim, int64_t lane, uint8_t* run);
  void (*attention_leaf)(const AttentionLeafArgs& args);
  void (*merge)(const float* left, const float* right, int64_t heads, int64_t head_dim, float* out);
  void (*finalize)(const float* partial, const float* sinks, int64_t heads, int64_t head_dim, float* out);
  void (*round_row_bf16)(const float* x, int64_t k, uint16_t* out);
  void (*gemm_bf16)(const GemmArgs& args);
  void (*add_scaled)(const float* x, float factor, int64_t n, float* out);
  void (*clamped_swiglu)(const float* gate, const float* up, float slope, float limit, int64_t n, float* out);
  void (*sigmoid_mul)(const float* gate, const float* x, int64_t n, float* out);
  void (*convolve)(const ConvolutionArgs& args);
  void (*delta_rule)(const DeltaRuleArgs& args);
};

// What the dot-pair instruction adds to the AVX-512 kernels; to be called only where the CPU has it.
struct Bf16DotTable {
  void (*gemm_bf16)(const GemmArgs& args);
  // The instruction by itself, for the check in bf16_check.h: 16 lanes, a pair of bf16 in each dword of x, w.
  void (*dot_pairs)(const float* acc, const uint32_t* x, const uint32_t* w, float* out);
};

}  // namespace kvasir::ops

extern "C" {
extern const kvasir::ops::KernelTable kvasir_kernels_portable;
extern const kvasir::ops::KernelTable kvasir_kernels_avx2;
extern const kvasir::ops::KernelTable kvasir_kernels_avx512;
extern const kvasir::ops::Bf16DotTable kvasir_bf16_dot_avx512;
// gemm_int8 with AMX; to be called only where the CPU has it and the system lets this process use it.
extern const kvasir::ops::GemmFunction kvasir_gemm_int8_amx;
}
