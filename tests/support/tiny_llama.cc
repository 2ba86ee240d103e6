// Random weights of a healthy size, a byte-level vocabulary, and the metadata that names them.
#include "support/tiny_llama.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string_view>
#include <unordered_set>

#include "base/check.h"
#include "base/random.h"
#include "model/architectures/model_spec.h"
#include "ops/det_math.h"

namespace kvasir::test {
namespace {

constexpr int32_t kSpecialTokens = 3;
constexpr int32_t kByteTokens = 256;

// Nearly normal, variance 1: the sum of twelve 16-bit uniforms less its mean. Exact on every machine.
float normal(Random& random) {
  int64_t sum = 0;
  for (int draw = 0; draw < 3; ++draw) {
    uint64_t bits = random.bits();
    for (int part = 0; part < 4; ++part, bits >>= 16) sum += static_cast<int64_t>(bits & 0xffff);
  }
  return (static_cast<float>(sum) - 6.0F * 65535.0F) / 65536.0F;
}

std::vector<float> normals(uint64_t seed, size_t count, float mean, float deviation) {
  Random random(seed);
  std::vector<float> out(count);
  for (float& v : out) v = mean + deviation * normal(random);
  return out;
}

class TinyWriter {
 public:
  TinyWriter(const TinyLlamaShape& shape, ops::WeightType type, uint64_t seed)
      : shape_(shape), type_(type), seed_(seed) {}

  GgufBuilder run() {
    write_metadata();
    write_tokenizer();
    write_tensors();
    return std::move(out_);
  }

 private:
  // Each tensor has a stream of its own, so that a change of shape elsewhere leaves its values alone.
  uint64_t next_seed() { return random_bits(seed_, 1, tensors_++); }

  void matrix(std::string_view name, int32_t rows, int32_t columns, float scale) {
    const float deviation = scale / std::sqrt(static_cast<float>(columns));
    const auto count = static_cast<size_t>(rows) * static_cast<size_t>(columns);
    ops::WeightType type = type_;
    for (const auto& [part, other] : shape_.other_types) {
      if (name.find(part) != std::string_view::npos) type = other;
    }
    type = type_that_fits(type, columns);
    out_.add_tensor(name, {static_cast<uint64_t>(columns), static_cast<uint64_t>(rows)}, gguf_type_id(type),
                    quantize(type, normals(next_seed(), count, 0.0F, deviation), columns));
  }
  void vector(std::string_view name, const std::vector<float>& values) {
    out_.add_tensor(name, {values.size()}, gguf_type_id(ops::WeightType::kF32),
                    quantize(ops::WeightType::kF32, values, static_cast<int64_t>(values.size())));
  }
  // Of OPT: a LayerNorm, with a bias.
  void norm(const std::string& name, float mean) { norm(name, shape_.dim, mean); }
  void norm(const std::string& name, int32_t size, float mean) {
    std::vector<float> values = normals(next_seed(), static_cast<size_t>(size), mean, 0.1F * mean);
    // Folders have Gemma's norms less 1: so few bits that this is exact.
    if (is({"gemma2", "gemma3"}) || is_hybrid()) {
      for (float& v : values) v = std::round(v * 65536.0F) / 65536.0F;
    }
    vector(name + ".weight", values);
    if (is({"opt"})) bias(name, size);
  }
  // About a third of the products' own size.
  void bias(const std::string& name, int32_t size) {
    vector(name + ".bias", normals(next_seed(), static_cast<size_t>(size), 0.0F, 0.4F));
  }
  bool is(std::initializer_list<std::string_view> architectures) const {
    return std::find(architectures.begin(), architectures.end(), shape_.architecture) != architectures.end();
  }
  std::string key(std::string_view name) const { return shape_.architecture + "." + std::string(name); }

