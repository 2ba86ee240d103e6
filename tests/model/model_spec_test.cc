// Metadata to ModelSpec: defaults, bounds, and the variants that are refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "model/architectures/architecture.h"
#include "support/tiny_llama.h"

namespace kvasir {
namespace {

using test::GgufBuilder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

GgufBuilder tiny_header() {
  return test::tiny_llama_builder(test::tiny_gqa(), ops::WeightType::kQ4_1, 3);
}

Result<ModelSpec> config_of(const GgufBuilder& builder) {
  const auto bytes = builder.build();
  auto file = Gguf::parse(bytes, "model.gguf");
  if (!file.ok()) return file.status();
  return read_model_spec(*file);
}

void expect_refused(const GgufBuilder& builder, ErrorCode code, const std::string& part) {
  const Status status = config_of(builder).status();
  ASSERT_FALSE(status.ok()) << part;
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_THAT(status.message(), AllOf(StartsWith("model.gguf: "), HasSubstr(part), Not(HasSubstr("\n"))));
}

TEST(ModelSpec, ReadsAShape) {
  auto config = config_of(tiny_header());
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->architecture, "llama");
  EXPECT_EQ(config->name, "tiny llama of random weights");
  EXPECT_EQ(config->layers, 3);
  EXPECT_EQ(config->context_length, 2048);
  EXPECT_EQ(config->dim, 128);
  EXPECT_EQ(config->ffn_dim, 192);
  EXPECT_EQ(config->heads, 4);
  EXPECT_EQ(config->kv_heads, 2);
  EXPECT_EQ(config->head_dim, 32);
  EXPECT_EQ(config->vocab_size, 512);
  EXPECT_EQ(config->ropes[0].base, 10000.0F);
  EXPECT_EQ(config->ropes[0].linear_factor, 1.0F);
  EXPECT_EQ(config->norm_epsilon, 1e-5F);
  EXPECT_TRUE(config->ropes[0].divisors.empty());
  EXPECT_TRUE(config->tied_embeddings);
  EXPECT_EQ(config->q_dim(), 128);
  EXPECT_EQ(config->kv_dim(), 64);
  EXPECT_EQ(config->queries_per_kv(), 2);
  EXPECT_EQ(config->kv_bytes_per_token(ops::KvType::kBf16), 2U * 3 * 64 * 2);
  EXPECT_EQ(config->kv_bytes_per_token(ops::KvType::kQ8_0), 2U * 3 * (64 + 2 * 2));  // two heads of 32
}

TEST(ModelSpec, FillsInDefaults) {
  GgufBuilder b = test::tiny_llama_builder(test::tiny_mha(), ops::WeightType::kF32, 3);
  for (const char* key : {"general.name", "llama.attention.head_count_kv", "llama.attention.key_length",
                          "llama.attention.value_length", "llama.rope.dimension_count",
                          "llama.rope.freq_base", "llama.vocab_size"}) {
    b.remove(key);
  }
  auto config = config_of(b);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->name, "");
  EXPECT_EQ(config->kv_heads, 3);
  EXPECT_EQ(config->head_dim, 32);
  EXPECT_EQ(config->ropes[0].base, 10000.0F);
  EXPECT_EQ(config->vocab_size, 512);
}

TEST(ModelSpec, SeesUntiedEmbeddingsAndRopeFactors) {
  test::TinyLlamaShape shape = test::tiny_mha();
  shape.tied = false;
  shape.rope_factors = true;
  auto config = config_of(test::tiny_llama_builder(shape, ops::WeightType::kQ8_0, 3));
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_FALSE(config->tied_embeddings);
  EXPECT_FALSE(config->ropes[0].divisors.empty());
}

TEST(ModelSpec, NamesAnotherArchitecture) {
  GgufBuilder b = tiny_header();
  for (const char* name : {"rwkv7", "qwen4", "deepseek"}) {
    b.set_string("general.architecture", name);
    expect_refused(b, ErrorCode::kUnsupported,
                   fmt::format("'{}' is not supported; use one of cohere2, deepseek2, dots1, gemma2", name));
  }
  b.remove("general.architecture");
  expect_refused(b, ErrorCode::kNotFound, "general.architecture");
}

