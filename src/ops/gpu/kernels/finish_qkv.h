// From the product of Q, K and V to what attention reads.
#pragma once

#include "ops/gpu/device.h"
#include "ops/gpu/kernel_args.h"
#include "ops/gpu/kernels/kv_place.h"
#include "ops/gpu/kernels/row_norm.h"
#include "ops/gpu/layouts.h"

namespace kvasir::ops::gpu {

// A block of 256 threads takes a row, which is in shared memory meanwhile, in f32.
struct FinishQkv {
  static constexpr int kThreads = kRowThreads;
  static Shape shape(const FinishQkvArgs& a) {
    return {a.count, 1, kThreads, kScratchBytes + (a.heads + 2 * a.kv.kv_heads) * a.kv.head_dim * 4};
  }

  static KV_DEVICE void normalise_part(const FinishQkvArgs& a, const float* weight, int width, float* x,
                                       float* scratch) {
    if (a.norm_of_row == 0) {
      const int head_dim = a.kv.head_dim;
      for (int h = warp_index(); h * head_dim < width; h += kRowThreads / kWarp) {
        normalise_head(x + h * head_dim, head_dim, weight, a.norm_epsilon);
      }
      return;
    }
    const NormArgs norm = {NormOf::kRms, a.norm_epsilon, weight, nullptr};
    const RowNorm row = measure_row(norm, width, scratch, [&](int i) { return x[i]; });
    for (int i = thread_index(); i < width; i += kRowThreads) x[i] = normalised(norm, row, i, x[i]);
  }

  static KV_DEVICE void run(const FinishQkvArgs& a) {
    const RowPlace& place = a.rows[block_x()];
    const int head_dim = a.kv.head_dim;
    const int q_dim = a.heads * head_dim, kv_dim = a.kv.kv_heads * head_dim;
    const int width = q_dim + 2 * kv_dim;
    auto* scratch = reinterpret_cast<float*>(shared_memory());
    float* row = scratch + kRowThreads;
    const float* qkv = a.qkv + int64_t{block_x()} * width;
    KV_UNROLL_8
    for (int i = thread_index(); i < width; i += kRowThreads) {
      row[i] = a.bias == nullptr ? qkv[i] : qkv[i] + a.bias[i];
    }
    sync_block();
    if (a.q_norm != nullptr) {
      normalise_part(a, a.q_norm, q_dim, row, scratch);
      normalise_part(a, a.k_norm, kv_dim, row + q_dim, scratch);
      sync_block();
    }
    const uint32_t block = place.position / a.kv.block_tokens;
    const bool writes = a.kv.slices[place.slice].left_out == 0;
    const KvPlace to = writes ? place_of(a.kv, place.slice, block) : KvPlace{0, 0};
    const float* cos = a.cos + int64_t{place.position} * a.half;
    const float* sin = a.sin + int64_t{place.position} * a.half;
    for (int i = 2 * thread_index(); i < width; i += 2 * kRowThreads) {
      float x0 = row[i], x1 = row[i + 1];
      const int pair = i % head_dim / 2;
      if (i < q_dim + kv_dim && pair < a.half) {
        const float c = cos[pair], s = sin[pair];
        const float y0 = fmaf(x0, c, -(x1 * s));
        x1 = fmaf(x1, c, x0 * s);
        x0 = y0;
      }
      if (i < q_dim) {
        uint16_t* q = a.q + int64_t{block_x()} * q_dim + i;
        *reinterpret_cast<uint32_t*>(q) = round_bf16_pair(x0 * place.query_factor, x1 * place.query_factor);
      } else if (writes) {
        const bool is_k = i < q_dim + kv_dim;
        const int at = is_k ? i - q_dim : i - q_dim - kv_dim;
        auto* plane = reinterpret_cast<uint16_t*>(a.kv.memory + (is_k ? to.k : to.v));
        const int token = static_cast<int>(place.position % a.kv.block_tokens);
        const int64_t offset =
            kv_offset(at / head_dim, token, at % head_dim, head_dim, static_cast<int>(a.kv.block_tokens));
        *reinterpret_cast<uint32_t*>(plane + offset) = round_bf16_pair(x0, x1);
      }
    }
  }
};

}  // namespace kvasir::ops::gpu