  void write_metadata();
  void write_tokenizer();
  void write_tensors();
  void write_biases(int32_t q_dim, int32_t kv_dim);
  void write_architecture(int32_t q_dim, int32_t kv_dim);
  void write_expert_metadata();
  void write_experts();
  void write_expert_biases(int32_t layer);
  void stacked(std::string_view name, int32_t rows, int32_t columns, float scale);
  void stacked(std::string_view name, int32_t matrices, int32_t rows, int32_t columns, float scale);
  // Whether the width of experts has a key of its own.
  bool has_widths() const {
    return is({"deepseek2", "dots1", "llama4", "qwen2moe", "qwen3moe", "qwen3next", "qwen35moe"});
  }
  // Experts by sigmoids with a bias.
  bool has_sigmoids() const { return is({"dots1"}) || (is({"deepseek2"}) && shape_.q_rank > 0); }
  bool has_window_heads(int32_t layer) const { return shape_.window_head_dim > 0 && layer % 2 == 0; }
  HeadShape heads_of(int32_t layer) const {
    if (has_window_heads(layer)) return {shape_.heads, shape_.window_kv_heads, shape_.window_head_dim};
    return {shape_.heads, shape_.kv_heads, shape_.head_dim};
  }
  void write_window_heads();
  void write_latent_metadata();
  void write_latent_attention(int32_t layer);
  bool has_experts(int32_t layer) const {
    return shape_.experts > 0 && layer >= shape_.dense_layers && (layer + 1) % shape_.expert_step == 0;
  }
  bool is_hybrid() const { return shape_.key_heads > 0; }
  void write_recurrence(int32_t layer);
  bool recurs(int32_t layer) const { return shape_.key_heads > 0 && layer % 4 != 3; }

