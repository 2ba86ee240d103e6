#include "exec/gpu/gpu_model.h"

#include <algorithm>

#include "contract/numerics_id.h"
#include "model/files/pair_order.h"
#include "model/files/rope_tables.h"
#include "ops/det_math.h"
#include "ops/gpu/layouts.h"
#include "ops/gpu/reference.h"

namespace kvasir {
namespace {

using ops::gpu::NormArgs;
using ops::gpu::NormOf;

// A matrix, and its rows in another order: row i is row order[i]. Empty: as they are.
struct Source {
  const WeightMatrix* matrix;
  std::vector<int64_t> order{};
};

class Uploader {
 public:
  Uploader(const ModelSpec& spec, const Upload& upload) : spec_(spec), upload_(upload) {}

  // The rows of the sources, one behind the other, as an image.
  const uint16_t* image(const std::vector<Source>& sources) {
    const int64_t k = sources[0].matrix->columns;
    int64_t rows = 0;
    for (const Source& source : sources) rows += source.matrix->rows;
    std::vector<uint16_t> image(static_cast<size_t>(ops::operand_elements(rows, k)));
    std::vector<float> row(static_cast<size_t>(k));
    std::vector<std::byte> made;
    int64_t at = 0;
    for (const Source& source : sources) {
      const WeightMatrix& m = *source.matrix;
      for (int64_t i = 0; i < m.rows; ++i, ++at) {
        const auto from =
            static_cast<uint64_t>(source.order.empty() ? i : source.order[static_cast<size_t>(i)]);
        if (m.made != nullptr) {
          made.resize(m.row_bytes());
          m.made->read(m.first_made + static_cast<int64_t>(from), made.data());
        }
        const std::byte* stored = m.made != nullptr ? made.data() : m.data + from * m.row_bytes();
        ops::dequantize_row(m.type, stored, k, row.data());
        for (int64_t c = 0; c < k; ++c) {
          image[static_cast<size_t>(ops::operand_offset(at, c, ops::tiles_for(static_cast<int>(k))))] =
              ops::f32_to_bf16(row[static_cast<size_t>(c)]);
        }
      }
    }
    return static_cast<const uint16_t*>(upload_(image.data(), image.size() * sizeof(uint16_t)));
  }

  // Null for none.
  const float* floats(const std::vector<float>& values) {
    if (values.empty()) return nullptr;
    return static_cast<const float*>(upload_(values.data(), values.size() * sizeof(float)));
  }
  const float* reordered(const std::vector<float>& values, const std::vector<int64_t>& order) {
    std::vector<float> out = values;
    for (size_t i = 0; i < out.size() && !order.empty(); ++i) out[i] = values[static_cast<size_t>(order[i])];
    return floats(out);
  }

  NormArgs norm(const NormWeights& weights) {
    if (!weights.present()) return {NormOf::kNone, 0, nullptr, nullptr};
    const NormOf kind = spec_.norm == NormKind::kRms ? NormOf::kRms : NormOf::kLayer;
    return {kind, spec_.norm_epsilon, floats(weights.weight), floats(weights.bias)};
  }

 private:
  const ModelSpec& spec_;
  const Upload& upload_;
};

// Side by side as the product's columns; a part without one is zero. Empty: there is none.
std::vector<float> qkv_bias_of(const LayerWeights& layer, const ModelSpec& spec) {
  std::vector<float> out;
  if (layer.q_bias.empty() && layer.k_bias.empty() && layer.v_bias.empty()) return out;
  const auto append = [&](const std::vector<float>& bias, int32_t n, const std::vector<int64_t>& order) {
    for (int32_t i = 0; i < n; ++i) {
      const auto from = static_cast<size_t>(order.empty() ? i : order[static_cast<size_t>(i)]);
      out.push_back(bias.empty() ? 0 : bias[from]);
    }
  };
  append(layer.q_bias, spec.q_dim(), pair_order(spec, 0, spec.q_dim()));
  append(layer.k_bias, spec.kv_dim(), pair_order(spec, 0, spec.kv_dim()));
  append(layer.v_bias, spec.kv_dim(), {});
  return out;
}

}  // namespace

// "t25": a fused step cuts each summand at 25 fraction bits of the largest exponent (ops/gpu/fused16.h).
std::string gpu_numerics_id() {
  NumericsId id;
  id.arithmetic = "mma16t25";
  id.weight_types = id.activation_type = id.kv_type = "bf16";
  return id.to_string();
}

uint64_t gpu_x_bytes(const ModelSpec& spec) {
  return static_cast<uint64_t>(ops::x_row_elements(spec.dim)) * sizeof(uint16_t);
}

GpuModel GpuModel::make(const ModelFile& file, uint32_t max_positions, const Upload& upload) {
  const TensorTable& weights = file.weights();
  GpuModel model;
  model.spec = file.spec();
  const ModelSpec& spec = model.spec;
  Uploader up(spec, upload);
  model.embedding = up.image({{&weights.token_embedding}});
  if (spec.learned_positions) model.positions = up.image({{&weights.position_embedding}});
  model.output = weights.output.present() ? up.image({{&weights.output}}) : model.embedding;
  model.output_norm = up.norm(weights.output_norm);
  model.adds_at_once = spec.residual_scale == 1;
  const std::vector<int64_t> q_order = pair_order(spec, 0, spec.q_dim()),
                             k_order = pair_order(spec, 0, spec.kv_dim());
  for (const LayerWeights& l : weights.layers) {
    GpuLayer layer;
    layer.attn_norm = up.norm(l.attn_norm);
    layer.ffn_norm = up.norm(l.ffn_norm);
    layer.qkv = up.image({{&l.attn_q, q_order}, {&l.attn_k, k_order}, {&l.attn_v}});
    layer.qkv_bias = up.floats(qkv_bias_of(l, spec));
    layer.q_norm = up.reordered(l.q_norm, q_order);
    layer.k_norm = up.reordered(l.k_norm, k_order);
    layer.attn_output = up.image({{&l.attn_output}});
    layer.ffn_in = spec.gated ? up.image({{&l.ffn_gate}, {&l.ffn_up}}) : up.image({{&l.ffn_up}});
    layer.ffn_in_bias = up.floats(l.ffn_up_bias);
    layer.ffn_down = up.image({{&l.ffn_down}});
    layer.attn_branch = {up.floats(l.attn_output_bias), up.norm(l.attn_post_norm)};
    layer.ffn_branch = {up.floats(l.ffn_down_bias), up.norm(l.ffn_post_norm)};
    for (const GpuBranch& branch : {layer.attn_branch, layer.ffn_branch}) {
      if (branch.bias != nullptr || branch.norm.kind != NormOf::kNone) model.adds_at_once = false;
    }
    model.layers.push_back(layer);
  }
  for (const Rope& rope : spec.ropes) {
    const ops::RopeTable table = rope_table(rope, max_positions);
    model.ropes.push_back({up.floats(table.cos), up.floats(table.sin), static_cast<int32_t>(table.half)});
  }
  for (uint32_t p = 0; p < max_positions; p += static_cast<uint32_t>(spec.temperature_interval)) {
    const double temperature = 1 + static_cast<double>(spec.temperature_scale) *
                                       ops::det_log(1.0 + static_cast<double>(model.query_factors.size()));
    model.query_factors.push_back(
        ops::reference::query_factor(static_cast<double>(spec.query_scale) * temperature));
  }
  return model;
}

}  // namespace kvasir
