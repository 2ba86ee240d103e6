// W_UK and W_UV of latent attention, head by head, where they lie in one matrix, as the model's authors have
// them: [heads][nope + value_dim][rank], of each head first the rows that make its keys, and then those that
// make its values. GGUF files of today have two: attn_k_b [heads][rank][nope], which is transposed, and
// attn_v_b [heads][value_dim][rank]; old ones have the one, attn_kv_b.
#pragma once

#include <memory>

#include "model/architectures/model_spec.h"
#include "model/files/gguf.h"
#include "model/files/tensor_rows.h"

namespace kvasir {

struct LatentParts {
  GgufTensor k_b, v_b;  // with neither name nor `rows`: these make the rows
  std::unique_ptr<const TensorRows> k_rows, v_rows;
};

// Both parts of `kv_b`, which outlives them. Values of F32, F16 and BF16 stay as they are; a transposed row
// of other types has no blocks of its own, so those of attn_k_b become F32, exactly. REQUIRES: kv_b has the
// shape above.
LatentParts split_kv_b(const GgufTensor& kv_b, int64_t heads, int64_t nope_dim, int64_t value_dim);

}  // namespace kvasir