TEST(ModelSpec, NamesAMissingOrImpossibleCount) {
  for (const char* key : {"llama.block_count", "llama.context_length", "llama.embedding_length",
                          "llama.feed_forward_length", "llama.attention.head_count"}) {
    GgufBuilder b = tiny_header();
    b.set_u32(key, 0);
    expect_refused(b, ErrorCode::kCorrupt, key);
    b.set_u32(key, 1U << 31);
    expect_refused(b, ErrorCode::kCorrupt, key);
    b.set_string(key, "many");
    expect_refused(b, ErrorCode::kInvalidArgument, key);
    b.remove(key);
    expect_refused(b, ErrorCode::kNotFound, key);
  }
}

TEST(ModelSpec, ChecksTheHeads) {
  GgufBuilder b = tiny_header();
  b.set_u32("llama.attention.head_count_kv", 3);
  expect_refused(b, ErrorCode::kCorrupt, "do not divide evenly among 3 KV heads");

  b = tiny_header();
  b.set_u32("llama.attention.head_count_kv", 8);
  expect_refused(b, ErrorCode::kCorrupt, "4 query heads");

  b = tiny_header();
  b.set_u32("llama.embedding_length", 126);
  b.remove("llama.attention.key_length");
  expect_refused(b, ErrorCode::kCorrupt, "width 126");

  b = tiny_header();
  b.set_u32("llama.attention.value_length", 16);
  expect_refused(b, ErrorCode::kUnsupported, "32 values a head and values 16");

  b = tiny_header();
  for (const char* key :
       {"llama.attention.key_length", "llama.attention.value_length", "llama.rope.dimension_count"}) {
    b.set_u32(key, 31);
  }
  expect_refused(b, ErrorCode::kUnsupported, "31");

  b = tiny_header();
  b.set_u32("llama.rope.dimension_count", 16);
  EXPECT_EQ(config_of(b)->ropes[0].dim, 16);
  b.set_u32("llama.rope.dimension_count", 34);
  expect_refused(b, ErrorCode::kCorrupt, "34 of the 32");
}

TEST(ModelSpec, ReadsRopeScaling) {
  test::TinyLlamaShape shape = test::tiny_mha();
  shape.rope_linear_factor = 4.0F;
  GgufBuilder b = test::tiny_llama_builder(shape, ops::WeightType::kF16, 3);
  EXPECT_EQ(config_of(b)->ropes[0].linear_factor, 4.0F);
  b.remove("llama.rope.scaling.type");  // a factor alone means linear
  EXPECT_EQ(config_of(b)->ropes[0].linear_factor, 4.0F);
  b.set_string("llama.rope.scaling.type", "none");
  EXPECT_EQ(config_of(b)->ropes[0].linear_factor, 1.0F);
  b.set_string("llama.rope.scaling.type", "su");
  expect_refused(b, ErrorCode::kUnsupported, "'su'");
  b.set_string("llama.rope.scaling.type", "linear");
  b.set_f32("llama.rope.scaling.factor", 0.0F);
  EXPECT_EQ(config_of(b)->ropes[0].linear_factor, 1.0F);
  b.remove("llama.rope.scaling.factor");
  b.set_f32("llama.rope.scale_linear", 2.0F);
  EXPECT_EQ(config_of(b)->ropes[0].linear_factor, 2.0F);

  b.set_string("llama.rope.scaling.type", "yarn");
  b.set_f32("llama.rope.scaling.factor", 4.0F);
  const float yarn = 0.1F * std::log(4.0F) + 1;
  EXPECT_FLOAT_EQ(config_of(b)->ropes[0].attention_factor, yarn);
  b.set_f32("llama.rope.scaling.attn_factor", 0.5F);  // on top of YaRN's
  EXPECT_FLOAT_EQ(config_of(b)->ropes[0].attention_factor, 0.5F * yarn);
}

TEST(ModelSpec, ChecksRealNumbers) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const char* key :
       {"llama.rope.freq_base", "llama.attention.layer_norm_rms_epsilon", "llama.rope.scaling.factor"}) {
    for (float value : {-1.0F, kNan, kInf}) {
      GgufBuilder b = tiny_header();
      b.set_f32(key, value);
      expect_refused(b, ErrorCode::kCorrupt, key);
    }
  }
  GgufBuilder b = tiny_header();
  b.remove("llama.attention.layer_norm_rms_epsilon");
  expect_refused(b, ErrorCode::kNotFound, "layer_norm_rms_epsilon");
}

