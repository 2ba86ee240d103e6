// An architecture described as data: what the decoder computes in each layer, and with which constants.
//
// One short function per architecture fills it (registry.cc). The decoder knows only what stands here, so
// an architecture of known parts needs no code of its own. Which biases and norms there are is not said here:
// the tensors of the file say it (tensor_table.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "ops/numerics.h"

namespace kvasir {

enum class NormKind : uint8_t {
  kRms,    // x / sqrt(mean(x²) + epsilon) · weight
  kLayer,  // (x − mean) / sqrt(variance + epsilon) · weight + bias
};
// Norms of Q and K before RoPE.
enum class QkNorm : uint8_t {
  kNone,
  kHead,  // over each head (Qwen 3, Gemma 3)
  kRow,   // over all heads of a row together (OLMo 2)
  kUnit,  // over each head, with no weights, in layers with RoPE (Llama 4)
};
enum class Activation : uint8_t {
  kSilu,  // x / (1 + exp(−x))
  kGelu,  // the tanh approximation: x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))
  kRelu,
  kClampedSwiglu,  // gate'/(1 + exp(−slope · gate')) · (up' + 1), gate' = min(gate, limit), up' = up cut to
                   // −limit..limit, with kSwigluSlope and kSwigluLimit
};
// Of gpt-oss. GGUF files do not say them; folders that say others are refused.
constexpr float kSwigluSlope = 1.702F;
constexpr float kSwigluLimit = 7.0F;

// A rotary embedding. Pair i of a head's first `dim` values turns by
// position / linear_factor · base^(−2i/dim) / divisors[i] radians; the other values stay.
struct Rope {
  int32_t dim = 0;  // even
  float base = 10000.0F;
  float linear_factor = 1;
  std::vector<float> divisors;  // [dim / 2], or empty: all 1
  // LongRoPE: used instead of `divisors` if the longest context served exceeds original_context. One list
  // holds for a whole run: a switch at a sequence's current length would make a token's K depend on how far
  // its sequence went on.
  std::vector<float> long_divisors;
  int32_t original_context = 0;
  float attention_factor = 1;  // multiplies cosines and sines

  friend bool operator==(const Rope&, const Rope&) = default;
};

// How a router's scores become what experts are chosen by, and weights. The weights of a softmax that are
// divided by their sum are the softmax of the chosen scores.
enum class Gating : uint8_t { kSoftmax, kSigmoid };

// A mixture of experts in the place of a feed-forward: each row passes through the `used` experts whose
// scores are the best, ties by the lower id, and takes the sum of what they give by their weights. Whether
// scores are biased to choose by (but not to weigh by) is not said here: the tensors of the file say it.
struct ExpertSpec {
  int32_t count = 0;  // 0: no layer has experts
  int32_t used = 0;
  int32_t ffn_dim = 0;         // of each
  int32_t shared_ffn_dim = 0;  // of one more that every row passes through; 0: none
  Gating gating = Gating::kSoftmax;
  bool renormalise = false;    // weights are divided by their sum
  float weight_scale = 1;      // then multiplied by it
  bool weighs_inputs = false;  // weights multiply what experts take, not what they give
  // Experts are chosen from the `groups_used` of `groups` equal groups of neighbours whose two best scores
  // have the largest sums; of a softmax, whose best scores are the largest.
  int32_t groups = 1;
  int32_t groups_used = 1;

  friend bool operator==(const ExpertSpec&, const ExpertSpec&) = default;
};

// Multi-head latent attention (DeepSeek-V2 and V3): of a position there is one row for all heads, `rank`
// values from which each head's key and value would be made, and a key's part that RoPE turns. A head's query
// takes what would make its key, so that attention works on these rows: on all of a row as the key, and on
// its first `rank` values as the value.
struct LatentSpec {
  int32_t rank = 0;       // 0: attention is not latent
  int32_t q_rank = 0;     // queries come from so many values with a norm; 0: from the layer's input
  int32_t nope_dim = 0;   // of a head's query, what RoPE leaves as it is
  int32_t rope_dim = 0;   // and what it turns
  int32_t value_dim = 0;  // of a head's value

  friend bool operator==(const LatentSpec&, const LatentSpec&) = default;
};

// A recurrent layer (Qwen3-Next, Qwen 3.5): in the place of attention a causal convolution over the layer's
// queries, keys and values, and the gated delta rule over what it gives. Of all positions so far a sequence
// has a state of fixed size: the convolution's last inputs, and for each value head a matrix of keys x
// values.
struct RecurrentSpec {
  int32_t key_heads = 0;    // of queries and keys; 0: no layer is recurrent
  int32_t value_heads = 0;  // a multiple of key_heads
  int32_t key_dim = 0;      // of a head
  int32_t value_dim = 0;
  int32_t taps = 0;  // positions that the convolution sees, its own included
  // The value heads of a key head lie side by side, or by turns: the first one of each key head, then the
  // second one of each.
  bool by_turns = false;

