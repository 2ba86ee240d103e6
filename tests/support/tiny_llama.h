// Small models with random weights and a byte-level tokenizer: enough to run every path of the engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ops/numerics.h"
#include "support/gguf_builder.h"

namespace kvasir::test {

struct TinyLlamaShape {
  std::string architecture = "llama";  // which metadata and tensors are written
  int32_t layers = 2;
  int32_t dim = 96;  // the quantised types need multiples of 32 for dim, ffn and heads × head_dim
  int32_t heads = 3;
  int32_t kv_heads = 3;
  int32_t head_dim = 32;
  int32_t ffn = 160;
  int32_t vocab = 512;  // at least 3 special tokens + 256 bytes = 259
  int32_t context = 2048;
  bool tied = true;
  float rope_base = 10000.0F;
  float rope_linear_factor = 1.0F;  // written only if it is not 1
  bool rope_factors = false;        // writes a rope_freqs.weight tensor
  bool qkv_bias = false;            // the products of Q, K and V have biases
  // Of layers with a window, where these have heads of another size: every other one, from the first on.
  int32_t window_head_dim = 0;
  int32_t window_kv_heads = 0;
  int32_t window = 0;  // attention.sliding_window; 0: not written
  // A mixture of experts, in each layer but the first `dense_layers`. The router is of F32.
  int32_t experts = 0;
  int32_t experts_used = 0;
  int32_t expert_ffn = 96;
  int32_t shared_ffn = 0;  // of the shared expert; 0: none
  int32_t expert_groups = 1;
  int32_t expert_groups_used = 1;
  int32_t dense_layers = 0;
  int32_t expert_step = 1;  // of the others only each so many-th has experts
  // Latent attention (LatentSpec): head_dim is then that of the scores, of which RoPE turns the last rope_dim
  // values, and there are no kv_heads.
  int32_t kv_rank = 0;
  int32_t q_rank = 0;
  int32_t rope_dim = 0;
  int32_t value_dim = 0;
  // Recurrent layers (RecurrentSpec), three of four.
  int32_t key_heads = 0;
  int32_t value_heads = 0;
  int32_t key_dim = 0;
  bool pieces = false;  // the vocabulary is one of SentencePiece, see make_tiny_pieces()
  // Matrices of another type than the rest, by a part of their name, such as {"attn_v", kBf16}.
  std::vector<std::pair<std::string, ops::WeightType>> other_types{};
};

// 2 layers of width 96, 3 heads: every head has its own keys and values.
TinyLlamaShape tiny_mha();
// 3 layers of width 128, 4 query heads over 2 KV heads.
TinyLlamaShape tiny_gqa();
// One of each architecture that there is, with layers and windows such that each of its parts is met.
// Granite's factors and RoPE over half a head are in it, too.
std::vector<TinyLlamaShape> tiny_architectures();

// The same of parts that a GPU does not have: blocks whose feed-forward lies beside attention, heads of two
// sizes.
std::vector<TinyLlamaShape> tiny_without_gpu();
// The same with experts: each way to choose and weigh them, with shared experts and without.
std::vector<TinyLlamaShape> tiny_mixtures();
// Latent attention, with experts: like DeepSeek-V2, whose queries have no rank here, and V3, with YaRN.
std::vector<TinyLlamaShape> tiny_latents();
// With recurrent layers: like Qwen3-Next, and Qwen 3.5 without experts and with them.
std::vector<TinyLlamaShape> tiny_hybrids();
// All.
std::vector<TinyLlamaShape> all_tiny_architectures();

// 2 layers of width 256, the rows of blocks of 256; 4 query heads over 2 KV heads. The rows of attn_output
// (128) and ffn_down (288) are no such blocks: see type_that_fits.
TinyLlamaShape tiny_256();

// Metadata, tokenizer and weights. The same arguments give the same bytes on every machine: weights come from
// sums of uniform numbers and need no library function. The type is that of all matrices, the embedding
// included; norms are F32.
GgufBuilder tiny_llama_builder(const TinyLlamaShape& shape, ops::WeightType type, uint64_t seed);
std::vector<std::byte> make_tiny_llama(const TinyLlamaShape& shape, ops::WeightType type, uint64_t seed);

// The vocabulary of the tiny models: ids 0, 1, 2 are <|endoftext|>, <|im_start|>, <|im_end|>; 3 + b is the
// byte b in the byte-to-character mapping of GPT-2; then merges, as many as fit.
struct TinyVocabulary {
  std::vector<std::string> tokens;
  std::vector<std::string> merges;  // "left right", by rank
  std::vector<int32_t> types;       // 3 = control, 1 = ordinary
};
TinyVocabulary make_tiny_vocabulary(int32_t size);
// The same as pieces of SentencePiece, which have scores and no merges: bytes are <0x00> to <0xFF> (type 6),
// and U+2581 is the space of the others.
TinyVocabulary make_tiny_pieces(int32_t size);

// A ChatML template.
extern const char* const kTinyChatTemplate;

}  // namespace kvasir::test
