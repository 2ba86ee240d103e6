// The table of an instruction set's kernels; included last, when all of them are defined.
#pragma once

namespace kvasir::ops {
namespace {

constexpr KernelTable kTable = {quantize_row,
                                gemm_int8,
                                gemm_f32,
                                rms_norm,
                                layer_norm,
                                rope,
                                silu_mul,
                                gelu_mul,
                                cap,
                                add,
                                scale,
                                exp_shifted,
                                softmax_stats,
                                store_k,
                                store_v,
                                attention_leaf,
                                merge,
                                finalize,
                                round_row_bf16,
                                gemm_bf16,
                                add_scaled,
                                clamped_swiglu,
                                sigmoid_mul,
                                convolve,
                                delta_rule};

}  // namespace
}  // namespace kvasir::ops