TEST(ModelSpec, ComparesTheVocabularyWithTheEmbedding) {
  GgufBuilder b = tiny_header();
  b.set_u32("llama.vocab_size", 511);
  expect_refused(b, ErrorCode::kCorrupt, "511 tokens");

  b = tiny_header();
  b.set_strings("tokenizer.ggml.tokens", {"one", "two"});
  expect_refused(b, ErrorCode::kCorrupt, "2 tokens and the embedding 512 rows");

  b = tiny_header();
  b.remove_tensor("token_embd.weight");
  expect_refused(b, ErrorCode::kCorrupt, "token_embd.weight");
}

test::TinyLlamaShape mixture(const std::string& architecture) {
  for (const test::TinyLlamaShape& shape : test::tiny_mixtures()) {
    if (shape.architecture == architecture) return shape;
  }
  return {};
}

TEST(ModelSpec, ReadsMixturesOfExperts) {
  const auto experts = [](const char* architecture) {
    return config_of(test::tiny_llama_builder(mixture(architecture), ops::WeightType::kF32, 1));
  };
  const ExpertSpec mixtral = {.count = 8, .used = 2, .ffn_dim = 96, .renormalise = true};
  EXPECT_TRUE(experts("llama")->experts == mixtral);
  EXPECT_TRUE(experts("llama")->layer(2).experts);
  const ExpertSpec olmoe = {.count = 9, .used = 3, .ffn_dim = 96};
  EXPECT_TRUE(experts("olmoe")->experts == olmoe);
  const ExpertSpec qwen2 = {.count = 10, .used = 4, .ffn_dim = 96, .shared_ffn_dim = 160};
  EXPECT_TRUE(experts("qwen2moe")->experts == qwen2);
  const auto dots1 = experts("dots1");
  const ExpertSpec wanted = {.count = 16,
                             .used = 4,
                             .ffn_dim = 96,
                             .shared_ffn_dim = 192,
                             .gating = Gating::kSigmoid,
                             .renormalise = true,
                             .weight_scale = 1.5F,
                             .groups = 4,
                             .groups_used = 2};
  EXPECT_TRUE(dots1->experts == wanted);
  EXPECT_FALSE(dots1->layer(0).experts);
  EXPECT_TRUE(dots1->layer(1).experts);
  EXPECT_DOUBLE_EQ(dots1->expert_share(), 0.25);
}

// DeepSeek-V2's and V3's: with queries from the layer's input and from a rank.
TEST(ModelSpec, ReadsLatentAttention) {
  const std::vector<test::TinyLlamaShape> shapes = test::tiny_latents();
  const auto v2 = config_of(test::tiny_llama_builder(shapes[0], ops::WeightType::kF32, 1));
  ASSERT_TRUE(v2.ok()) << v2.status().message();
  const LatentSpec latent = {.rank = 64, .q_rank = 0, .nope_dim = 32, .rope_dim = 16, .value_dim = 32};
  EXPECT_TRUE(v2->latent == latent);
  EXPECT_EQ(v2->heads, 18);
  EXPECT_EQ(v2->kv_heads, 1);
  EXPECT_EQ(v2->head_dim, 80);
  EXPECT_EQ(v2->ropes[0].dim, 16);
  EXPECT_FALSE(v2->split_pairs);
  EXPECT_EQ(v2->qkv_dim(), 18 * 80 + 80);
  EXPECT_EQ(v2->attended_dim(), 18 * 64);
  EXPECT_EQ(v2->values_dim(), 18 * 32);
  EXPECT_EQ(v2->kv_bytes_per_token(ops::KvType::kBf16), 3U * 80 * 2);
  EXPECT_EQ(v2->kv_bytes_per_token(ops::KvType::kQ8_0), 3U * 82);
  EXPECT_NEAR(v2->query_scale, 1 / std::sqrt(48.0), 1e-7);
  EXPECT_EQ(v2->experts.gating, Gating::kSoftmax);
  EXPECT_EQ(v2->experts.groups, 4);
  // YaRN by 16 makes queries and keys 1 + 0.1 ln 16 = 1.277259 as long; cosines and sines stay.
  GgufBuilder b = test::tiny_llama_builder(shapes[1], ops::WeightType::kF32, 1);
  const auto v3 = config_of(b);
  ASSERT_TRUE(v3.ok()) << v3.status().message();
  EXPECT_EQ(v3->latent.q_rank, 64);
  EXPECT_NEAR(v3->query_scale, 1.277259 * 1.277259 / std::sqrt(48.0), 1e-6);
  EXPECT_EQ(v3->ropes[0].attention_factor, 1);
  EXPECT_EQ(v3->experts.gating, Gating::kSigmoid);
  // Old files have the lengths of a head.
  b.remove("deepseek2.attention.key_length_mla");
  b.remove("deepseek2.attention.value_length_mla");
  b.set_u32("deepseek2.attention.key_length", 48);
  b.set_u32("deepseek2.attention.value_length", 32);
  b.set_u32("deepseek2.attention.head_count_kv", 4);
  EXPECT_TRUE(*config_of(b) == *v3);
  b.set_u32("deepseek2.attention.key_length", 16);
  expect_refused(b, ErrorCode::kCorrupt, "RoPE turns 16 of the 16 values");
  b.set_u32("deepseek2.attention.key_length", 48);
  b.set_u32("deepseek2.attention.kv_lora_rank", 72);
  expect_refused(b, ErrorCode::kUnsupported, "latent rows of 72 and 16 values are not supported");
  b.set_u32("deepseek2.attention.kv_lora_rank", 1024);
  expect_refused(b, ErrorCode::kUnsupported, "latent rows of 1024 and 16 values are not supported");
  b.remove("deepseek2.attention.kv_lora_rank");
  expect_refused(b, ErrorCode::kUnsupported, "keys have 48 values a head and values 32");
}

