// The rules of the numerics written down a second time, plainly: one sequence, one token at a time, scalars
// only, no cache and no packing. What the engine computes must equal it bit for bit.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "contract/ids.h"
#include "model/files/model_file.h"
#include "ops/numerics.h"
#include "ops/rope_table.h"

namespace kvasir::test {

class ReferenceDecoder {
 public:
  // The file outlives the decoder.
  ReferenceDecoder(const ModelFile& file, ops::ActivationMode activation, ops::KvType kv_type);

  // From now on added to what Q, K and V are, by layer: [q_dim + 2 * kv_dim].
  void set_qkv_bias(std::vector<std::vector<float>> bias) { qkv_bias_ = std::move(bias); }

  // Runs the next token of the sequence and returns its logits [vocab].
  std::vector<float> step(Token token);
  // What the last logits were made of [dim].
  const std::vector<float>& hidden() const { return hidden_; }

 private:
  struct Quantized {
    std::vector<int8_t> q;
    std::vector<float> d;  // by group of 32
  };
  static Quantized quantize(const std::vector<float>& x);
  // The weights as floats, column by column: [columns][rows].
  const std::vector<float>& columns_of(const WeightMatrix& w) const;
  std::vector<float> multiply(const WeightMatrix& w, const std::vector<float>& x) const;
  // Quantised weights, decoded.
  struct Int8Matrix {
    std::vector<int8_t> q;                           // [rows][columns]
    std::vector<float> scales, mins;                 // [rows][columns / 32]
    std::vector<int8_t> scale_factors, min_factors;  // [rows][columns / 16]
  };
  const Int8Matrix& int8_of(const WeightMatrix& w) const;
  float multiply_int8(const WeightMatrix& w, size_t row, const Quantized& x) const;
  std::vector<float> norm(const std::vector<float>& x, const std::vector<float>& weight) const;
  std::vector<float> layer_norm(const std::vector<float>& x, const NormWeights& weights) const;
  // The same if there is such a norm; as they are if not.
  std::vector<float> norm(std::vector<float> x, const NormWeights& weights) const;
  // Of each head, what RoPE turns together becomes neighbours, where the file has it otherwise.
  std::vector<float> paired(size_t layer, std::vector<float> values) const;
  std::vector<float> qk_norm(size_t layer, std::vector<float> values, const std::vector<float>& weight) const;
  void add_to(std::vector<float>& x, std::vector<float> branch, const std::vector<float>& bias,
              const NormWeights& post_norm) const;
  // The row of the embedding, and of the positions' where they are learned.
  std::vector<float> embed(Token token) const;
  float query_scale(size_t layer) const;
  std::vector<float> feed_forward(const LayerWeights& layer, const std::vector<float>& x) const;
  // Of experts: the scores of f32 rows, the weight of each expert (0: not chosen), what they give.
  std::vector<float> scores(const WeightMatrix& router, const std::vector<float>& x) const;
  std::vector<float> expert_weights(const ExpertWeights& experts, const std::vector<float>& x) const;
  std::vector<float> mix_experts(const ExpertWeights& experts, const std::vector<float>& x) const;
  struct Biases {
    std::vector<float> gate, up, down;  // empty: none
  };
  std::vector<float> gated(const WeightMatrix& gate, const WeightMatrix& up, const WeightMatrix& down,
                           const std::vector<float>& x, const Biases& biases = {}) const;
  // The values of a layer's bias from `first` on; nothing where there is none.
  void add_bias(size_t layer, size_t first, std::vector<float>& values) const;
  void rotate(size_t layer, float* head) const;
  // One position of K or V in one layer, as the cache holds it.
  struct KvRow {
    std::vector<float> values;  // [kv_dim]
    std::vector<float> scales;  // [kv_heads], 1 where the type has none
  };
  KvRow round_kv(size_t layer, std::vector<float> row) const;
  std::vector<float> attend(size_t layer, const std::vector<float>& q) const;
  // Latent attention: of each head what meets the rows of the cache, and the value of what they give.
  std::vector<float> latent_query(size_t layer, const std::vector<float>& normed) const;
  std::vector<float> latent_row(size_t layer, const std::vector<float>& normed) const;
  std::vector<float> latent_values(const LayerWeights& layer, const std::vector<float>& attended) const;

  // Recurrent layers: what the last product takes. The state goes on.
  struct State {
    std::vector<std::vector<float>> inputs;  // [position][channel], of the convolution
    std::vector<float> matrices;             // [value head][key][value]
  };
  std::vector<float> recur(size_t layer, const std::vector<float>& normed);
  std::vector<float> norm_of(const std::vector<float>& x, const std::vector<float>& weight,
                             float epsilon) const;

  const ModelFile& file_;
  const ops::ActivationMode activation_;
  const ops::KvType kv_type_;
  using Place = std::pair<const std::byte*, int64_t>;  // of weights
  mutable std::map<Place, std::vector<float>> columns_;
  mutable std::map<Place, Int8Matrix> int8_;
  uint32_t position_ = 0;
  std::vector<float> hidden_;
  std::vector<std::vector<float>> qkv_bias_;  // [layer][q, k, v]; empty: none
  std::vector<ops::RopeTable> ropes_;
  std::vector<std::vector<KvRow>> keys_, values_;  // [layer][position]
  std::vector<State> states_;                      // [layer]
};

}  // namespace kvasir::test
