#include "model/files/form_bytes.h"

#include <set>

#include "base/check.h"
#include "ops/x_layout.h"

namespace kvasir {

FormBytes form_bytes(const ModelSpec& config, ops::ActivationType x_type) {
  FormBytes out;
  out.x_type = x_type;
  out.x_per_token_layer = static_cast<uint64_t>(ops::x_row_bytes(x_type, config.dim));
  out.x_per_token = out.x_per_token_layer * static_cast<uint64_t>(config.layers);
  return out;
}

ops::ActivationType x_type_of(const TensorTable& weights, ops::ActivationMode mode) {
  KV_CHECK(!weights.layers.empty(), "a model without layers");
  std::set<ops::ActivationType> taken;
  for (const LayerWeights& layer : weights.layers) {
    for (const WeightMatrix* m : {&layer.attn_k, &layer.attn_v}) {
      taken.insert(ops::activation_for(m->used, mode));
    }
  }
  return taken.size() == 1 ? *taken.begin() : ops::ActivationType::kF32;
}

double x_to_kv(const ModelSpec& config, const FormBytes& forms, ops::KvType kv) {
  return static_cast<double>(forms.x_per_token) / static_cast<double>(config.kv_bytes_per_token(kv));
}

}  // namespace kvasir
