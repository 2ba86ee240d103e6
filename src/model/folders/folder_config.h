// From a config.json of Hugging Face to the metadata of a GGUF file. Internal to this folder.
//
// One row for each architecture says what its tensors are called and what its configuration leaves out; one
// function says what its configuration means. The facts are those of the package `transformers` (5.24): its
// classes of configurations and models.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/files/gguf_assembler.h"
#include "model/folders/config_fields.h"
#include "model/folders/value_heads.h"

namespace kvasir {

// What the folder and a GGUF file call the same tensor. Those of layers are without ".weight" or ".bias",
// unless ours has it: then theirs is the whole name. A '*' stands for the number of an expert.
struct TensorName {
  std::string_view theirs;  // "self_attn.q_proj"
  std::string_view ours;    // "attn_q"
};
// What most architectures have.
inline constexpr TensorName kMatrices[] = {
    {"self_attn.q_proj", "attn_q"},      {"self_attn.k_proj", "attn_k"}, {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"}, {"mlp.gate_proj", "ffn_gate"},  {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"}};
inline constexpr TensorName kNorms[] = {{"input_layernorm", "attn_norm"},
                                        {"post_attention_layernorm", "ffn_norm"}};
inline constexpr TensorName kModelTensors[] = {{"embed_tokens.weight", "token_embd.weight"},
                                               {"norm.weight", "output_norm.weight"}};

// What a configuration that does not say it means; 0: it must say it.
struct ConfigDefaults {
  int64_t hidden_size = 0, intermediate_size = 0, num_hidden_layers = 0, num_attention_heads = 0;
  int64_t num_key_value_heads = 0;  // 0: as many as there are heads
  int64_t head_dim = 0;             // 0: the width divided among the heads
  int64_t max_position_embeddings = 0, vocab_size = 0, sliding_window = 0;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  double partial_rotary_factor = 1;
  bool tie_word_embeddings = false;
};

struct FolderConfig;

struct FolderArchitecture {
  std::string_view model_type;  // as config.json has it
  std::string_view name;        // as general.architecture has it
  ConfigDefaults defaults;
  void (*describe)(FolderConfig&);
  // Of a layer.
  std::span<const TensorName> matrices = kMatrices;
  std::span<const TensorName> norms = kNorms;
  std::span<const TensorName> in_attention = {};              // beside its matrices: norms of Q and K, sinks
  std::span<const TensorName> experts = {};                   // in the place of the feed-forward's matrices
  std::span<const TensorName> recurrence = {};                // in the place of all of attention
  std::span<const TensorName> model_tensors = kModelTensors;  // beside "lm_head.weight"
  bool norms_less_one = false;                                // the folder's norms are weights less 1
  bool turns_neighbours = false;                              // RoPE does, and not values of both halves
  bool stacked_experts = false;                               // stacked_experts.h: may be of MXFP4
  bool joined_experts = false;  // a layer's experts may be in one tensor, those of gate before those of up
  bool heads_by_turns = false;  // GGUF files have its value heads so (ValueHeads)

  // All of a layer, with experts or without, one of them shared or not; it has every one.
  std::vector<TensorName> layer_tensors(bool with_experts, bool shared) const;
};

// nullptr: not known.
const FolderArchitecture* find_folder_architecture(std::string_view model_type);
std::vector<std::string_view> known_model_types();

// What a function of an architecture reads from and writes to. Errors are kept in `fields`.
struct FolderConfig {
  const FolderArchitecture& architecture;
  ConfigFields& fields;
  GgufAssembler& out;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t context = 0;
  int64_t experts = 0;
  bool quantized = false;      // some of its matrices are, but for experts in MXFP4
  bool shared_expert = true;   // where the architecture has tensors for one
  int64_t further_layers = 0;  // behind the last one, which are not used
  // Of latent attention (LatentSpec); rank 0: attention is not latent.
  int64_t kv_rank = 0, q_rank = 0, nope_dim = 0, rope_dim = 0, value_dim = 0;
  std::vector<bool> expert_layers = {};  // [layers], or empty: none has experts
  bool joined_experts = false;           // FolderArchitecture::joined_experts, and the folder has them so
  bool has_experts(uint64_t layer) const { return layer < expert_layers.size() && expert_layers[layer]; }
  std::vector<bool> recurrent_layers = {};  // [layers], or empty: none is
  bool is_recurrent(uint64_t layer) const {
    return layer < recurrent_layers.size() && recurrent_layers[layer];
  }
  ValueHeads value_heads = {};  // heads 0: those of recurrent layers, if any, stay in their order
  // [layers], or empty: in none the matrix of K is that of V, too.
  std::vector<bool> keys_as_values = {};
  // Parts of a layer that have biases, beside those whose names end so.
  std::vector<std::string_view> biases = {};

  std::string key(std::string_view name) const;  // with the architecture's name in front

  // Sizes, heads, vocabulary.
  void read_sizes();
  // Those of latent attention, in the place of heads; after read_sizes().
  void read_latent_sizes();
  void read_rms_epsilon();
  // Refuses another activation function.
  void require_activation(std::string_view field, std::string_view wanted);
  // Biases of Q, K, V and, if so, of attention's output, where the configuration has this field set.
  void read_attention_bias(bool of_output_too = true);
  // RoPE in the layers that "no_rope_layers" has 1 for, or in all but each so many-th.
  std::vector<bool> read_turned_layers();
  // One RoPE for all layers, with its scaling.
  void read_rope();
  // A RoPE of layers without a window, and one of those with: Gemma 3.
  void read_two_ropes();
  // The layers that "layer_types" names so, where all others are of "full_attention"; without the field those
  // of `otherwise`. A field that says something else is an error of `fields`.
  std::vector<bool> layers_of_type(std::string_view type, const std::vector<bool>& otherwise);
  // Windows of the layers that are of "sliding_attention".
  void write_windows(int64_t window, const std::vector<bool>& otherwise);
  // How many experts there are, by the field `count`, how many of them a row takes, and their width, if the
  // field `ffn` is not empty.
  void read_experts(std::string_view count, std::string_view ffn);
  // Sizes of recurrent layers, and which those are: by "layer_types", or all but every so many.
  void read_recurrence();
  // A layer has experts where `with` says so.
  template <typename With>
  void write_expert_layers(With with) {
    std::vector<int32_t> has;
    for (int64_t l = 0; l < layers; ++l) {
      expert_layers.push_back(with(l));
      has.push_back(expert_layers.back() ? 1 : 0);
    }
    out.set_i32s("kvasir.layer_experts", has);
  }
  // "sliding_window"; 0: null.
  int64_t sliding_window();
};

}  // namespace kvasir
