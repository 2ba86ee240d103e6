// A model's weights as kernels read them, in the device's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/files/model_file.h"
#include "ops/gpu/kernel_args.h"

namespace kvasir {

// What a GPU computes has this id (docs/gpu.md).
std::string gpu_numerics_id();

// Bytes of X of a token in one layer: what CacheGeometry::x_bytes_per_token_layer is on a GPU, if it has X.
uint64_t gpu_x_bytes(const ModelSpec& spec);

// Puts bytes into the device's memory, where they stay as long as the model, at a multiple of 16; gives their
// address.
using Upload = std::function<const void*(const void* data, size_t bytes)>;

// How a branch comes to the residual stream.
struct GpuBranch {
  const float* bias = nullptr;
  ops::gpu::NormArgs norm = {};
};

struct GpuLayer {
  ops::gpu::NormArgs attn_norm, ffn_norm;
  const uint16_t* qkv = nullptr;  // image: Q, K and V one behind the other; RoPE turns neighbouring values
  const float* qkv_bias = nullptr;
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  const uint16_t* attn_output = nullptr;
  const uint16_t* ffn_in = nullptr;  // image: gate, then up; or up alone
  const float* ffn_in_bias = nullptr;
  const uint16_t* ffn_down = nullptr;
  GpuBranch attn_branch, ffn_branch;
};

struct GpuRope {
  const float* cos = nullptr;  // [position][half]
  const float* sin = nullptr;
  int32_t half = 0;
};

// Plain data; addresses are the device's. Weights of any type of the file are rounded to bf16 from their
// exact values.
struct GpuModel {
  ModelSpec spec;
  const uint16_t* embedding = nullptr;  // image
  const uint16_t* positions = nullptr;  // image; null: they are not learned
  const uint16_t* output = nullptr;     // image
  ops::gpu::NormArgs output_norm = {};
  std::vector<GpuLayer> layers;
  std::vector<GpuRope> ropes;        // as ModelSpec::ropes
  std::vector<float> query_factors;  // of the host: [position / temperature_interval]
  bool adds_at_once = true;          // nothing happens to branches, so products add them

  // max_positions: the longest sequence that will be run, in tokens.
  static GpuModel make(const ModelFile& file, uint32_t max_positions, const Upload& upload);

  float query_factor(uint32_t position) const {
    return query_factors[position / static_cast<uint32_t>(spec.temperature_interval)];
  }
  GpuRope rope(size_t layer) const {
    const int32_t index = spec.layer_specs[layer].rope;
    return index < 0 ? GpuRope() : ropes[static_cast<size_t>(index)];
  }
};

}  // namespace kvasir