  const TinyLlamaShape shape_;
  const ops::WeightType type_;
  const uint64_t seed_;
  uint64_t tensors_ = 0;
  GgufBuilder out_;
};

void TinyWriter::write_metadata() {
  const auto u32 = [this](std::string_view name, int32_t value) {
    out_.set_u32(key(name), static_cast<uint32_t>(value));
  };
  out_.set_string("general.architecture", shape_.architecture);
  out_.set_string("general.name", "tiny " + shape_.architecture + " of random weights");
  u32("block_count", shape_.layers);
  u32("context_length", shape_.context);
  u32("embedding_length", shape_.dim);
  // Where all layers have experts, files may not say it.
  if (!is({"qwen35moe"}))
    u32("feed_forward_length", shape_.experts > 0 && !has_widths() ? shape_.expert_ffn : shape_.ffn);
  u32("attention.head_count", shape_.heads);
  if (shape_.kv_rank > 0) {
    write_latent_metadata();
  } else {
    if (shape_.window_head_dim > 0) {
      write_window_heads();
    } else {
      u32("attention.head_count_kv", shape_.kv_heads);
    }
    u32("attention.key_length", shape_.head_dim);
    u32("attention.value_length", shape_.head_dim);
  }
  if (!is({"opt", "deepseek2"}))
    u32("rope.dimension_count", is({"glm4", "phi3"}) || is_hybrid() ? shape_.head_dim / 2 : shape_.head_dim);
  u32("vocab_size", shape_.vocab);
  if (is({"opt"})) {
    out_.set_f32(key("attention.layer_norm_epsilon"), 1e-5F);
    return;
  }
  out_.set_f32(key("rope.freq_base"), shape_.rope_base);
  if (is({"cohere2"})) {
    out_.set_f32(key("attention.layer_norm_epsilon"), 1e-5F);
    out_.set_f32(key("logit_scale"), 0.5F);
  } else {
    out_.set_f32(key("attention.layer_norm_rms_epsilon"), is({"deepseek2"}) ? 1e-6F : 1e-5F);
  }
  if (shape_.rope_linear_factor != 1.0F) {
    out_.set_string(key("rope.scaling.type"), "linear");
    out_.set_f32(key("rope.scaling.factor"), shape_.rope_linear_factor);
  }
  if (shape_.key_heads > 0) {
    u32("ssm.conv_kernel", 4);
    u32("ssm.state_size", shape_.key_dim);
    u32("ssm.group_count", shape_.key_heads);
    u32("ssm.time_step_rank", shape_.value_heads);
    u32("ssm.inner_size", shape_.value_heads * shape_.value_dim);
    u32("full_attention_interval", 4);
    if (!is({"qwen3next"})) out_.set_i32s(key("rope.dimension_sections"), {3, 3, 2, 0});
  }
  if (shape_.window > 0) u32("attention.sliding_window", shape_.window);
  if (is({"mistral3"})) {
    out_.set_f32(key("attention.temperature_scale"), 0.3F);
    out_.set_string(key("rope.scaling.type"), "yarn");
    out_.set_f32(key("rope.scaling.factor"), 16.0F);
    out_.set_f32(key("rope.scaling.yarn_log_multiplier"), 1.0F);
    u32("rope.scaling.original_context_length", 100);
  }
  if (shape_.experts > 0) write_expert_metadata();
  if (is({"gpt-oss"})) {
    out_.set_string(key("rope.scaling.type"), "yarn");
    out_.set_f32(key("rope.scaling.factor"), 32.0F);
    u32("rope.scaling.original_context_length", 100);
  }
  if (is({"granite", "granitemoe"})) {
    out_.set_f32(key("attention.scale"), 0.125F);
    out_.set_f32(key("embedding_scale"), 1.5F);
    out_.set_f32(key("residual_scale"), 0.6F);
    out_.set_f32(key("logit_scale"), 0.5F);
  }
}

void TinyWriter::write_window_heads() {
  std::vector<int32_t> kv_heads, pattern;
  for (int32_t l = 0; l < shape_.layers; ++l) {
    kv_heads.push_back(heads_of(l).kv_heads);
    pattern.push_back(has_window_heads(l) ? 1 : 0);
  }
  out_.set_i32s(key("attention.head_count_kv"), kv_heads);
  out_.set_i32s(key("attention.sliding_window_pattern"), pattern);
  for (const char* name :
       {"attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"})
    out_.set_u32(key(name), static_cast<uint32_t>(shape_.window_head_dim));
}

// As llama.cpp's converter writes it since attention works on the rows of the cache.
void TinyWriter::write_latent_metadata() {
  const auto u32 = [this](std::string_view name, int32_t value) {
    out_.set_u32(key(name), static_cast<uint32_t>(value));
  };
  u32("attention.head_count_kv", 1);
  u32("attention.key_length", shape_.kv_rank + shape_.rope_dim);
  u32("attention.value_length", shape_.kv_rank);
  u32("attention.key_length_mla", shape_.head_dim);
  u32("attention.value_length_mla", shape_.value_dim);
  u32("attention.kv_lora_rank", shape_.kv_rank);
  if (shape_.q_rank > 0) u32("attention.q_lora_rank", shape_.q_rank);
  u32("rope.dimension_count", shape_.rope_dim);
  if (shape_.q_rank == 0) return;
  out_.set_string(key("rope.scaling.type"), "yarn");
  out_.set_f32(key("rope.scaling.factor"), 16.0F);
  out_.set_f32(key("rope.scaling.yarn_log_multiplier"), 0.1F);
  u32("rope.scaling.original_context_length", 100);
}

void TinyWriter::write_expert_metadata() {
  const auto u32 = [this](std::string_view name, int32_t value) {
    out_.set_u32(key(name), static_cast<uint32_t>(value));
  };
  u32("expert_count", shape_.experts);
  u32("expert_used_count", shape_.experts_used);
  if (has_widths()) u32("expert_feed_forward_length", shape_.expert_ffn);
  if (shape_.shared_ffn > 0 && !is({"deepseek2", "dots1"}))
    u32("expert_shared_feed_forward_length", shape_.shared_ffn);
  if (is({"llama4"})) {
    u32("interleave_moe_layer_step", shape_.expert_step);
    out_.set_f32(key("attention.temperature_scale"), 0.3F);
    u32("attention.temperature_length", 100);
  }
  if (!is({"deepseek2", "dots1"})) return;
  u32("expert_shared_count", shape_.shared_ffn / shape_.expert_ffn);
  u32("expert_group_count", shape_.expert_groups);
  u32("expert_group_used_count", shape_.expert_groups_used);
  u32("expert_gating_func", has_sigmoids() ? 2 : 1);
  u32("leading_dense_block_count", shape_.dense_layers);
  out_.set_bool(key("expert_weights_norm"), has_sigmoids());
  out_.set_f32(key("expert_weights_scale"), 1.5F);
}

// The matrices of all experts in one tensor.
void TinyWriter::stacked(std::string_view name, int32_t rows, int32_t columns, float scale) {
  stacked(name, shape_.experts, rows, columns, scale);
}

void TinyWriter::stacked(std::string_view name, int32_t matrices, int32_t rows, int32_t columns,
                         float scale) {
  const float deviation = scale / std::sqrt(static_cast<float>(columns));
  const auto count = static_cast<size_t>(matrices) * static_cast<size_t>(rows) * static_cast<size_t>(columns);
  ops::WeightType type = type_;
  for (const auto& [part, other] : shape_.other_types) {
    if (name.find(part) != std::string_view::npos) type = other;
  }
  type = type_that_fits(type, columns);
  out_.add_tensor(
      name, {static_cast<uint64_t>(columns), static_cast<uint64_t>(rows), static_cast<uint64_t>(matrices)},
      gguf_type_id(type), quantize(type, normals(next_seed(), count, 0.0F, deviation), columns));
}

// Routers are larger than the rest, so that their scores lie apart.
void TinyWriter::write_experts() {
  for (int32_t l = 0; l < shape_.layers; ++l) {
    if (!has_experts(l)) continue;
    const auto name = [l](std::string_view role) { return fmt::format("blk.{}.{}.weight", l, role); };
    const auto dim = static_cast<uint64_t>(shape_.dim);
    const float deviation = 2.0F / std::sqrt(static_cast<float>(shape_.dim));
    const auto router = normals(next_seed(), static_cast<size_t>(shape_.experts) * dim, 0.0F, deviation);
    out_.add_tensor(name("ffn_gate_inp"), {dim, static_cast<uint64_t>(shape_.experts)},
                    gguf_type_id(ops::WeightType::kF32), quantize(ops::WeightType::kF32, router, shape_.dim));
    if (has_sigmoids()) {
      vector(fmt::format("blk.{}.exp_probs_b.bias", l),
             normals(next_seed(), static_cast<size_t>(shape_.experts), 0.0F, 0.2F));
    }
    stacked(name("ffn_gate_exps"), shape_.expert_ffn, shape_.dim, 1.0F);
    stacked(name("ffn_up_exps"), shape_.expert_ffn, shape_.dim, 1.0F);
    stacked(name("ffn_down_exps"), shape_.dim, shape_.expert_ffn, 1.5F);
    if (is({"gpt-oss"})) write_expert_biases(l);
    if (shape_.shared_ffn == 0) continue;
    matrix(name("ffn_gate_shexp"), shape_.shared_ffn, shape_.dim, 1.0F);
    matrix(name("ffn_up_shexp"), shape_.shared_ffn, shape_.dim, 1.0F);
    matrix(name("ffn_down_shexp"), shape_.dim, shape_.shared_ffn, 1.0F);
    if (is({"qwen2moe"}) || is_hybrid())
      vector(name("ffn_gate_inp_shexp"), normals(next_seed(), dim, 0.0F, deviation));
  }
}

// And sinks, about as large as the largest scores.
void TinyWriter::write_expert_biases(int32_t layer) {
  const auto biases = [&](std::string_view role, int32_t width) {
    const auto count = static_cast<size_t>(shape_.experts) * static_cast<size_t>(width);
    out_.add_tensor(fmt::format("blk.{}.{}.bias", layer, role),
                    {static_cast<uint64_t>(width), static_cast<uint64_t>(shape_.experts)},
                    gguf_type_id(ops::WeightType::kF32),
                    quantize(ops::WeightType::kF32, normals(next_seed(), count, 0.0F, 0.4F), width));
  };
  vector(fmt::format("blk.{}.attn_sinks.weight", layer),
         normals(next_seed(), static_cast<size_t>(shape_.heads), 3.0F, 1.0F));
  bias(fmt::format("blk.{}.ffn_gate_inp", layer), shape_.experts);
  biases("ffn_gate_exps", shape_.expert_ffn);
  biases("ffn_up_exps", shape_.expert_ffn);
  biases("ffn_down_exps", shape_.dim);
}

void TinyWriter::write_tokenizer() {
  const TinyVocabulary vocabulary =
      shape_.pieces ? make_tiny_pieces(shape_.vocab) : make_tiny_vocabulary(shape_.vocab);
  out_.set_string("tokenizer.ggml.model", shape_.pieces ? "llama" : "gpt2");
  if (!shape_.pieces) out_.set_string("tokenizer.ggml.pre", "smollm");
  out_.set_strings("tokenizer.ggml.tokens", vocabulary.tokens);
  out_.set_i32s("tokenizer.ggml.token_type", vocabulary.types);
  if (shape_.pieces) {
    std::vector<float> scores;  // in the order of the merges
    for (size_t i = 0; i < vocabulary.tokens.size(); ++i) scores.push_back(-static_cast<float>(i));
    out_.set_f32s("tokenizer.ggml.scores", scores);
    out_.set_bool("tokenizer.ggml.add_space_prefix", false);
  } else {
    out_.set_strings("tokenizer.ggml.merges", vocabulary.merges);
  }
  out_.set_u32("tokenizer.ggml.bos_token_id", 1);
  out_.set_u32("tokenizer.ggml.eos_token_id", 2);
  out_.set_u32("tokenizer.ggml.unknown_token_id", 0);
  out_.set_bool("tokenizer.ggml.add_bos_token", false);
  out_.set_string("tokenizer.chat_template", kTinyChatTemplate);
}

// After all else, so that the weights are those of the model without biases.
void TinyWriter::write_biases(int32_t q_dim, int32_t kv_dim) {
  for (int32_t l = 0; l < shape_.layers; ++l) {
    const auto name = [l](std::string_view role) { return fmt::format("blk.{}.{}", l, role); };
    bias(name("attn_q"), q_dim);
    bias(name("attn_k"), kv_dim);
    bias(name("attn_v"), kv_dim);
    if (is({"opt", "gpt-oss"})) bias(name("attn_output"), shape_.dim);
    if (!is({"opt"})) continue;
    bias(name("ffn_up"), shape_.ffn);
    bias(name("ffn_down"), shape_.dim);
  }
}

// What an architecture has beside the tensors of a llama, or in their place; after all else.
void TinyWriter::write_architecture(int32_t q_dim, int32_t kv_dim) {
  for (int32_t l = 0; l < shape_.layers; ++l) {
    const auto name = [l](std::string_view role) { return fmt::format("blk.{}.{}", l, role); };
    if (is({"qwen3", "gemma3", "gemma4", "olmo2", "qwen3moe", "olmoe", "dots1"}) ||
        (is_hybrid() && !recurs(l))) {
      const bool by_row = is({"olmo2", "olmoe"});
      const float mean = is({"gemma4"}) ? 0.5F : 1.5F;  // scores are not scaled
      norm(name("attn_q_norm"), by_row ? q_dim : heads_of(l).head_dim, mean);
      norm(name("attn_k_norm"), by_row ? kv_dim : heads_of(l).head_dim, mean);
    }
    if (is({"gemma4"}))
      vector(name("layer_output_scale") + ".weight", {0.9F - 0.05F * static_cast<float>(l)});
    if (is({"gemma2", "gemma3", "gemma4", "glm4", "olmo2"})) {
      norm(name("post_attention_norm"), 0.7F);
      norm(name("post_ffw_norm"), 0.7F);
    }
    if (is({"phi3"})) matrix(name("attn_qkv") + ".weight", q_dim + 2 * kv_dim, shape_.dim, 1.2F);
    if (is({"glm4", "phi3"})) matrix(name("ffn_up") + ".weight", 2 * shape_.ffn, shape_.dim, 1.0F);
  }
  constexpr int32_t kUnused = 2;  // rows before that of the first position
  if (is({"opt"})) matrix("position_embd.weight", kUnused + shape_.context, shape_.dim, 0.3F);
}

void TinyWriter::write_latent_attention(int32_t layer) {
  const auto name = [layer](std::string_view role) { return fmt::format("blk.{}.{}", layer, role); };
  const int32_t q_dim = shape_.heads * shape_.head_dim, nope = shape_.head_dim - shape_.rope_dim;
  if (shape_.q_rank > 0) {
    matrix(name("attn_q_a.weight"), shape_.q_rank, shape_.dim, 1.0F);
    norm(name("attn_q_a_norm"), shape_.q_rank, 1.0F);
    matrix(name("attn_q_b.weight"), q_dim, shape_.q_rank, 1.5F);
  } else {
    matrix(name("attn_q.weight"), q_dim, shape_.dim, 1.5F);
  }
  matrix(name("attn_kv_a_mqa.weight"), shape_.kv_rank + shape_.rope_dim, shape_.dim, 1.5F);
  norm(name("attn_kv_a_norm"), shape_.kv_rank, 1.0F);
  stacked(name("attn_k_b.weight"), shape_.heads, shape_.kv_rank, nope, 1.0F);
  stacked(name("attn_v_b.weight"), shape_.heads, shape_.value_dim, shape_.kv_rank, 1.0F);
}

// A state remembers some ten tokens. A_log is of few bits, so that folders can have it exactly in BF16.
void TinyWriter::write_recurrence(int32_t layer) {
  const auto name = [layer](std::string_view role) { return fmt::format("blk.{}.{}", layer, role); };
  const int32_t values = shape_.value_heads * shape_.value_dim,
                channels = 2 * shape_.key_heads * shape_.key_dim + values;
  matrix(name("attn_qkv.weight"), channels, shape_.dim, 1.0F);
  matrix(name("attn_gate.weight"), values, shape_.dim, 1.0F);
  if (is({"qwen3next"})) {
    matrix(name("ssm_ba.weight"), 2 * shape_.value_heads, shape_.dim, 1.0F);
  } else {
    matrix(name("ssm_beta.weight"), shape_.value_heads, shape_.dim, 1.0F);
    matrix(name("ssm_alpha.weight"), shape_.value_heads, shape_.dim, 1.0F);
  }
  const std::vector<float> taps = normals(next_seed(), static_cast<size_t>(channels) * 4, 0.2F, 0.5F);
  std::vector<float> rounded = taps;
  for (float& v : rounded) v = ops::bf16_to_f32(ops::f32_to_bf16(v));
  out_.add_tensor(name("ssm_conv1d.weight"), {4, static_cast<uint64_t>(channels)},
                  gguf_type_id(ops::WeightType::kF32), quantize(ops::WeightType::kF32, rounded, 4));
  std::vector<float> a = normals(next_seed(), static_cast<size_t>(shape_.value_heads), -2.0F, 1.0F);
  for (float& v : a) v = -static_cast<float>(ops::det_exp(ops::bf16_to_f32(ops::f32_to_bf16(v))));
  vector(name("ssm_a"), a);
  std::vector<float> dt = normals(next_seed(), static_cast<size_t>(shape_.value_heads), 0.0F, 1.0F);
  for (float& v : dt) v = ops::bf16_to_f32(ops::f32_to_bf16(v));
  vector(name("ssm_dt.bias"), dt);
  norm(name("ssm_norm"), shape_.value_dim, 1.0F);
  matrix(name("ssm_out.weight"), shape_.dim, values, 1.0F);
}

// Queries and keys are a little larger than the rest, so that attention looks at some positions more than at
// others. The embedding is smaller, or a tied model would mostly repeat its last token; the last norm makes
// up for it, so that the logits spread (a deviation of about 2).
void TinyWriter::write_tensors() {
  const int32_t q_dim = shape_.heads * shape_.head_dim;
  const int32_t kv_dim = shape_.kv_heads * shape_.head_dim;
  constexpr float kAttentionScale = 1.5F;
  constexpr float kEmbeddingScale = 0.5F;
  constexpr float kOutputNormMean = 4.0F;
  matrix("token_embd.weight", shape_.vocab, shape_.dim, kEmbeddingScale);
  for (int32_t l = 0; l < shape_.layers; ++l) {
    const auto name = [l](std::string_view role) { return fmt::format("blk.{}.{}.weight", l, role); };
    const auto norm_name = [l](std::string_view role) { return fmt::format("blk.{}.{}", l, role); };
    const bool apart = !is({"phi3"}), latent = shape_.kv_rank > 0, norms_before = !is({"olmo2"});
    if (norms_before) norm(norm_name("attn_norm"), 1.0F);
    if (latent) {
      write_latent_attention(l);
    } else if (recurs(l)) {
      write_recurrence(l);
    } else if (apart) {
      const HeadShape heads = heads_of(l);
      matrix(name("attn_q"), (is_hybrid() ? 2 : 1) * heads.q_dim(), shape_.dim, kAttentionScale);
      matrix(name("attn_k"), heads.kv_dim(), shape_.dim, kAttentionScale);
      const bool is_key = is({"gemma4"}) && !has_window_heads(l);
      if (!is_key) matrix(name("attn_v"), heads.kv_dim(), shape_.dim, 1.0F);
    }
    if (!recurs(l)) {
      matrix(name("attn_output"), shape_.dim, latent ? shape_.heads * shape_.value_dim : heads_of(l).q_dim(),
             1.0F);
    }
    if (norms_before && !is({"cohere2"}))
      norm(norm_name(is({"gpt-oss"}) || is_hybrid() ? "post_attention_norm" : "ffn_norm"), 1.0F);
    if (has_experts(l)) continue;
    if (apart && !is({"glm4"})) {
      if (!is({"opt"})) matrix(name("ffn_gate"), shape_.ffn, shape_.dim, 1.0F);
      matrix(name("ffn_up"), shape_.ffn, shape_.dim, 1.0F);
    }
    matrix(name("ffn_down"), shape_.dim, shape_.ffn, 1.0F);
  }
  norm("output_norm", kOutputNormMean);
  if (!shape_.tied) matrix("output.weight", shape_.vocab, shape_.dim, kEmbeddingScale);
  if (shape_.qkv_bias || is({"glm4", "qwen2", "qwen2moe", "opt", "gpt-oss"})) write_biases(q_dim, kv_dim);
  write_architecture(q_dim, kv_dim);
  if (shape_.experts > 0) write_experts();
  if (is({"gemma4"})) {  // a quarter of the pairs is turned
    std::vector<float> factors(static_cast<size_t>(shape_.head_dim / 2), 1e30F);
    std::fill_n(factors.begin(), factors.size() / 4, 1.0F);
    vector("rope_freqs.weight", factors);
  }
  if (shape_.rope_factors) {
    std::vector<float> factors;
    for (int32_t i = 0; i < shape_.head_dim / 2; ++i) factors.push_back(1.0F + 0.25F * static_cast<float>(i));
    vector("rope_freqs.weight", factors);
  }
}

// GPT-2's mapping: printable Latin-1 stands for itself, the other bytes for the characters from U+0100 on.
std::vector<std::string> byte_characters() {
  std::vector<std::string> out;
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xff && byte != 0xad);
    const uint32_t code = printable ? byte : next++;
    std::string text;
    if (code < 0x80) {
      text += static_cast<char>(code);
    } else {
      text += static_cast<char>(0xc0 | (code >> 6));
      text += static_cast<char>(0x80 | (code & 0x3f));
    }
    out.push_back(text);
  }
  return out;
}

