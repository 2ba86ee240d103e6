// Folders of Hugging Face: what config.json means for each architecture. That logits are those of the GGUF
// file: exec/bits_test.cc.
#include "model/folders/model_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "model/model_folder_cases.h"

namespace kvasir {
namespace {

using ops::WeightType;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<int32_t> windows_of(const ModelSpec& spec) {
  std::vector<int32_t> out;
  for (const LayerSpec& layer : spec.layer_specs) out.push_back(layer.window);
  return out;
}
std::vector<int32_t> ropes_of(const ModelSpec& spec) {
  std::vector<int32_t> out;
  for (const LayerSpec& layer : spec.layer_specs) out.push_back(layer.rope);
  return out;
}

TEST(ModelFolder, EveryArchitectureHasTheSpecOfItsGgufFile) {
  for (const test::TinyLlamaShape& shape : test::all_tiny_architectures()) {
    SCOPED_TRACE(shape.architecture);
    const Opened folder(make_tiny_folder(shape, WeightType::kBf16, 5));
    const auto gguf = ModelFile::from_bytes(test::make_tiny_llama(shape, WeightType::kBf16, 5), "model.gguf");
    ASSERT_TRUE(gguf.ok()) << gguf.status().message();
    const ModelSpec& a = (*folder).spec();
    const ModelSpec& b = (*gguf)->spec();
    EXPECT_EQ(a.architecture, b.architecture);
    EXPECT_EQ(
        std::tie(a.layers, a.context_length, a.dim, a.ffn_dim, a.heads, a.kv_heads, a.head_dim, a.vocab_size),
        std::tie(b.layers, b.context_length, b.dim, b.ffn_dim, b.heads, b.kv_heads, b.head_dim,
                 b.vocab_size));
    EXPECT_TRUE(a.experts == b.experts);
    EXPECT_EQ(std::tie(a.tied_embeddings, a.norm, a.norm_epsilon, a.qk_norm, a.query_scale, a.score_cap),
              std::tie(b.tied_embeddings, b.norm, b.norm_epsilon, b.qk_norm, b.query_scale, b.score_cap));
    EXPECT_EQ(
        std::tie(a.temperature_scale, a.temperature_interval, a.activation, a.gated, a.embedding_scale),
        std::tie(b.temperature_scale, b.temperature_interval, b.activation, b.gated, b.embedding_scale));
    EXPECT_EQ(std::tie(a.residual_scale, a.logit_scale, a.logit_cap, a.position_offset, a.learned_positions),
              std::tie(b.residual_scale, b.logit_scale, b.logit_cap, b.position_offset, b.learned_positions));
    EXPECT_EQ(a.layer_specs, b.layer_specs);
    ASSERT_EQ(a.ropes.size(), b.ropes.size());
    for (size_t r = 0; r < a.ropes.size(); ++r) {
      const Rope &x = a.ropes[r], &y = b.ropes[r];
      EXPECT_EQ(std::tie(x.dim, x.base, x.linear_factor, x.divisors, x.attention_factor),
                std::tie(y.dim, y.base, y.linear_factor, y.divisors, y.attention_factor));
    }
    EXPECT_TRUE(a.latent == b.latent);
    const std::set<std::string> turns_neighbours = {"cohere2", "deepseek2", "glm4", "llama4", "opt"};
    EXPECT_EQ(a.split_pairs, !turns_neighbours.contains(shape.architecture));
    EXPECT_THAT((*folder).warnings(), IsEmpty());
  }
}

// What published configurations, or those that transformers writes, have in other words.
TEST(ModelFolder, ReadsMixturesInOtherWords) {
  const auto folder_of = [](const std::string& architecture, int32_t shared_ffn = -1) {
    for (test::TinyLlamaShape& shape : test::tiny_mixtures()) {
      if (shape.architecture != architecture) continue;
      if (shared_ffn >= 0) shape.shared_ffn = shared_ffn;
      return make_tiny_folder(shape, WeightType::kBf16, 5);
    }
    KV_CHECK(false, "{}", architecture);
    return TinyFolder();
  };
  TinyFolder qwen = folder_of("qwen3moe");
  qwen.edit("config.json", R"("num_experts":)", R"("num_local_experts":)");
  EXPECT_EQ((*Opened(qwen)).spec().experts.count, 40);
  const TinyFolder dots = folder_of("dots1");
  EXPECT_EQ(
      (*Opened(with(dots, R"("scoring_func":"noaux_tc","topk_method":"noaux_tc")"))).spec().experts.gating,
      Gating::kSigmoid);
  expect_refused(with(dots, R"("scoring_func":"softmax")"), ErrorCode::kUnsupported, "'scoring_func'");
  expect_refused(with(dots, R"("topk_method":"greedy")"), ErrorCode::kUnsupported, "'topk_method'");
  const TinyFolder granite = folder_of("granitemoe", 0);
  EXPECT_EQ((*Opened(granite)).spec().experts.shared_ffn_dim, 0);
  EXPECT_EQ((*Opened(with(granite, R"("shared_intermediate_size":0)"))).spec().experts.shared_ffn_dim, 0);
  expect_refused(with(granite, R"("shared_intermediate_size":64)"), ErrorCode::kCorrupt,
                 "'layers.0.shared_mlp.input_linear.weight' is missing");
}

TEST(ModelFolder, ReadsDeepseek) {
  const std::vector<test::TinyLlamaShape> shapes = test::tiny_latents();
  const TinyFolder v2 = make_tiny_folder(shapes[0], WeightType::kBf16, 5);
  TinyFolder v3 = make_tiny_folder(shapes[1], WeightType::kBf16, 5);
  TinyFolder lite = v2;
  lite.edit("config.json", R"("topk_method":"group_limited_greedy")", R"("topk_method":"greedy")");
  EXPECT_EQ((*Opened(lite)).spec().experts.groups, 1);
  for (const char* field :
       {R"("topk_method":"noaux_tc")", R"("norm_topk_prob":true)", R"("scoring_func":"sigmoid")",
        R"("attention_bias":true)", R"("rms_norm_eps":1e-5)", R"("moe_layer_freq":2)"}) {
    const std::string name(field, std::string_view(field).find(':'));
    expect_refused(with(v2, field), ErrorCode::kUnsupported, name.substr(1, name.size() - 2));
  }
  expect_refused(with(v3, R"("rope_interleave":false)"), ErrorCode::kUnsupported, "'rope_interleave'");
  TinyFolder other = v3;
  other.edit("config.json", R"("mscale":1.0)", R"("mscale":0.5)");
  expect_refused(other, ErrorCode::kUnsupported, "'mscale'");
  // A layer that guesses further tokens lies behind the last one.
  v3.tensors.push_back(v3.tensor("model.layers.0.input_layernorm.weight"));
  v3.tensors.back().name = "model.layers.3.input_layernorm.weight";
  expect_refused(v3, ErrorCode::kUnsupported, "lies beyond the model's 3 layers");
  const Opened further(with(v3, R"("num_nextn_predict_layers":1)"));
  EXPECT_THAT((*further).warnings(),
              testing::ElementsAre(testing::HasSubstr("1 tensors of layers behind the last")));
  other = make_tiny_folder(shapes[1], WeightType::kBf16, 5);
  other.tensor("model.layers.1.self_attn.kv_b_proj.weight").shape = {128, 128};
  expect_refused(other, ErrorCode::kCorrupt, "self_attn.kv_b_proj.weight' is 128 x 128");
}

TinyFolder gpt_oss_folder(WeightType experts) {
  for (test::TinyLlamaShape& shape : test::tiny_mixtures()) {
    if (shape.architecture != "gpt-oss") continue;
    shape.other_types = {{"_exps", experts}};
    return make_tiny_folder(shape, WeightType::kBf16, 5);
  }
  KV_CHECK(false, "no gpt-oss");
  return {};
}

TEST(ModelFolder, RefusesGptOssInOtherForms) {
  const TinyFolder bf16 = gpt_oss_folder(WeightType::kBf16), mxfp4 = gpt_oss_folder(WeightType::kMxfp4);
  EXPECT_EQ((*Opened(mxfp4)).weights().layers[1].experts.gate[3].type, WeightType::kMxfp4);
  expect_refused(with(bf16, R"("swiglu_alpha":1.7)"), ErrorCode::kUnsupported, "'swiglu_alpha' is 1.7");
  TinyFolder limit = bf16;
  limit.edit("config.json", R"("swiglu_limit":7.0)", R"("swiglu_limit":8.0)");
  expect_refused(limit, ErrorCode::kUnsupported, "'swiglu_limit' is 8");
  TinyFolder plain = bf16;
  plain.edit("config.json", R"("rope_parameters":{)", R"("rope_scaling":null,"x":{)");
  expect_refused(plain, ErrorCode::kUnsupported, "'rope_scaling' is null");
  TinyFolder other = mxfp4;
  other.edit("config.json", R"("quant_method":"mxfp4")", R"("quant_method":"fp8")");
  expect_refused(other, ErrorCode::kUnsupported, "'quantization_config'");
  expect_refused(with(tiny_folder_of("llama"), R"("quantization_config":{"quant_method":"mxfp4"})"),
                 ErrorCode::kUnsupported, "'quantization_config'");
  const auto without = [](TinyFolder folder, const std::string& name) {
    std::erase_if(folder.tensors, [&](const auto& tensor) { return tensor.name == name; });
    return folder;
  };
  const std::string experts = "model.layers.1.mlp.experts.";
  expect_refused(without(mxfp4, experts + "gate_up_proj_scales"), ErrorCode::kCorrupt,
                 "'layers.1.mlp.experts.gate_up_proj_scales' is missing");
  expect_refused(without(mxfp4, experts + "gate_up_proj_bias"), ErrorCode::kCorrupt,
                 "'layers.1.mlp.experts.gate_up_proj_bias' is missing");
  expect_refused(without(bf16, "model.layers.2.self_attn.sinks"), ErrorCode::kCorrupt,
                 "'layers.2.self_attn.sinks' is missing");
  TinyFolder odd = mxfp4;
  odd.tensor(experts + "down_proj_blocks").shape = {8, 128, 6, 8};
  expect_refused(odd, ErrorCode::kCorrupt, "shape of the tensor layers.1.mlp.experts.down_proj_blocks");
  TinyFolder flat = bf16;
  flat.tensor(experts + "gate_up_proj").shape = {8, 128 * 192};
  expect_refused(flat, ErrorCode::kCorrupt, "blk.1.ffn_gate_exps.weight");
  TinyFolder twice = bf16;
  twice.tensors.push_back(twice.tensor(experts + "down_proj"));
  twice.tensors.back().name = "layers.1.mlp.experts.down_proj";
  expect_refused(twice, ErrorCode::kCorrupt, "there twice");
  // Before its partner and behind it.
  for (const char* packed : {"down_proj_blocks", "down_proj_scales"}) {
    for (const bool first : {true, false}) {
      TinyFolder again = mxfp4;
      test::FolderTensor copy = again.tensor(experts + packed);
      copy.name = std::string("layers.1.mlp.experts.") + packed;
      again.tensors.insert(first ? again.tensors.begin() : again.tensors.end(), copy);
      expect_refused(again, ErrorCode::kCorrupt, "what becomes blk.1.ffn_down_exps.weight is there twice");
    }
  }
  for (const char* packed : {"down_proj_blocks", "down_proj_scales"}) {
    TinyFolder lone = bf16;
    lone.tensors.push_back(TinyFolder(mxfp4).tensor(experts + packed));
    expect_refused(lone, ErrorCode::kCorrupt, "is missing");
  }
  TinyFolder bytes = bf16;
  auto& tensor = bytes.tensor("model.layers.1.self_attn.q_proj.weight");
  tensor.type = "U8";
  tensor.data.resize(tensor.data.size() / 2);
  expect_refused(bytes, ErrorCode::kUnsupported, "is of type U8");
  for (const char* packed : {"down_proj_blocks", "down_proj_scales"}) {
    TinyFolder is_signed = mxfp4;
    is_signed.tensor(experts + packed).type = "I8";
    expect_refused(is_signed, ErrorCode::kCorrupt,
                   "shape of the tensor layers.1.mlp.experts.down_proj_blocks");
  }
}

TEST(ModelFolder, ScalesOfMxfp4ArePartOfTheFingerprint) {
  const TinyFolder folder = gpt_oss_folder(WeightType::kMxfp4);
  const auto fingerprint = (*Opened(folder)).fingerprint();
  EXPECT_EQ((*Opened(folder)).fingerprint(), fingerprint);
  for (const char* part : {"gate_up_proj", "down_proj"}) {
    for (const bool first : {true, false}) {
      TinyFolder other = folder;
      auto& scales = other.tensor(fmt::format("model.layers.1.mlp.experts.{}_scales", part)).data;
      (first ? scales.front() : scales.back()) ^= std::byte{1};
      EXPECT_NE((*Opened(other)).fingerprint(), fingerprint) << part << first;
    }
  }
}

TEST(ModelFolder, ReadsTheScalingOfRope) {
  const auto rope_of = [](const std::string& fields, const std::string& architecture = "llama") {
    const Opened opened(with(tiny_folder_of(architecture), fields));
    return (*opened).spec().ropes[0];
  };
  EXPECT_EQ(rope_of(R"("rope_scaling":{"type":"linear","factor":4})").linear_factor, 4);
  // Llama 3.1: of 16 pairs over a base of 10000 the first turn fast and stay, the last are divided by 8.
  const Rope llama3 = rope_of(
      R"("rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,)"
      R"("original_max_position_embeddings":1024})");
  ASSERT_EQ(llama3.divisors.size(), 16U);
  EXPECT_EQ(llama3.divisors.front(), 1);
  EXPECT_EQ(llama3.divisors.back(), 8);
  // Pair 7 has the wavelength 2 pi 10000^(7/16) = 353.3: smooth = (1024 / 353.3 - 1) / 3 = 0.6328.
  EXPECT_NEAR(llama3.divisors[7], 1 / (0.3672 / 8 + 0.6328), 1e-3);
  EXPECT_EQ(llama3.linear_factor, 1);

