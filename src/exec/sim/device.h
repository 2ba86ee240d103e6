// The simulator's true models and devices: plain data, in SI units.
//
// A rate's logarithm is a sum of piecewise-linear curves over logarithms of a kernel's shape; the catalogue
// holds what tools/fit_devices.py fitted to published profiles. docs/simulator-truth.md has the formulas.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace kvasir {

// Latent attention: see model/architectures/model_spec.h. Queries work on the rows of the cache.
struct LatentShape {
  uint32_t rank = 0;    // 0: attention is not latent
  uint32_t q_rank = 0;  // 0: queries come from the layer's input
  uint32_t nope_dim = 0;
  uint32_t rope_dim = 0;
  uint32_t value_dim = 0;
};

// A decoder with two linear layers of attention (QKV, O) and two or three of the MLP, or of each expert.
struct ModelShape {
  std::string name;
  uint32_t layers = 0;
  uint32_t hidden = 0;
  uint32_t heads = 0;     // query heads
  uint32_t kv_heads = 0;  // at most `heads`; latent: 1
  uint32_t head_dim = 0;  // latent: of a row of the cache
  LatentShape latent{};
  uint32_t ffn = 0;  // inner width of the MLP
  // A mixture of experts in the place of the MLP, in all layers but the first ones.
  uint32_t dense_layers = 0;
  uint32_t experts = 0;       // 0: none
  uint32_t experts_used = 0;  // by a row
  uint32_t expert_ffn = 0;    // inner width of each
  uint32_t shared_ffn = 0;    // of the expert that all rows pass through; 0: none
  uint32_t vocab = 0;
  uint32_t max_positions = 0;       // tokens of a sequence
  std::vector<uint32_t> windows;    // of attention, by layer, 0: none; empty: no layer has one
  bool gated_mlp = true;            // gate and up, instead of up alone
  bool tied_embeddings = false;     // the output matrix is the embedding
  double weight_element_bytes = 2;  // of an element of a weight
  double expert_element_bytes = 2;  // of an expert's, the shared one not counted
  double kv_element_bytes = 2;      // of K and V

  // Inner widths that a row passes through.
  uint64_t active_ffn() const {
    return experts > 0 ? uint64_t{experts_used} * expert_ffn + shared_ffn : uint64_t{ffn};
  }
  double expert_share() const { return experts > 0 ? static_cast<double>(experts_used) / experts : 0; }
  // Of a step of so many rows, those of a layer that a row chooses, if each chooses at random.
  double experts_touched(double rows) const { return experts * (1 - std::pow(1 - expert_share(), rows)); }

  uint64_t q_dim() const { return uint64_t{heads} * head_dim; }
  uint64_t kv_dim() const { return uint64_t{kv_heads} * head_dim; }
  bool is_latent() const { return latent.rank > 0; }
  uint32_t kv_planes() const { return is_latent() ? 1 : 2; }
  // Values that each head is given by attention.
  uint32_t attended_head_dim() const { return is_latent() ? latent.rank : head_dim; }
  // Of a layer's attention.
  uint64_t attention_parameters() const {
    if (!is_latent()) return hidden * (2 * q_dim() + 2 * kv_dim());
    const uint64_t queries = uint64_t{heads} * (latent.nope_dim + latent.rope_dim);
    const uint64_t of_queries =
        latent.q_rank > 0 ? uint64_t{latent.q_rank} * (hidden + queries) : hidden * queries;
    const uint64_t values = uint64_t{heads} * latent.value_dim;
    return of_queries + hidden * kv_dim() +
           uint64_t{heads} * latent.rank * (latent.nope_dim + latent.value_dim) + hidden * values;
  }
  // Without norms and biases, which are below a thousandth, and without tables of learned positions, which
  // are small in all models here.
  uint64_t parameters() const {
    const uint64_t matrices = gated_mlp ? 3 : 2;
    const uint64_t dense = experts > 0 ? dense_layers : layers;
    const uint64_t inner = uint64_t{experts} * expert_ffn + shared_ffn;
    const uint64_t mlps = dense * matrices * hidden * ffn +
                          (layers - dense) * (matrices * hidden * inner + uint64_t{hidden} * experts);
    return layers * attention_parameters() + mlps + (tied_embeddings ? 1 : 2) * uint64_t{vocab} * hidden;
  }
  // Of these the experts'.
  uint64_t expert_parameters() const {
    return uint64_t{layers - dense_layers} * experts * (gated_mlp ? 3 : 2) * uint64_t{hidden} * expert_ffn;
  }
  uint64_t weight_bytes() const {
    const auto in_experts = static_cast<double>(expert_parameters());
    return static_cast<uint64_t>((static_cast<double>(parameters()) - in_experts) * weight_element_bytes +
                                 in_experts * expert_element_bytes);
  }
  // K and V of one token in all layers.
  uint64_t kv_bytes_per_token() const {
    return static_cast<uint64_t>(1.0 * kv_planes() * layers * static_cast<double>(kv_dim()) *
                                 kv_element_bytes);
  }
};

