// A model's weights as the CPU kernels read them; made once at load.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/files/model_file.h"
#include "ops/cpu/packed_matrix.h"
#include "ops/numerics.h"
#include "ops/rope_table.h"

namespace kvasir {

// Memory that is aligned to 64 bytes and backed by huge pages where the system has them; zero at first.
class Arena {
 public:
  // kExhausted: the system does not give so much address space.
  static Result<Arena> map(uint64_t bytes, const char* purpose);
  Arena() = default;
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
};

// Several projections of the same input, side by side: columns [0, n) of one output row. Sources of one
// weight type share one packed matrix.
struct Projection {
  struct Part {
    ops::PackedMatrix matrix;
    int64_t column = 0;  // where its output begins
  };
  std::vector<Part> parts;
  int64_t n = 0;
  int64_t k = 0;
};

// What happens to the output of attention or of the feed-forward before it is added to the residual stream,
// in this order: bias, norm, ModelSpec::residual_scale. And to the residual stream behind it.
struct Branch {
  std::vector<float> bias;  // [dim]; empty: none
  NormWeights post_norm;    // [dim]; may not be present
  float output_scale = 1;   // multiplies the residual stream then
};

// A mixture of experts in the place of the feed-forward's two products. A layer without has no router.
struct PackedExperts {
  // [experts][dim] of f32 rows; where the shared expert has a weight, one more row for it.
  Projection router;
  std::vector<float> router_bias;     // [experts]; empty: none
  std::vector<float> selection_bias;  // [experts]; empty: none
  std::vector<Projection> in;         // by expert: [2 * ffn_dim][dim]: gate, up
  std::vector<Projection> down;       // by expert: [dim][ffn_dim]
  std::vector<float> in_bias;         // [experts][2 * ffn_dim]: gate, up; empty: none
  std::vector<float> down_bias;       // [experts][dim]; empty: none
  Projection shared_in, shared_down;  // no parts: there is no shared expert
  bool shared_has_weight = false;

  bool present() const { return router.n > 0; }
  bool has_shared() const { return shared_in.n > 0; }
};

// What a recurrent layer has beside its products.
struct PackedRecurrence {
  std::vector<float> convolution;  // [taps][channels], the oldest tap first
  std::vector<float> rate;         // [value_heads]: what softplus is multiplied by
  std::vector<float> dt_bias;      // [value_heads]
  std::vector<float> norm;         // [value_dim]

  bool present() const { return !rate.empty(); }
};

struct PackedLayer {
  NormWeights attn_norm;  // [dim]; not present: attention takes the residual stream itself
  // [qkv_dim][dim]: Q, K, V, and perhaps a gate; RoPE turns neighbouring values. Latent: what queries come
  // from, and the row for the cache (LatentPass). Recurrent: RecurrentSpec::inputs().
  Projection qkv;
  std::vector<float> q_a_norm;       // [q_rank]; where latent attention has one
  Projection q_b;                    // [heads * (nope + rope)][q_rank]; likewise
  std::vector<float> kv_a_norm;      // [rank]; latent
  std::vector<Projection> absorb;    // by head: [rank][nope]; latent
  std::vector<Projection> value_up;  // by head: [value_dim][rank]; latent
  std::vector<float> qkv_bias;       // [q_dim + 2 * kv_dim], added before norms and RoPE; empty: none
  std::vector<float> q_norm;         // [head_dim] or [q_dim], as ModelSpec::qk_norm says
  std::vector<float> k_norm;         // [head_dim] or [kv_dim]
  std::vector<float> v_norm;         // [head_dim]; empty: none
  std::vector<float> sinks;          // [heads]; empty: none
  PackedRecurrence recurrence;       // in the place of attention
  Projection attn_output;            // [dim][values_dim]
  Branch attn_branch;
  NormWeights ffn_norm;            // [dim]; may not be present
  Projection ffn_in;               // [ffn_inputs][dim]: gate, up; or up alone
  std::vector<float> ffn_in_bias;  // [ffn_dim], where the feed-forward is not gated; empty: none
  Projection ffn_down;             // [dim][ffn_dim]
  PackedExperts experts;           // in the place of these two
  Branch ffn_branch;

  // Calls use(const Projection&) for each that takes rows of the types that weights ask for: all but routers.
  template <typename Use>
  void for_each_projection(const Use& use) const {
    for (const Projection* p :
         {&qkv, &q_b, &attn_output, &ffn_in, &ffn_down, &experts.shared_in, &experts.shared_down}) {
      use(*p);
    }
    for (const auto* all : {&absorb, &value_up, &experts.in, &experts.down}) {
      for (const Projection& p : *all) use(p);
    }
  }
};

// Immutable after make(), hence thread-safe.
class PackedModel {
 public:
  // Packs everything; the file must outlive the model, which looks embeddings up in it. `max_positions` is
  // the longest sequence that will be run, in tokens. Matrices that the file wants quantised (quantize_as)
  // are quantised as they are packed, a part of one matrix at a time, by so many threads. kInvalidArgument: a
  // value cannot be quantised; the message names the tensor. kExhausted: as Arena::map().
  static Result<std::unique_ptr<PackedModel>> make(const ModelFile& file, uint32_t max_positions,
                                                   int threads = 1);

  const ModelSpec& spec() const { return file_->spec(); }
  const std::vector<PackedLayer>& layers() const { return layers_; }
  const NormWeights& output_norm() const { return output_norm_; }
  const Projection& output() const { return output_; }
  // The rope of a layer; null: it has none.
  const ops::RopeTable* rope(uint32_t layer) const;
  // What queries of a layer are multiplied by. REQUIRES: position < max_positions
  float query_scale(uint32_t layer, int64_t position) const {
    const ModelSpec& s = spec();
    if (s.temperature_without_rope && s.layer(static_cast<int32_t>(layer)).rope >= 0) return s.query_scale;
    return query_scales_[static_cast<size_t>((position + s.temperature_offset) / s.temperature_interval)];
  }
  // Nothing happens to what attention and feed-forward add to the residual stream, so their products add it.
  bool adds_at_once() const { return adds_at_once_; }
  uint64_t bytes() const { return arena_.size(); }
  // The sorted types of all matrices, such as "q4_1+q8_0", and, if loading has quantised them, the version of
  // the quantiser, as in "q4_k+q6_k~quantizer-2": part of the numerics id.
  std::string weight_types() const;

  // The sorted types of the rows that the matrix products take in such a mode, such as "bf16+int8": part of
  // the numerics id.
  std::string activation_types(ops::ActivationMode mode) const;

  // What a copy in form X holds in such a mode: the rows that the products of K and V take, in every layer.
  // If they take rows of different types, the f32 rows, of which each of the others is made again exactly.
  ops::ActivationType x_type(ops::ActivationMode mode) const;

  // The residual stream of a token before the first layer. out: [dim]. REQUIRES: 0 <= token < vocab_size,
  // position < max_positions
  void embed(int32_t token, uint32_t position, float* out) const;

 private:
  PackedModel() = default;

  const ModelFile* file_ = nullptr;
  Arena arena_;
  std::vector<PackedLayer> layers_;
  NormWeights output_norm_;
  Projection output_;
  WeightMatrix embedding_;  // as it is looked up in: in the file or, quantised, in the arena
  bool adds_at_once_ = true;
  std::vector<ops::RopeTable> ropes_;  // as ModelSpec::ropes
  std::vector<float> query_scales_;    // by interval of ModelSpec::temperature_interval
};

}  // namespace kvasir