  const Rope yarn =
      rope_of(R"("rope_scaling":{"type":"yarn","factor":4.0,"original_max_position_embeddings":512})");
  EXPECT_EQ(yarn.divisors.front(), 1);
  EXPECT_EQ(yarn.divisors.back(), 4);
  EXPECT_FLOAT_EQ(yarn.attention_factor, 0.1F * std::log(4.0F) + 1);
  const auto yarn_factor = [&](const std::string& fields, const std::string& architecture = "llama") {
    return rope_of(R"("rope_scaling":{"type":"yarn","factor":4.0,)" + fields + "}", architecture)
        .attention_factor;
  };
  EXPECT_FLOAT_EQ(yarn_factor(R"("attention_factor":1.5)"), 1.5F);
  EXPECT_FLOAT_EQ(yarn_factor(R"("mscale":1.0,"mscale_all_dim":1.0)"), 1);
  EXPECT_FLOAT_EQ(yarn_factor(R"("mscale":0.5,"mscale_all_dim":2.0)"),
                  (0.05F * std::log(4.0F) + 1) / (0.2F * std::log(4.0F) + 1));
  EXPECT_FLOAT_EQ(yarn_factor(R"("mscale":0.5)"), 0.1F * std::log(4.0F) + 1);

  // Since transformers 5 one object has all; what it says goes first.
  const Rope newer = rope_of(R"("rope_parameters":{"rope_type":"linear","factor":2.0,"rope_theta":5000.0})");
  EXPECT_EQ(newer.base, 5000);
  EXPECT_EQ(newer.linear_factor, 2);