TEST(ModelSpec, LatentAttentionIsDeepSeeksAloneAndKeepsItsOrder) {
  GgufBuilder llama = test::tiny_llama_builder(test::tiny_gqa(), ops::WeightType::kF32, 1);
  llama.set_u32("llama.attention.kv_lora_rank", 64);
  expect_refused(llama, ErrorCode::kUnsupported, "latent attention (kv_lora_rank) is not supported");
  GgufBuilder b = test::tiny_llama_builder(test::tiny_latents()[0], ops::WeightType::kF32, 1);
  b.set_bool("kvasir.split_pairs", true);
  expect_refused(b, ErrorCode::kUnsupported, "kvasir.split_pairs is not supported");
}

TEST(ModelSpec, ReadsGptOss) {
  GgufBuilder b = test::tiny_llama_builder(mixture("gpt-oss"), ops::WeightType::kF32, 1);
  b.set_u32("gpt-oss.expert_gating_func", 3);  // a softmax of the chosen scores
  const auto spec = config_of(b);
  const ExpertSpec experts = {.count = 8, .used = 3, .ffn_dim = 96, .renormalise = true};
  EXPECT_TRUE(spec->experts == experts);
  EXPECT_TRUE(spec->sinks);
  EXPECT_EQ(spec->activation, Activation::kClampedSwiglu);
  EXPECT_EQ(spec->layer(0).window, 96);
  EXPECT_EQ(spec->layer(1).window, 0);
  EXPECT_EQ(spec->layer(2).window, 96);
  // YaRN from 100 positions over a base of 150000: pair i turns once in them at
  // i = 32 ln(100 / 2 pi) / (2 ln 150000) = 3.71499, which is not rounded; before pair 0 none turns 32 times.
  const std::vector<float>& divisors = spec->ropes[0].divisors;
  ASSERT_EQ(divisors.size(), 16U);
  EXPECT_EQ(divisors[0], 1);
  EXPECT_NEAR(divisors[1], 1 / (0.269180 / 32 + 1 - 0.269180), 1e-5);
  EXPECT_NEAR(divisors[3], 1 / (0.807539 / 32 + 1 - 0.807539), 1e-4);
  EXPECT_EQ(divisors[4], 32);
  b.set_bool("kvasir.yarn_truncate", true);  // 3.71499 becomes 4
  EXPECT_NEAR(config_of(b)->ropes[0].divisors[1], 1 / (0.25 / 32 + 0.75), 1e-5);
  b.set_bool("gpt-oss.expert_weights_norm", false);  // the weights of such a softmax have the sum 1
  expect_refused(b, ErrorCode::kUnsupported, "'gpt-oss.expert_weights_norm' is false");
}