// Adds merges until the vocabulary is full. A merge is valid when both its parts are tokens already.
class MergeFiller {
 public:
  MergeFiller(TinyVocabulary& vocabulary, size_t size)
      : vocabulary_(vocabulary), size_(size), known_(vocabulary.tokens.begin(), vocabulary.tokens.end()) {}

  // False once the vocabulary is full.
  bool merge(const std::string& left, const std::string& right) {
    if (vocabulary_.tokens.size() == size_) return false;
    if (!known_.insert(left + right).second) return true;
    vocabulary_.tokens.push_back(left + right);
    vocabulary_.types.push_back(1);
    vocabulary_.merges.push_back(left + " " + right);
    return true;
  }

 private:
  TinyVocabulary& vocabulary_;
  const size_t size_;
  std::unordered_set<std::string> known_;
};

void fill_with_merges(TinyVocabulary& vocabulary, size_t size) {
  MergeFiller filler(vocabulary, size);
  const std::string space = "\xc4\xa0";  // U+0120, the character of byte 0x20
  for (std::string_view word : {"the", "and", "of", "to", "in", "memory", "token", "hello", "world"}) {
    std::string left = space;
    for (char letter : word) {
      if (!filler.merge(left, std::string(1, letter))) return;
      left += letter;
    }
  }
  std::vector<std::string> pairs;
  for (char a = 'a'; a <= 'z'; ++a) {
    for (char b = 'a'; b <= 'z'; ++b) {
      if (!filler.merge(std::string(1, a), std::string(1, b))) return;
      pairs.push_back(std::string{a, b});
    }
  }
  for (const std::string& left : pairs) {
    for (const std::string& right : pairs) {
      if (!filler.merge(left, right)) return;
    }
  }
}

}  // namespace

