// From the product of Q, K and V to what attention reads.
#pragma once

#include "ops/gpu/device.h"
#include "ops/gpu/kernel_args.h"
#include "ops/gpu/kernels/kv_place.h"
#include "ops/gpu/kernels/row_norm.h"
#include "ops/gpu/layouts.h"

namespace kvasir::ops::gpu {

// RMSNorm of heads, or of a row of them, in shared memory. By the whole block.
struct HeadNorm {
  int of_row;
  float epsilon;
  int head_dim;

  KV_DEVICE void run(const float* weight, int width, float* x, float* scratch) const {
    if (of_row == 0) {
      for (int h = warp_index(); h * head_dim < width; h += kRowThreads / kWarp) {
        normalise_head(x + h * head_dim, head_dim, weight, epsilon);
      }
      return;
    }
    const NormArgs norm = {NormOf::kRms, epsilon, weight, nullptr};
    const RowNorm row = measure_row(norm, width, scratch, [&](int i) { return x[i]; });
    for (int i = thread_index(); i < width; i += kRowThreads) x[i] = normalised(norm, row, i, x[i]);
  }
};

KV_DEVICE void turn(float& x0, float& x1, float c, float s) {
  const float y0 = fmaf(x0, c, -(x1 * s));
  x1 = fmaf(x1, c, x0 * s);
  x0 = y0;
}

// Two neighbouring values of K (V), from value `at` of a row on.
KV_DEVICE void write_pair(const KvLayer& kv, uint64_t plane, uint32_t position, int at, float x0, float x1) {
  const int token = static_cast<int>(position % kv.block_tokens);
  const int64_t offset =
      kv_offset(at / kv.head_dim, token, at % kv.head_dim, kv.head_dim, static_cast<int>(kv.block_tokens));
  auto* to = reinterpret_cast<uint16_t*>(kv.memory + plane) + offset;
  *reinterpret_cast<uint32_t*>(to) = round_bf16_pair(x0, x1);
}

// A block of 256 threads takes a row, which is in shared memory meanwhile, in f32.
struct FinishQkv {
  static constexpr int kThreads = kRowThreads;
  static Shape shape(const FinishQkvArgs& a) {
    return {a.count, 1, kThreads, kScratchBytes + (a.heads + 2 * a.kv.kv_heads) * a.kv.head_dim * 4};
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
      const HeadNorm norm = {a.norm_of_row, a.norm_epsilon, head_dim};
      norm.run(a.q_norm, q_dim, row, scratch);
      norm.run(a.k_norm, kv_dim, row + q_dim, scratch);
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
      if (i < q_dim + kv_dim && pair < a.half) turn(x0, x1, cos[pair], sin[pair]);
      if (i < q_dim) {
        uint16_t* q = a.q + int64_t{block_x()} * q_dim + i;
        *reinterpret_cast<uint32_t*>(q) = round_bf16_pair(x0 * place.query_factor, x1 * place.query_factor);
      } else if (writes) {
        const bool is_k = i < q_dim + kv_dim;
        write_pair(a.kv, is_k ? to.k : to.v, place.position, is_k ? i - q_dim : i - q_dim - kv_dim, x0, x1);
      }
    }
  }
};

// A block takes a token of a run.
struct FinishKv {
  static constexpr int kThreads = kRowThreads;
  static Shape shape(const FinishKvArgs& a) {
    return {a.count, static_cast<int>(a.kv.block_tokens), kThreads,
            kScratchBytes + 2 * a.kv.kv_heads * a.kv.head_dim * 4};
  }

  static KV_DEVICE void run(const FinishKvArgs& a) {
    const XRun& run = a.runs[block_x()];
    const int token = block_y();
    if (token >= static_cast<int>(run.tokens) || a.kv.slices[run.slice].left_out != 0) return;
    const int head_dim = a.kv.head_dim;
    const int kv_dim = a.kv.kv_heads * head_dim;
    auto* scratch = reinterpret_cast<float*>(shared_memory());
    float* row = scratch + kRowThreads;
    const float* product = a.product + (int64_t{run.first_row} + token) * a.stride + a.first_k;
    KV_UNROLL_8
    for (int i = thread_index(); i < 2 * kv_dim; i += kRowThreads) {
      row[i] = a.bias == nullptr ? product[i] : product[i] + a.bias[i];
    }
    sync_block();
    if (a.k_norm != nullptr) {
      const HeadNorm norm = {a.norm_of_row, a.norm_epsilon, head_dim};
      norm.run(a.k_norm, kv_dim, row, scratch);
      sync_block();
    }
    const uint32_t position = run.first_position + static_cast<uint32_t>(token);
    const float* cos = a.cos + int64_t{position} * a.half;
    const float* sin = a.sin + int64_t{position} * a.half;
    for (int i = 2 * thread_index(); i < 2 * kv_dim; i += 2 * kRowThreads) {
      float x0 = row[i], x1 = row[i + 1];
      const bool is_k = i < kv_dim;
      const int pair = i % head_dim / 2;
      if (is_k && pair < a.half) turn(x0, x1, cos[pair], sin[pair]);
      write_pair(a.kv, is_k ? run.to.k : run.to.v, position, is_k ? i : i - kv_dim, x0, x1);
    }
  }
};

}  // namespace kvasir::ops::gpu