// Piecewise linear; constant before the first knot and after the last one. Empty: 0 everywhere.
struct Curve {
  std::vector<double> x;  // ascending
  std::vector<double> y;  // as many
  double at(double value) const;
};

// launch_s + unit_s * units + max(flops / flop rate, bytes / byte rate), where the maximum is smooth: the
// norm of the order `sharpness`. The comments at their uses say what the curves are over.
struct KernelCoefficients {
  double launch_s = 0;
  double unit_s = 0;
  double sharpness = 6;
  std::vector<Curve> flop_rate;  // their sum is log2 of FLOP/s
  std::vector<Curve> byte_rate;  // their sum is log2 of bytes/s
};

struct PcieSpec {
  double bytes_per_s = 0;  // of one direction, nominal
  double efficiency = 1;   // the share of it that a transfer reaches
  double link_share = 1;   // one card's share of a link when all cards that share it use it
  double usable() const { return bytes_per_s * efficiency * link_share; }
};

// How well the coefficients meet the profile that they were fitted to: absolute relative errors in percent.
struct KernelFitError {
  uint32_t points = 0;
  double mean_percent = 0;
  double p95_percent = 0;
  double held_out_mean_percent = 0;  // over the fifth of the points that the fit did not see
};

struct DeviceSpec {
  std::string name;
  uint64_t memory_bytes = 0;
  double memory_bytes_per_s = 0;  // nominal bandwidth
  double flops = 0;               // nominal peak, bf16, dense
  PcieSpec pcie;
  std::vector<std::string> source;            // one line for each part
  std::map<std::string, KernelFitError> fit;  // by kernel

  // Compute-bound matrix products among a layer's other kernels take this much longer than alone.
  double layer_factor = 1;
  KernelCoefficients gemm;  // flops: log2 of m, m n, k; bytes: of n k, m
  KernelCoefficients
      prefill_attention;            // flops: log2 of rows, heads * rows, 1 + history / rows; units: heads
  double prefill_ceiling_log2 = 0;  // the highest rate of prefill attention, with any history
  KernelCoefficients
      decode_grouped;  // bytes: log2 of length, KV heads * batch, group; units: KV heads * batch
  KernelCoefficients decode_single;  // the same where each query head has its own KV head
  KernelCoefficients elementwise;    // all of a layer: norms, rotation, activation, additions; log2 of bytes
  std::map<uint32_t, Curve> all_reduce;  // by cards: log2 of seconds over log2 of bytes
  double eager_all_reduce_s = 0;         // the least time of one that the host launches without a graph
  Curve send_recv;                       // between two cards: log2 of seconds over log2 of bytes
};

// Cards that run one model: each layer over `tensor` of them, the layers over `pipeline` groups.
struct Parallelism {
  uint32_t tensor = 1;
  uint32_t pipeline = 1;
  uint32_t cards() const { return tensor * pipeline; }
};

// The engine's time in each step, while no kernel runs.
struct EngineOverhead {
  double step_s = 0;
  double sequence_s = 0;  // for each sequence that has rows in the step
  bool eager = false;     // launches kernels one by one, without graphs
  std::string source;
};

}  // namespace kvasir