  int32_t keys() const { return key_heads * key_dim; }
  int32_t values() const { return value_heads * value_dim; }
  // What the convolution runs over: queries, keys, values.
  int32_t channels() const { return 2 * keys() + values(); }
  // A row of the layer's first product: the channels, z [values], b and a [value_heads] each.
  int32_t inputs() const { return channels() + values() + 2 * value_heads; }
  int32_t key_head_of(int64_t value_head) const {
    return static_cast<int32_t>(by_turns ? value_head % key_heads : value_head / (value_heads / key_heads));
  }
  // Of a sequence in one layer.
  int64_t state_floats() const {
    return int64_t{taps - 1} * channels() + int64_t{value_heads} * key_dim * value_dim;
  }

  friend bool operator==(const RecurrentSpec&, const RecurrentSpec&) = default;
};

// Heads of a layer's attention.
struct HeadShape {
  int32_t heads = 0;     // of queries
  int32_t kv_heads = 0;  // divides heads
  int32_t head_dim = 0;  // even

  int32_t q_dim() const { return heads * head_dim; }
  int32_t kv_dim() const { return kv_heads * head_dim; }
  friend bool operator==(const HeadShape&, const HeadShape&) = default;
};

struct LayerSpec {
  int32_t rope = 0;      // index into ModelSpec::ropes; −1: none
  int32_t window = 0;    // a position attends to its last `window` positions, itself included; 0: to all
  bool chunked = false;  // a window begins at the last multiple of its length instead
  bool experts = false;  // its feed-forward is a mixture of experts
  bool recurrent = false;
  int32_t kv_heads = 0;  // where they are not the model's
  int32_t head_dim = 0;  // likewise

  friend bool operator==(const LayerSpec&, const LayerSpec&) = default;
};

// All counts are at least 1.
struct ModelSpec {
  std::string architecture;  // "llama"
  std::string name;          // general.name; may be empty
  int32_t layers = 0;
  int32_t further_layers = 0;    // behind the last one, for the prediction of several tokens: not used
  int32_t context_length = 0;    // tokens that the model was trained for
  int32_t dim = 0;               // width of the residual stream
  int32_t ffn_dim = 0;           // of layers without experts
  int32_t heads = 0;             // query heads
  int32_t kv_heads = 0;          // divides heads; latent: 1
  int32_t head_dim = 0;          // even; latent: rank + rope_dim
  int32_t vocab_size = 0;        // rows of the embedding
  bool tied_embeddings = false;  // the output matrix is the embedding

  NormKind norm = NormKind::kRms;
  float norm_epsilon = 1e-5F;

  LatentSpec latent;
  RecurrentSpec recurrent;

  // Attention: scores are query_scale · q · k; with a cap, cap · tanh(score / cap).
  QkNorm qk_norm = QkNorm::kNone;
  // RMSNorm of each head of V, with no weights; a layer without attn_v has K before its norm as V.
  bool v_norm = false;
  float query_scale = 0;
  // Queries at position p are scaled by 1 + temperature_scale · ln(1 + ⌊(p + offset) /
  // temperature_interval⌋), too.
  float temperature_scale = 0;               // 0: they are not
  int32_t temperature_interval = INT32_MAX;  // positions
  int32_t temperature_offset = 0;            // 0 or 1
  bool temperature_without_rope = false;     // in layers without RoPE only
  float score_cap = 0;                       // 0: none
  // What attention gives is multiplied by the sigmoid of a gate, which comes with the queries: of each head
  // its rows in attn_q are followed by those of its gate.
  bool output_gate = false;
  // Each head has a score of a position without a value, which takes its share of the softmax.
  bool sinks = false;
  // How the file orders the rows of Q and K. Not split: a pair of RoPE is two neighbouring values. Split: it
  // is a value of the first half of the rotated ones and its counterpart of the second half ("NeoX"). Loading
  // makes them neighbours.
  bool split_pairs = false;
  std::vector<Rope> ropes;
  std::vector<LayerSpec> layer_specs;  // [layers]

  // Feed-forward: down(act(gate) · up) where gated, or down(act(up)).
  Activation activation = Activation::kSilu;
  bool gated = true;
  ExpertSpec experts;
  std::string ffn_norm_name = "ffn_norm";  // name of the tensor with the norm before the feed-forward
  // The feed-forward takes what attention takes, not what attention has added to: there is one norm before
  // both.
  bool parallel = false;

  float embedding_scale = 1;    // multiplies what the embedding gives
  float residual_scale = 1;     // multiplies what attention and feed-forward add to the residual stream
  float logit_scale = 1;        // multiplies the logits
  float logit_cap = 0;          // then cap · tanh(logit / cap); 0: none
  int32_t position_offset = 0;  // row of the learned position embedding for position 0 (OPT: 2)
  bool learned_positions = false;

