// The weights of a model by their role: which matrix is where, in which type, checked against the spec.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/architectures/model_spec.h"
#include "model/files/gguf.h"
#include "model/files/tensor_rows.h"
#include "ops/numerics.h"

namespace kvasir {

// A matrix as it lies in the file: `rows` outputs of `columns` inputs each; a row is contiguous and
// consists of whole blocks of its type. A view: the bytes belong to the mapping.
struct WeightMatrix {
  ops::WeightType type = ops::WeightType::kF32;  // of the bytes
  // What products and look-ups use: `type`, or what loading quantises the rows to (ModelFile::quantize_as).
  ops::WeightType used = ops::WeightType::kF32;
  std::string_view name;  // of the tensor that it is, or is a part of
  int64_t rows = 0;
  int64_t columns = 0;
  const std::byte* data = nullptr;  // of any alignment: folders need not align
  uint64_t bytes = 0;
  // What makes the rows, where a folder has them in another form than GGUF's (GgufTensor::rows), and the
  // number of the first one.
  const TensorRows* made = nullptr;
  int64_t first_made = 0;

  bool present() const { return data != nullptr; }
  uint64_t row_bytes() const { return bytes / static_cast<uint64_t>(rows); }
};

// A norm's parameters; not present: there is no such norm.
struct NormWeights {
  std::vector<float> weight;  // [n]
  std::vector<float> bias;    // [n], or empty
  bool present() const { return !weight.empty(); }
};

// A mixture of experts. No router: the layer has none.
struct ExpertWeights {
  WeightMatrix router;                    // [experts][dim]
  std::vector<float> router_bias;         // [experts], of the scores
  std::vector<float> selection_bias;      // [experts], of the scores to choose by only
  std::vector<WeightMatrix> gate;         // by expert: [ffn_dim][dim]
  std::vector<WeightMatrix> up;           // [ffn_dim][dim]
  std::vector<WeightMatrix> down;         // [dim][ffn_dim]
  std::vector<float> gate_bias, up_bias;  // [experts][ffn_dim]; both or none
  std::vector<float> down_bias;           // [experts][dim]
  // Of the shared expert, where there is one.
  WeightMatrix shared_gate, shared_up, shared_down;
  WeightMatrix shared_router;  // [1][dim]: the sigmoid of its product is the expert's weight; else 1

  bool present() const { return router.present(); }
};

// Of latent attention (LatentSpec). attn_q is [heads × (nope + rope)][dim], or, where queries have a rank,
// [q_rank][dim].
struct LatentWeights {
  WeightMatrix q_b;               // [heads × (nope + rope)][q_rank]; only where queries have a rank
  std::vector<float> q_a_norm;    // [q_rank]; likewise
  WeightMatrix kv_a;              // [rank + rope][dim]
  std::vector<float> kv_a_norm;   // [rank]
  std::vector<WeightMatrix> k_b;  // by head: [rank][nope]
  std::vector<WeightMatrix> v_b;  // by head: [value_dim][rank]
  std::shared_ptr<const TensorRows> k_rows;  // what makes those, where a file has them in one matrix
  std::shared_ptr<const TensorRows> v_rows;
};

// Of a recurrent layer (RecurrentSpec). Its first product's rows are in two matrices, in the order of
// RecurrentSpec::inputs(), or in one, where those of a key head lie together: its queries, its keys, its
// values, its z.
struct RecurrentWeights {
  WeightMatrix qkv;                // [channels][dim]
  WeightMatrix z;                  // [values][dim]
  WeightMatrix qkvz;               // [channels + values][dim], in the place of both
  WeightMatrix ba;                 // [2 * value_heads][dim]: of each key head b of its value heads, then a
  WeightMatrix b, a;               // [value_heads][dim] each, in the place of it
  std::vector<float> convolution;  // [channels][taps], the oldest tap first
  std::vector<float> rate;         // [value_heads]: what softplus is multiplied by
  std::vector<float> dt_bias;      // [value_heads]
  std::vector<float> norm;         // [value_dim]