const char* const kTinyChatTemplate =
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

TinyVocabulary make_tiny_vocabulary(int32_t size) {
  KV_CHECK(size >= kSpecialTokens + kByteTokens, "a vocabulary of {}", size);
  TinyVocabulary out;
  out.tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  out.types.assign(kSpecialTokens, 3);
  for (std::string& text : byte_characters()) out.tokens.push_back(std::move(text));
  out.types.resize(out.tokens.size(), 1);
  fill_with_merges(out, static_cast<size_t>(size));
  KV_CHECK(out.tokens.size() == static_cast<size_t>(size), "a vocabulary of {} is too large", size);
  return out;
}

TinyVocabulary make_tiny_pieces(int32_t size) {
  TinyVocabulary out = make_tiny_vocabulary(size);
  out.merges.clear();
  const std::string_view space = "\xc4\xa0";
  for (size_t i = kSpecialTokens; i < out.tokens.size(); ++i) {
    std::string& token = out.tokens[i];
    if (i < kSpecialTokens + kByteTokens) {
      token = fmt::format("<0x{:02X}>", i - kSpecialTokens);
      out.types[i] = 6;
    } else if (token.starts_with(space)) {
      token.replace(0, space.size(), "\u2581");
    }
  }
  return out;
}

GgufBuilder tiny_llama_builder(const TinyLlamaShape& shape, ops::WeightType type, uint64_t seed) {
  return TinyWriter(shape, type, seed).run();
}

std::vector<std::byte> make_tiny_llama(const TinyLlamaShape& shape, ops::WeightType type, uint64_t seed) {
  return tiny_llama_builder(shape, type, seed).build();
}

}  // namespace kvasir::test
