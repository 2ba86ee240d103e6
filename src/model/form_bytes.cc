#include "model/form_bytes.h"

#include <set>

#include "base/check.h"
#include "base/units.h"

namespace kvasir {
namespace {

uint64_t x_row_bytes(ops::ActivationType type, uint64_t dim) {
  switch (type) {
    case ops::ActivationType::kInt8:
      return dim + dim / static_cast<uint64_t>(ops::kGroup) * sizeof(uint16_t);
    case ops::ActivationType::kBf16:
      return dim * sizeof(uint16_t);
    case ops::ActivationType::kF32:
      return dim * sizeof(float);
  }
  return 0;
}

}  // namespace

FormBytes form_bytes(const ModelConfig& config, ops::ActivationType x_type) {
  const auto dim = static_cast<uint64_t>(config.dim);
  FormBytes out;
  out.x_type = x_type;
  out.x_per_token_layer = round_up<uint64_t>(x_row_bytes(x_type, dim), 4);
  out.x_per_token = out.x_per_token_layer * static_cast<uint64_t>(config.layers);
  out.h_per_token = dim * sizeof(float);
  return out;
}

ops::ActivationType x_type_of(const TensorTable& weights, ops::ActivationMode mode) {
  KV_CHECK(!weights.layers.empty(), "a model without layers");
  std::set<ops::ActivationType> taken;
  for (const LayerWeights& layer : weights.layers) {
    for (const WeightMatrix* m : {&layer.attn_k, &layer.attn_v}) {
      taken.insert(ops::activation_for(m->type, mode));
    }
  }
  return taken.size() == 1 ? *taken.begin() : ops::ActivationType::kF32;
}

double x_to_kv(const ModelConfig& config, const FormBytes& forms, ops::KvType kv) {
  return static_cast<double>(forms.x_per_token) / static_cast<double>(config.kv_bytes_per_token(kv));
}

}  // namespace kvasir