  bool present() const { return !norm.empty(); }
};

// Vectors that are empty and matrices that are not present: the model has none.
struct LayerWeights {
  NormWeights attn_norm;  // [dim]
  WeightMatrix attn_q;    // [heads × head_dim][dim]; ModelSpec::split_pairs says in which order its rows are
  WeightMatrix attn_k;    // [kv_heads × head_dim][dim], likewise
  WeightMatrix attn_v;    // [kv_heads × head_dim][dim]
  std::vector<float> q_bias;   // [heads × head_dim], in the order of attn_q's rows
  std::vector<float> k_bias;   // [kv_heads × head_dim], in that of attn_k's
  std::vector<float> v_bias;   // [kv_heads × head_dim]
  std::vector<float> q_norm;   // [head_dim] or [heads × head_dim], by ModelSpec::qk_norm
  std::vector<float> k_norm;   // [head_dim] or [kv_heads × head_dim]
  LatentWeights latent;        // in the place of attn_k and attn_v
  RecurrentWeights recurrent;  // in the place of attn_q, attn_k and attn_v
  // [dim][heads × head_dim]; of latent attention [dim][values_dim], of a recurrent layer [dim][values]
  WeightMatrix attn_output;
  std::vector<float> attn_output_bias;  // [dim]
  std::vector<float> v_norm;            // [head_dim], of ones, where ModelSpec::v_norm
  std::vector<float> sinks;             // [heads], where ModelSpec::sinks
  NormWeights attn_post_norm;           // [dim], of what attention adds to the residual stream
  NormWeights ffn_norm;                 // [dim]
  WeightMatrix ffn_gate;                // [ffn_dim][dim]; only where the feed-forward is gated
  WeightMatrix ffn_up;                  // [ffn_dim][dim]
  std::vector<float> ffn_up_bias;       // [ffn_dim]
  WeightMatrix ffn_down;                // [dim][ffn_dim]
  std::vector<float> ffn_down_bias;     // [dim]
  NormWeights ffn_post_norm;            // [dim]
  std::vector<float> output_scale;      // [1]: multiplies the residual stream behind the layer
  ExpertWeights experts;                // in the place of gate, up and down

  // Calls use(WeightMatrix&) for each matrix that products use.
  template <typename Layer, typename Use>
  static void for_each_matrix(Layer& l, const Use& use) {
    for (auto* m : {&l.attn_q,
                    &l.attn_k,
                    &l.attn_v,
                    &l.latent.q_b,
                    &l.latent.kv_a,
                    &l.recurrent.qkv,
                    &l.recurrent.z,
                    &l.recurrent.qkvz,
                    &l.recurrent.ba,
                    &l.recurrent.b,
                    &l.recurrent.a,
                    &l.attn_output,
                    &l.ffn_gate,
                    &l.ffn_up,
                    &l.ffn_down,
                    &l.experts.router,
                    &l.experts.shared_router,
                    &l.experts.shared_gate,
                    &l.experts.shared_up,
                    &l.experts.shared_down}) {
      if (m->present()) use(*m);
    }
    for (auto* all : {&l.latent.k_b, &l.latent.v_b, &l.experts.gate, &l.experts.up, &l.experts.down}) {
      for (auto& m : *all) use(m);
    }
  }
};

// Norm weights and biases are small and are copied as f32; everything else is a view.
struct TensorTable {
  WeightMatrix token_embedding;  // [vocab_size][dim]
  WeightMatrix
      position_embedding;  // [position_offset + context_length][dim]; only where positions are learned
  std::vector<LayerWeights> layers;
  NormWeights output_norm;            // [dim]
  WeightMatrix output;                // [vocab_size][dim]; not present where the embeddings are tied
  std::vector<std::string> warnings;  // one line for each tensor that nothing uses

  // The matrix of the last layer: `output`, or the embedding where it is tied.
  const WeightMatrix& output_matrix() const { return output.present() ? output : token_embedding; }
};

// kCorrupt: a tensor is missing or of the wrong shape. kUnsupported: a tensor type that no kernel reads, or a
// tensor (another bias, a further norm) that changes the result and that this decoder does not
// apply. REQUIRES: spec is read_model_spec(file).
Result<TensorTable> read_tensor_table(const Gguf& file, const ModelSpec& spec);

// The kernels' type for a type of the file; kUnsupported names `tensor`.
Result<ops::WeightType> weight_type_of(const Gguf& file, const GgufTensor& tensor);

}  // namespace kvasir