  const std::string lists = R"("short_factor":[1,1,1,1,1,1,1,2],"long_factor":[3,3,3,3,3,3,3,4])";
  const Rope longrope = rope_of(
      R"("original_max_position_embeddings":512,"rope_scaling":{"type":"longrope",)" + lists + "}", "phi3");
  EXPECT_EQ(longrope.divisors.back(), 2);
  EXPECT_EQ(longrope.long_divisors.back(), 4);
  EXPECT_EQ(longrope.original_context, 512);
  EXPECT_FLOAT_EQ(longrope.attention_factor, std::sqrt(1 + std::log(4.0F) / std::log(512.0F)));
}

TEST(ModelFolder, Gemma3MayHaveTheRopesOfBothKindsOfLayersInOneObject) {
  const Opened opened(
      with(tiny_folder_of("gemma3"),
           R"("rope_parameters":{"full_attention":{"rope_type":"linear","factor":8,"rope_theta":2e6},)"
           R"("sliding_attention":{"rope_type":"default","rope_theta":20000}})"));
  const ModelSpec& spec = (*opened).spec();
  ASSERT_EQ(spec.ropes.size(), 2U);
  EXPECT_EQ(spec.ropes[0].base, 2e6F);
  EXPECT_EQ(spec.ropes[0].linear_factor, 8);
  EXPECT_EQ(spec.ropes[1].base, 20000);
  EXPECT_EQ(spec.ropes[1].linear_factor, 1);
}

TEST(ModelFolder, ReadsWhatDiffersFromLayerToLayer) {
  const Opened gemma3(with(tiny_folder_of("gemma3"), R"("sliding_window_pattern":2)"));
  EXPECT_THAT(windows_of((*gemma3).spec()), ElementsAre(96, 0, 96, 0, 96, 0));
  EXPECT_THAT(ropes_of((*gemma3).spec()), ElementsAre(1, 0, 1, 0, 1, 0));

  const Opened typed(with(tiny_folder_of("gemma2"),
                          R"("layer_types":["full_attention","sliding_attention","full_attention"])"));
  EXPECT_THAT(windows_of((*typed).spec()), ElementsAre(0, 96, 0));

  const Opened smollm3(with(tiny_folder_of("smollm3"),
                            R"("no_rope_layers":[0,1,1,0],"use_sliding_window":true,"sliding_window":64)"));
  EXPECT_THAT(ropes_of((*smollm3).spec()), ElementsAre(-1, 0, 0, -1));
  EXPECT_THAT(windows_of((*smollm3).spec()), ElementsAre(64, 0, 0, 64));

  const Opened qwen2(with(tiny_folder_of("qwen2"),
                          R"("use_sliding_window":true,"sliding_window":64,"max_window_layers":1)"));
  EXPECT_THAT(windows_of((*qwen2).spec()), ElementsAre(0, 64, 64));
  const Opened off(with(tiny_folder_of("qwen2"),
                        R"("use_sliding_window":false,"sliding_window":64,"max_window_layers":1)"));
  EXPECT_THAT(windows_of((*off).spec()), ElementsAre(0, 0, 0));

  TinyFolder mistral = with(tiny_folder_of(), R"("sliding_window":null)");
  mistral.edit("config.json", R"("model_type":"llama")", R"("model_type":"mistral")");
  const Opened none(mistral);
  EXPECT_THAT(windows_of((*none).spec()), ElementsAre(0, 0, 0));
  mistral.edit("config.json", R"("sliding_window":null)", R"("sliding_window":32)");
  const Opened all(mistral);
  EXPECT_THAT(windows_of((*all).spec()), ElementsAre(32, 32, 32));
  mistral.edit(
      "config.json", R"("model_type":"mistral")",
      R"("model_type":"ministral","layer_types":["sliding_attention","full_attention","full_attention"])");
  const Opened some(mistral);
  EXPECT_THAT(windows_of((*some).spec()), ElementsAre(32, 0, 0));
}

TEST(ModelFolder, ReadsConstantsOfGemma) {
  TinyFolder folder = tiny_folder_of("gemma2");
  folder.edit("config.json", R"("query_pre_attn_scalar":32)", R"("query_pre_attn_scalar":144)");
  folder.edit("config.json", R"("attn_logit_softcapping":50.0)", R"("attn_logit_softcapping":null)");
  folder.edit("config.json", R"("final_logit_softcapping":30.0)", R"("final_logit_softcapping":20.0)");
  const Opened opened(folder);
  EXPECT_FLOAT_EQ((*opened).spec().query_scale, 1.0F / 12);
  EXPECT_EQ((*opened).spec().score_cap, 0);
  EXPECT_EQ((*opened).spec().logit_cap, 20);
}

TEST(ModelFolder, WarnsOfWhatIsNotUsed) {
  TinyFolder folder =
      with(tiny_folder_of(), R"("some_new_field":3,"another":{"a":1},"empty":[],"off":false)");
  folder.tensors.push_back(
      {"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {1}, std::vector<std::byte>(4)});
  const Opened opened(folder);
  EXPECT_THAT((*opened).warnings(), ElementsAre(HasSubstr("are not used: 'another', 'some_new_field'")));
}

}  // namespace
}  // namespace kvasir
