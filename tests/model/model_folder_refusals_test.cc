// Fields of config.json that are refused, with one clear line.
#include <gtest/gtest.h>

#include <array>

#include "model/model_folder_cases.h"

namespace kvasir {
namespace {

TEST(ModelFolder, NamesAFieldThatItDoesNotCompute) {
  const std::vector<std::array<std::string, 3>> cases = {
      {"llama", R"("quantization_config":{"quant_method":"hqq"})", "'quant_method' is \"hqq\""},
      {"llama", R"("mlp_bias":true)", "'mlp_bias' is true"},
      {"llama", R"("is_causal":false)", "'is_causal' is false"},
      {"llama", R"("architectures":["LlamaForSequenceClassification"])", "not a model that generates text"},
      {"llama", R"("rope_scaling":{"type":"dynamic","factor":2})", "scaling of type 'dynamic'"},
      {"llama", R"("rope_scaling":{"type":"linear","factor":2,"new":1})", "rope_scaling: 'new' is 1"},
      {"llama", R"("rope_scaling":{"type":"linear"})", "rope_scaling: 'factor' is not given"},
      {"llama", R"("rope_scaling":3)", "'rope_scaling' is 3"},
      {"llama", R"("partial_rotary_factor":0.5)", "'partial_rotary_factor' is 0.5"},
      {"qwen2", R"("layer_types":["chunked_attention","full_attention","full_attention"])",
       "'layer_types' is ["},
      {"qwen2", R"("layer_types":["full_attention"])", "where one for each of 3 layers is needed"},
      {"gemma3", R"("use_bidirectional_attention":true)", "'use_bidirectional_attention' is true"},
      {"gemma3", R"("attn_logit_softcapping":50.0)", "'attn_logit_softcapping' is 50.0"},
      {"smollm3", R"("no_rope_layers":[1])", "'no_rope_layers' is [1]"},
      {"granite", R"("residual_multiplier":0.0)", "'residual_multiplier' is 0.0"},
      {"opt", R"("do_layer_norm_before":false)", "'do_layer_norm_before' is false"},
      {"opt", R"("word_embed_proj_dim":64)", "projections of the embedding"},
      {"opt", R"("_remove_final_layer_norm":true)", "'_remove_final_layer_norm' is true"},
      {"opt", R"("activation_function":"gelu")", "'activation_function' is \"gelu\""},
      {"llama", R"("hidden_act":"gelu")", "'hidden_act' is \"gelu\""},
      {"gemma2", R"("hidden_activation":"gelu")", "'hidden_activation' is \"gelu\""},
      {"llama", R"("model_type":"qwen4_text")",
       "the model_type 'qwen4_text' is not supported; use one of cohere2, deepseek_v2, deepseek_v3, dots1"},
  };
  for (const auto& [architecture, fields, part] : cases) expect_field_refused(architecture, fields, part);
}

TEST(ModelFolder, NamesAFieldThatMakesNoSense) {
  const auto refused = [](const std::string& fields, const std::string& part) {
    expect_refused(with(tiny_folder_of(), fields), ErrorCode::kInvalidArgument, part);
  };
  refused(R"("hidden_size":"wide")", "'hidden_size' is \"wide\", where a whole number");
  refused(R"("num_hidden_layers":2000000000)", "'num_hidden_layers' is 2000000000");
  refused(R"("num_attention_heads":-1)", "'num_attention_heads' is -1");
  refused(R"("num_attention_heads":2.5)", "'num_attention_heads' is 2.5");
  refused(R"("head_dim":1e300)", "'head_dim' is 1e+300");
  refused(R"("attention_bias":"no")", "'attention_bias' is \"no\", where true or false");
  refused(R"("rms_norm_eps":[])", "'rms_norm_eps' is [], where a finite number");
  TinyFolder folder = tiny_folder_of();
  folder.texts["config.json"] = "[1]";
  expect_refused(folder, ErrorCode::kCorrupt, "config.json: this is not a JSON object");
  folder.texts["config.json"] = R"({"a":)" + std::string(100, '[') + std::string(100, ']') + "}";
  expect_refused(folder, ErrorCode::kCorrupt, "config.json: this is not a JSON object");
  folder.texts["config.json"] = std::string(size_t{3} << 20, ' ');
  expect_refused(folder, ErrorCode::kInvalidArgument, "more than any file of this kind");
  folder = tiny_folder_of();
  folder.edit("config.json", R"("num_hidden_layers":3,)", "");
  expect_refused(folder, ErrorCode::kUnsupported, "'num_hidden_layers' is not given");
}

}  // namespace
}  // namespace kvasir
