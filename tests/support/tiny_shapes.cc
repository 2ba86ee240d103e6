// The shapes of tiny models, and of each architecture.
#include <utility>

#include "support/tiny_llama.h"

namespace kvasir::test {

TinyLlamaShape tiny_mha() {
  return {};
}

TinyLlamaShape tiny_gqa() {
  TinyLlamaShape shape;
  shape.layers = 3;
  shape.dim = 128;
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.ffn = 192;
  return shape;
}

std::vector<TinyLlamaShape> tiny_architectures() {
  std::vector<TinyLlamaShape> out;
  for (const char* name : {"gemma2", "gemma3", "glm4", "granite", "llama", "mistral3", "olmo2", "opt", "phi3",
                           "qwen2", "qwen3", "smollm3"}) {
    TinyLlamaShape shape = tiny_gqa();
    shape.architecture = name;
    if (shape.architecture == "gemma3") {
      shape.layers = 6;  // five with a window, one without
      shape.rope_base = 1e6F;
    }
    if (shape.architecture == "smollm3") shape.layers = 4;  // the last one without RoPE
    if (shape.architecture == "gemma2" || shape.architecture == "gemma3") shape.window = 96;
    if (shape.architecture == "llama") shape.window = 256;
    if (shape.architecture == "phi3") shape.window = 300;
    out.push_back(std::move(shape));
  }
  return out;
}

// Of the first the last layer is one without a window and RoPE.
std::vector<TinyLlamaShape> tiny_without_gpu() {
  TinyLlamaShape shape = tiny_gqa();
  shape.architecture = "cohere2";
  shape.layers = 4;
  shape.window = 96;
  TinyLlamaShape gemma4 = shape;
  gemma4.architecture = "gemma4";
  gemma4.head_dim = 64;
  gemma4.window_head_dim = 32;
  gemma4.window_kv_heads = 4;
  gemma4.rope_base = 1e6F;
  return {shape, gemma4};
}

std::vector<TinyLlamaShape> tiny_mixtures() {
  std::vector<TinyLlamaShape> out;
  const auto add = [&out](const char* name, int32_t experts, int32_t used) -> TinyLlamaShape& {
    TinyLlamaShape& shape = out.emplace_back(tiny_gqa());
    shape.architecture = name;
    shape.experts = experts;
    shape.experts_used = used;
    return shape;
  };
  TinyLlamaShape& dots = add("dots1", 16, 4);
  dots.shared_ffn = 192;
  dots.expert_groups = 4;
  dots.expert_groups_used = 2;
  dots.dense_layers = 1;
  TinyLlamaShape& oss = add("gpt-oss", 8, 3);
  oss.window = 96;
  oss.rope_base = 150000.0F;
  oss.tied = false;
  add("granitemoe", 6, 2).shared_ffn = 64;
  add("llama", 8, 2);
  TinyLlamaShape& four = add("llama4", 8, 2);
  four.layers = 4;  // the last one without RoPE
  four.expert_step = 2;
  four.shared_ffn = four.expert_ffn;
  add("olmoe", 9, 3);
  add("qwen2moe", 10, 4).shared_ffn = 160;
  add("qwen3moe", 40, 8);
  return out;
}

std::vector<TinyLlamaShape> tiny_latents() {
  TinyLlamaShape shape = tiny_gqa();
  shape.architecture = "deepseek2";
  shape.heads = 4;
  shape.kv_heads = 1;
  shape.kv_rank = 64;
  shape.rope_dim = 16;
  shape.head_dim = 48;
  shape.value_dim = 32;
  shape.experts = 12;
  shape.experts_used = 3;
  shape.shared_ffn = 96;
  shape.expert_groups = 4;
  shape.expert_groups_used = 2;
  shape.dense_layers = 1;
  TinyLlamaShape v3 = shape;
  shape.heads = 18;  // more than a kernel takes at once
  v3.q_rank = 64;
  v3.shared_ffn = 192;
  return {shape, v3};
}

std::vector<TinyLlamaShape> tiny_hybrids() {
  TinyLlamaShape shape = tiny_gqa();
  shape.architecture = "qwen3next";
  shape.layers = 5;  // R R R A R: rows leave in a recurrent layer, too
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.key_heads = 2;
  shape.value_heads = 6;
  shape.key_dim = 16;
  shape.value_dim = 32;
  shape.experts = 8;
  shape.experts_used = 3;
  shape.shared_ffn = 64;
  TinyLlamaShape dense = shape, mixture = shape;
  dense.architecture = "qwen35";
  dense.experts = dense.shared_ffn = 0;
  mixture.architecture = "qwen35moe";
  return {shape, dense, mixture};
}

std::vector<TinyLlamaShape> all_tiny_architectures() {
  std::vector<TinyLlamaShape> out = tiny_architectures();
  for (TinyLlamaShape& shape : tiny_without_gpu()) out.push_back(std::move(shape));
  for (TinyLlamaShape& shape : tiny_mixtures()) out.push_back(std::move(shape));
  for (TinyLlamaShape& shape : tiny_latents()) out.push_back(std::move(shape));
  for (TinyLlamaShape& shape : tiny_hybrids()) out.push_back(std::move(shape));
  return out;
}

TinyLlamaShape tiny_256() {
  TinyLlamaShape shape;
  shape.dim = 256;
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.ffn = 288;
  return shape;
}

}  // namespace kvasir::test
