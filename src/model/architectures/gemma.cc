// Gemma 2 to 4: norms before and behind attention and feed-forward, GELU, a scaled embedding, windows in
// most layers.
#include <cmath>

#include "model/architectures/spec_reader.h"

namespace kvasir {
namespace {

constexpr float kMostCap = 1e6F;

// The largest of a family scales queries by the width divided among the heads, the others by a head's own
// length.
void scale_queries(ModelSpec& spec, int32_t layers_of_the_largest) {
  const float length =
      static_cast<float>(spec.layers == layers_of_the_largest ? spec.dim / spec.heads : spec.head_dim);
  spec.query_scale = 1.0F / std::sqrt(length);
}

void describe_gemma(ModelSpec& spec) {
  spec.split_pairs = true;
  spec.activation = Activation::kGelu;
  spec.embedding_scale = std::sqrt(static_cast<float>(spec.dim));
}

}  // namespace

// Every other layer has a window, the first one has.
Status describe_gemma2(SpecReader& reader) {
  ModelSpec& spec = reader.spec();
  describe_gemma(spec);
  scale_queries(spec, 46);
  // 0 says that there is none.
  spec.score_cap = reader.has("attn_logit_softcapping") ? 0 : 50;
  spec.logit_cap = reader.has("final_logit_softcapping") ? 0 : 30;
  KV_RETURN_IF_ERROR(reader.read_optional("attn_logit_softcapping", kMostCap, spec.score_cap));
  KV_RETURN_IF_ERROR(reader.read_optional("final_logit_softcapping", kMostCap, spec.logit_cap));
  return reader.read_window("attention.sliding_window", [](int32_t layer) { return layer % 2 == 0; });
}

// Five layers in six have a window and a RoPE of their own, which is not scaled.
Status describe_gemma3(SpecReader& reader) {
  ModelSpec& spec = reader.spec();
  describe_gemma(spec);
  scale_queries(spec, 62);
  spec.qk_norm = QkNorm::kHead;
  KV_RETURN_IF_ERROR(reader.read_optional("final_logit_softcapping", kMostCap, spec.logit_cap));
  const auto has_window = [](int32_t layer) { return layer % 6 != 5; };
  KV_RETURN_IF_ERROR(reader.read_window("attention.sliding_window", has_window));
  Rope local;
  local.dim = spec.ropes[0].dim;
  KV_RETURN_IF_ERROR(reader.read_positive("rope.freq_base_swa", 1e12F, local.base));
  spec.ropes.push_back(local);
  for (int32_t l = 0; l < spec.layers; ++l)
    spec.layer_specs[static_cast<size_t>(l)].rope = has_window(l) ? 1 : 0;
  return {};
}

// Layers with a window have heads of another size, and may have more KV heads. V has a norm; in layers
// without a window it may be K. Scores are not scaled, but the residual stream is, behind each layer.
Status describe_gemma4(SpecReader& reader) {
  ModelSpec& spec = reader.spec();
  KV_RETURN_IF_ERROR(reader.refuse_counts(
      {"attention.shared_kv_layers", "embedding_length_per_layer_input", "expert_count"}));
  describe_gemma(spec);
  spec.query_scale = 1;
  spec.qk_norm = QkNorm::kHead;
  spec.v_norm = true;
  KV_RETURN_IF_ERROR(reader.read_optional("final_logit_softcapping", kMostCap, spec.logit_cap));
  KV_ASSIGN_OR_RETURN(const std::vector<bool> windowed, reader.read_windows(6));
  int32_t head_dim = 0, value_dim = 0;
  KV_RETURN_IF_ERROR(reader.read_count("attention.key_length_swa", 1024, head_dim, spec.head_dim));
  KV_RETURN_IF_ERROR(reader.read_count("attention.value_length_swa", 1024, value_dim, head_dim));
  Rope local;
  KV_RETURN_IF_ERROR(reader.read_count("rope.dimension_count_swa", 1024, local.dim, head_dim));
  KV_RETURN_IF_ERROR(reader.read_positive("rope.freq_base_swa", 1e12F, local.base));
  if (value_dim != head_dim || head_dim % 2 != 0 || local.dim != head_dim) {
    return reader.unsupported("heads of {} and {} values, of which RoPE turns {}, are not supported",
                              head_dim, value_dim, local.dim);
  }
  spec.ropes.push_back(local);
  for (size_t l = 0; l < windowed.size(); ++l) {
    LayerSpec& layer = spec.layer_specs[l];
    layer.rope = windowed[l] ? 1 : 0;
    layer.head_dim = windowed[l] && head_dim != spec.head_dim ? head_dim : 0;
  }
  return {};
}

}  // namespace kvasir