TEST(ModelSpec, RefusesMixturesThatMakeNoSense) {
  const auto refused = [](const char* key, uint32_t value, ErrorCode code, const std::string& part) {
    GgufBuilder b = test::tiny_llama_builder(mixture("dots1"), ops::WeightType::kF32, 1);
    b.set_u32(fmt::format("dots1.{}", key), value);
    expect_refused(b, code, part);
  };
  refused("expert_count", 0, ErrorCode::kCorrupt, "dots1.expert_count");
  refused("expert_used_count", 17, ErrorCode::kCorrupt, "dots1.expert_used_count");
  refused("expert_used_count", 9, ErrorCode::kCorrupt, "2 of 4 groups of 16 experts do not have 9");
  refused("expert_group_count", 3, ErrorCode::kCorrupt, "2 of 3 groups of 16 experts");
  refused("expert_group_used_count", 5, ErrorCode::kCorrupt, "5 of 4 groups");
  refused("expert_gating_func", 4, ErrorCode::kUnsupported, "'dots1.expert_gating_func' is 4");
  refused("expert_shared_count", 1U << 30, ErrorCode::kCorrupt, "shared experts");
  GgufBuilder many = test::tiny_llama_builder(mixture("llama"), ops::WeightType::kF32, 1);
  many.set_u32("llama.expert_count", 300);
  many.set_u32("llama.expert_used_count", 256);
  EXPECT_TRUE(config_of(many).ok());
  many.set_u32("llama.expert_used_count", 257);
  expect_refused(many, ErrorCode::kUnsupported, "rows of 257 experts are not supported (at most 256)");
}

// llama.cpp's reading of files without a width: that of a layer without experts, divided among those used.
TEST(ModelSpec, OldFilesOfQwenDoNotSayHowWideAnExpertIs) {
  for (const auto& [name, width] : {std::pair{"qwen2moe", 192 / 4}, {"qwen3moe", 192 / 8}}) {
    GgufBuilder b = test::tiny_llama_builder(mixture(name), ops::WeightType::kF32, 1);
    b.remove(fmt::format("{}.expert_feed_forward_length", name));
    const auto spec = config_of(b);
    ASSERT_TRUE(spec.ok()) << spec.status().message();
    EXPECT_EQ(spec->experts.ffn_dim, width);
  }
}

TEST(ModelSpec, RefusesVariantsThatItWouldComputeWrongly) {
  GgufBuilder experts = tiny_header();
  experts.set_u32("llama.expert_count", 0);
  EXPECT_TRUE(config_of(experts).ok());
  experts.set_u32("llama.expert_used_count", 2);
  expect_refused(experts, ErrorCode::kUnsupported, "llama.expert_used_count");
  for (const char* key : {"llama.logit_scale", "llama.attention.scale", "llama.attn_logit_softcapping"}) {
    GgufBuilder b = tiny_header();
    b.set_f32(key, 0.5F);
    expect_refused(b, ErrorCode::kUnsupported, key);
  }
  GgufBuilder b = tiny_header();
  b.set_bool("llama.attention.causal", false);
  expect_refused(b, ErrorCode::kUnsupported, "not causal");
}

// Keys that folders have: of any file they must fit the model.
TEST(ModelSpec, KeysByLayerFitTheModel) {
  const auto spec_of = [](const auto& change, const std::string& architecture = "llama") {
    test::TinyLlamaShape shape = test::tiny_gqa();
    shape.architecture = architecture;
    test::GgufBuilder file = test::tiny_llama_builder(shape, ops::WeightType::kQ8_0, 1);
    change(file);
    return config_of(file);
  };
  const auto good = spec_of([](test::GgufBuilder& file) {
    file.set_i32s("kvasir.layer_windows", {0, 8, 16});
    file.set_i32s("kvasir.layer_ropes", {-1, 0, 0});
    file.set_bool("kvasir.split_pairs", true);
    file.set_f32("kvasir.query_pre_attn_scalar", 16);
  });
  ASSERT_TRUE(good.ok()) << good.status().message();
  EXPECT_EQ(good->layer(1).window, 8);
  EXPECT_EQ(good->layer(0).rope, -1);
  EXPECT_TRUE(good->split_pairs);
  EXPECT_EQ(good->query_scale, 0.25F);
  for (const std::vector<int32_t>& windows : {std::vector<int32_t>{0, 8}, {0, 8, -1}}) {
    EXPECT_FALSE(spec_of([&](test::GgufBuilder& f) { f.set_i32s("kvasir.layer_windows", windows); }).ok());
  }
  EXPECT_FALSE(spec_of([](test::GgufBuilder& f) { f.set_i32s("kvasir.layer_ropes", {0, 0, 1}); }).ok());
  EXPECT_FALSE(spec_of([](test::GgufBuilder& f) { f.set_f32("kvasir.query_pre_attn_scalar", 0); }).ok());
  const auto opt = spec_of([](test::GgufBuilder& f) { f.set_bool("kvasir.split_pairs", true); }, "opt");
  ASSERT_TRUE(opt.ok()) << opt.status().message();
  EXPECT_FALSE(opt->split_pairs);
}

}  // namespace
}  // namespace kvasir