  bool is_latent() const { return latent.rank > 0; }
  HeadShape heads_of(const LayerSpec& l) const {
    return {heads, l.kv_heads > 0 ? l.kv_heads : kv_heads, l.head_dim > 0 ? l.head_dim : head_dim};
  }
  HeadShape heads_of(int32_t index) const { return heads_of(layer(index)); }
  HeadShape heads_of(uint32_t index) const { return heads_of(static_cast<int32_t>(index)); }
  bool has_other_heads() const {
    return std::any_of(layer_specs.begin(), layer_specs.end(),
                       [](const LayerSpec& l) { return l.kv_heads > 0 || l.head_dim > 0; });
  }
  // Q, K and V of a layer, side by side, with the gate, which comes last.
  int32_t qkv_dim_of(int32_t index) const { return qkv_dim_of(heads_of(index)); }
  // Of what a layer's attention gives.
  int32_t attended_head_dim_of(int32_t index) const {
    return is_latent() ? latent.rank : heads_of(index).head_dim;
  }
  // Queries, keys and values as attention takes them, and what it gives.
  int32_t q_dim() const { return heads * head_dim; }
  int32_t kv_dim() const { return kv_heads * head_dim; }
  int32_t kv_planes() const { return is_latent() ? 1 : 2; }
  int32_t gate_dim() const { return output_gate ? q_dim() : 0; }
  // The widest of all layers.
  int32_t qkv_dim() const {
    return widest_of([this](const HeadShape& h) { return qkv_dim_of(h); });
  }
  int32_t attended_dim() const {
    return is_latent() ? heads * latent.rank : widest_of([](const HeadShape& h) { return h.q_dim(); });
  }
  // What the product behind attention takes: of each head its value.
  int32_t values_dim() const { return is_latent() ? heads * latent.value_dim : attended_dim(); }
  int32_t queries_per_kv() const { return heads / kv_heads; }
  // Outputs of the first product of the feed-forward.
  int32_t ffn_inputs() const { return gated ? 2 * ffn_dim : ffn_dim; }
  // The widest input of a feed-forward's second product.
  int32_t widest_ffn() const { return std::max({ffn_dim, experts.ffn_dim, experts.shared_ffn_dim}); }
  const LayerSpec& layer(int32_t index) const { return layer_specs[static_cast<size_t>(index)]; }
  bool has_windows() const {
    return std::any_of(layer_specs.begin(), layer_specs.end(),
                       [](const LayerSpec& l) { return l.window > 0; });
  }
  // By layer.
  std::vector<uint32_t> windows() const {
    std::vector<uint32_t> out;
    for (const LayerSpec& l : layer_specs) out.push_back(static_cast<uint32_t>(l.window));
    return out;
  }
  bool is_recurrent() const { return recurrent.key_heads > 0; }
  // Layers that are not recurrent.
  int32_t attention_layers() const {
    return layers - static_cast<int32_t>(std::count_if(layer_specs.begin(), layer_specs.end(),
                                                       [](const LayerSpec& l) { return l.recurrent; }));
  }
  // The states of a sequence in all recurrent layers, in bytes.
  uint64_t state_bytes() const {
    return is_recurrent() ? static_cast<uint64_t>(layers - attention_layers()) *
                                static_cast<uint64_t>(recurrent.state_floats()) * sizeof(float)
                          : 0;
  }
  bool has_experts() const {
    return std::any_of(layer_specs.begin(), layer_specs.end(), [](const LayerSpec& l) { return l.experts; });
  }
  // Of a layer's experts those that a row passes through.
  double expert_share() const {
    return has_experts() ? static_cast<double>(experts.used) / static_cast<double>(experts.count) : 0;
  }
  // Bytes of one token in one layer of a K plane (V is as large, or a part of it); of the layer that needs
  // the most, since all have as many.
  uint64_t kv_plane_bytes_per_token_layer(ops::KvType type) const {
    return widest_of([type](const HeadShape& h) {
      return static_cast<uint64_t>(h.kv_heads) * static_cast<uint64_t>(ops::kv_row_bytes(type, h.head_dim));
    });
  }
  // K and V of one token in all layers with attention, in bytes.
  uint64_t kv_bytes_per_token(ops::KvType type) const {
    return static_cast<uint64_t>(kv_planes()) * static_cast<uint64_t>(attention_layers()) *
           kv_plane_bytes_per_token_layer(type);
  }

  friend bool operator==(const ModelSpec&, const ModelSpec&) = default;

 private:
  int32_t qkv_dim_of(const HeadShape& h) const {
    return (output_gate ? 2 : 1) * h.q_dim() + kv_planes() * h.kv_dim();
  }
  template <typename Width>
  auto widest_of(const Width& width) const -> decltype(width(HeadShape{})) {
    auto widest = width(HeadShape{heads, kv_heads, head_dim});
    for (const LayerSpec& l : layer_specs) widest = std::max(widest, width(heads_of(l)));
    return widest;
  }
};

}  // namespace kvasir
