// Llama 4: three layers in four have RoPE, which turns neighbouring values, norms of Q and K without weights,
// and attend within chunks of positions; queries of the others grow with the position. Experts whose weights
// multiply what they take, and a shared one, in all layers or every so many.
#include "model/architectures/spec_reader.h"

namespace kvasir {
namespace {

// What files do not say.
constexpr int32_t kChunk = 8192;
constexpr int32_t kTemperatureInterval = 8192;
constexpr float kTemperatureScale = 0.1F;
constexpr int32_t kExpertsWithoutNorms = 128;  // of Maverick, whose Q and K have no norms

Status read_layers(SpecReader& reader) {
  ModelSpec& spec = reader.spec();
  KV_ASSIGN_OR_RETURN(const std::vector<bool> chunked, reader.read_windows(4));
  // A window of 0 says that all layers have RoPE and attend to everything.
  const bool plain = reader.has("attention.sliding_window") && !spec.has_windows();
  for (size_t l = 0; l < chunked.size(); ++l) {
    LayerSpec& layer = spec.layer_specs[l];
    layer.window = !plain && chunked[l] ? kChunk : 0;
    layer.chunked = true;
    layer.rope = plain || chunked[l] ? 0 : -1;
  }
  return {};
}

Status read_temperature(SpecReader& reader) {
  ModelSpec& spec = reader.spec();
  spec.temperature_scale = reader.has("attention.temperature_scale") ? 0 : kTemperatureScale;
  spec.temperature_offset = 1;
  spec.temperature_without_rope = true;
  KV_RETURN_IF_ERROR(reader.read_optional("attention.temperature_scale", 1e3F, spec.temperature_scale));
  return reader.read_count("attention.temperature_length", 1U << 24, spec.temperature_interval,
                           kTemperatureInterval);
}

}  // namespace

// The norms of Q and K come behind RoPE; before it they give the same, since RoPE keeps lengths.
Status describe_llama4(SpecReader& reader) {
  ModelSpec& spec = reader.spec();
  KV_RETURN_IF_ERROR(read_layers(reader));
  KV_RETURN_IF_ERROR(read_temperature(reader));
  KV_RETURN_IF_ERROR(reader.read_experts({.gating = Gating::kSigmoid, .weighs_inputs = true}));
  if (spec.experts.shared_ffn_dim == 0) spec.experts.shared_ffn_dim = spec.experts.ffn_dim;
  int32_t step = 1;
  KV_RETURN_IF_ERROR(reader.read_count("interleave_moe_layer_step", 1024, step, 1));
  for (int32_t l = 0; l < spec.layers; ++l)
    spec.layer_specs[static_cast<size_t>(l)].experts = (l + 1) % step == 0;
  spec.qk_norm = spec.experts.count == kExpertsWithoutNorms ? QkNorm::kNone : QkNorm::kUnit;
  if (spec.ropes[0].attention_factor != 1) {
    return reader.unsupported("RoPE that makes queries and keys longer is not supported");
  }
  return {};
}

}  // namespace kvasir
