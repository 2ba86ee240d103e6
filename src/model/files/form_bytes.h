// What a token costs in each form of a copy: the arithmetic of memory reports.
#pragma once

#include <cstdint>

#include "model/architectures/model_spec.h"
#include "model/files/tensor_table.h"
#include "ops/numerics.h"

namespace kvasir {

// Bytes of the forms that a cache may hold. K and V depend on the cache's type: see
// ModelSpec::kv_bytes_per_token.
struct FormBytes {
  ops::ActivationType x_type = ops::ActivationType::kF32;
  // X of a token in one layer, scales included, rounded up to a multiple of 4; and in all layers.
  uint64_t x_per_token_layer = 0;
  uint64_t x_per_token = 0;
};

FormBytes form_bytes(const ModelSpec& config, ops::ActivationType x_type);

// The type of X in such a mode: that of the rows which the products of K and V take; f32 where they take
// different ones in a layer, or layers differ. REQUIRES: weights are those of a model, with layers.
ops::ActivationType x_type_of(const TensorTable& weights, ops::ActivationMode mode);

// X's bytes as a share of those of K and V in such a cache: copies in form X pay where it is below 1.
double x_to_kv(const ModelSpec& config, const FormBytes& forms, ops::KvType kv);

}  // namespace kvasir
