// The shape and constants of a decoder, read from GGUF metadata and checked.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "model/files/gguf.h"
#include "ops/numerics.h"

namespace kvasir {

// A decoder of the `llama` family: pre-norm RMSNorm, RoPE on interleaved pairs, grouped-query attention,
// SwiGLU, no biases but those of Q, K and V, which are tensors alone. All counts are at least 1.
struct ModelConfig {
  std::string architecture;  // "llama"
  std::string name;          // general.name; may be empty
  int32_t layers = 0;
  int32_t context_length = 0;  // tokens that the model was trained for
  int32_t dim = 0;             // width of the residual stream
  int32_t ffn_dim = 0;
  int32_t heads = 0;             // query heads
  int32_t kv_heads = 0;          // divides heads
  int32_t head_dim = 0;          // even
  int32_t vocab_size = 0;        // rows of the embedding
  float rope_base = 10000.0F;    // pair i turns by position × rope_base^(-2i/head_dim) radians
  float rope_linear_factor = 1;  // positions are divided by it
  bool rope_factors = false;     // the file divides each pair's frequency by a factor of its own
  float rms_epsilon = 1e-5F;
  bool tied_embeddings = false;  // the output matrix is the embedding

  int32_t q_dim() const { return heads * head_dim; }
  int32_t kv_dim() const { return kv_heads * head_dim; }
  int32_t queries_per_kv() const { return heads / kv_heads; }
  // Bytes of one token in one layer of a K plane (V is as large).
  uint64_t kv_plane_bytes_per_token_layer(ops::KvType type) const {
    return static_cast<uint64_t>(kv_heads) * static_cast<uint64_t>(ops::kv_row_bytes(type, head_dim));
  }
  // K and V of one token in all layers, in bytes.
  uint64_t kv_bytes_per_token(ops::KvType type) const {
    return uint64_t{2} * static_cast<uint64_t>(layers) * kv_plane_bytes_per_token_layer(type);
  }
};

// kUnsupported: another architecture, or a llama variant that this program would compute wrongly; the message
// names it. kNotFound, kInvalidArgument, kCorrupt: metadata that is missing or makes no sense.
Result<ModelConfig> read_model_config(const Gguf& file);

}  // namespace kvasir
