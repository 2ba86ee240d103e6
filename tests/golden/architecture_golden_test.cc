// Tiny models of every architecture against transformers: see make_architectures.py.
#include "golden/architecture_golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>

#include "base/mutant.h"
#include "golden/teacher_forcing.h"
#include "support/temp_file.h"

namespace kvasir::test {
namespace {

// Of the largest difference to the golden, in parts of the root mean square of the golden's logits. Weights,
// activations, K and V are f32 here, so what differs is the rounding of each sum; the golden has none.
constexpr double kWorst = 1e-4;
constexpr ForcedPrecision kExact = {ops::ActivationMode::kF32, ops::KvType::kF32};

std::unique_ptr<ModelFile> open(const GgufBuilder& builder, const std::string& name) {
  auto file = ModelFile::from_bytes(builder.build(), name);
  EXPECT_TRUE(file.ok()) << file.status().message();
  return file.ok() ? std::move(file).value() : nullptr;
}

std::unique_ptr<ModelFile> open_folder(const ArchitectureGolden& golden, const TempFolder& folder) {
  write_model_folder(golden, folder.path());
  auto file = ModelFile::open(folder.path());
  EXPECT_TRUE(file.ok()) << file.status().message();
  return file.ok() ? std::move(file).value() : nullptr;
}

// [position, vocabulary], in one step.
std::vector<float> all_logits(const ArchitectureGolden& golden, const ModelFile& file) {
  std::vector<float> out;
  TeacherForcing model(file, kExact, static_cast<uint32_t>(golden.tokens.size()), 2);
  model.run(golden.tokens, 1000, [&](uint32_t, std::span<const float> logits) {
    out.insert(out.end(), logits.begin(), logits.end());
  });
  return out;
}

double difference(const ArchitectureGolden& golden, const ModelFile& file, uint32_t chunk) {
  double worst = 0;
  size_t compared = 0;
  const int threads = chunk == 1 ? 1 : 2;  // meeting at barriers would take longer than the work
  TeacherForcing model(file, kExact, static_cast<uint32_t>(golden.tokens.size()), threads);
  model.run(golden.tokens, chunk, [&](uint32_t position, std::span<const float> logits) {
    const auto row = golden.logits.find(position);
    if (row == golden.logits.end()) return;
    ++compared;
    for (size_t i = 0; i < golden.ids.size(); ++i) {
      const double off =
          std::fabs(static_cast<double>(logits[static_cast<size_t>(golden.ids[i])]) - row->second[i]);
      ASSERT_TRUE(std::isfinite(off)) << "position " << position << ", token " << golden.ids[i];
      worst = std::max(worst, off);
    }
  });
  EXPECT_EQ(compared, golden.logits.size());
  return worst / golden.scale;
}

class ArchitectureGoldens : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    golden_ = read_architecture_golden(GetParam());
    ASSERT_GE(golden_.logits.size(), 20u);
    ASSERT_EQ(golden_.logits.rbegin()->first + 1, golden_.tokens.size());
    ASSERT_GT(golden_.tokens.size(), 256u + 128) << "the golden should cross a leaf of attention and windows";
    ASSERT_GT(golden_.scale, 0.5);
  }
  ArchitectureGolden golden_;
};

// In one step, in steps whose ends are nowhere special, and token by token.
TEST_P(ArchitectureGoldens, AgreeInFloat32) {
  const TempFolder folder;
  const auto file =
      has_gguf_form(golden_) ? open(architecture_as_gguf(golden_), GetParam()) : open_folder(golden_, folder);
  ASSERT_NE(file, nullptr);
  for (uint32_t chunk : {1000u, 37u, 1u}) {
    const double worst = difference(golden_, *file, chunk);
    std::cout << fmt::format("{}, chunks of {}: {:.2g} of the logits' root mean square\n", GetParam(), chunk,
                             worst);
    EXPECT_LT(worst, kWorst) << "in chunks of " << chunk;
  }
}

TEST_P(ArchitectureGoldens, AFolderComputesTheBitsOfItsGgufFile) {
  if (!has_gguf_form(golden_)) GTEST_SKIP() << "GGUF cannot say it";
  const TempFolder folder;
  const auto a = open_folder(golden_, folder);
  const auto b = open(architecture_as_gguf(golden_), GetParam());
  ASSERT_TRUE(a != nullptr && b != nullptr);
  EXPECT_EQ(a->warnings(), std::vector<std::string>());
  EXPECT_TRUE(all_logits(golden_, *a) == all_logits(golden_, *b));  // not printed: 134,400 numbers
}

INSTANTIATE_TEST_SUITE_P(All, ArchitectureGoldens, testing::ValuesIn(architecture_names()),
                         [](const auto& instance) { return instance.param; });

// One setting of a model, by GGUF's key without the architecture, put a little or wholly wrong: the
// comparison must see it, or it would not see such a mistake in the code.
struct WrongSetting {
  const char* golden;
  const char* key;
  double value;  // of a count, where it is whole and the key is one of a count
  bool count = false;
};

constexpr WrongSetting kWrongSettings[] = {
    {"llama", "rope.freq_base", 10100},
    {"llama", "attention.layer_norm_rms_epsilon", 1e-3},
    {"llama_rope_linear", "rope.scaling.factor", 4.04},
    {"llama_rope_yarn", "rope.scaling.factor", 4.04},
    {"llama_rope_yarn", "rope.scaling.original_context_length", 512, true},
    {"llama_yarn_factor", "rope.scaling.attn_factor", 0.71},
    {"mistral", "attention.sliding_window", 255, true},
    {"mistral", "attention.sliding_window", 257, true},
    {"gemma2", "attention.sliding_window", 95, true},
    {"gemma2", "attention.sliding_window", 97, true},
    {"gemma2", "attn_logit_softcapping", 20.5},
    {"gemma2", "final_logit_softcapping", 12.2},
    {"gemma3", "attention.sliding_window", 95, true},
    {"gemma3", "attention.sliding_window", 97, true},
    {"gemma3", "rope.freq_base_swa", 1000000},
    {"gemma3", "rope.scaling.factor", 1},
    {"cohere2", "attention.sliding_window", 97, true},
    {"cohere2", "attention.layer_norm_epsilon", 1e-3},
    {"cohere2", "logit_scale", 0.261},
    {"gemma4", "attention.sliding_window", 97, true},
    {"gemma4", "final_logit_softcapping", 12.2},
    {"gemma4", "rope.freq_base", 900000},
    {"gemma4", "rope.freq_base_swa", 10100},
    {"glm4", "rope.dimension_count", 14, true},
    {"phi3", "attention.sliding_window", 257, true},
    {"phi3_longrope", "rope.scaling.original_context_length", 512, true},
    {"phi3_longrope", "rope.scaling.attn_factor", 1},
    {"phi3_longrope_short", "rope.scaling.original_context_length", 128, true},
    {"ministral3", "attention.temperature_scale", 0.31},
    {"ministral3", "rope.scaling.yarn_log_multiplier", 0},
    {"granite", "attention.scale", 0.127},
    {"granite", "embedding_scale", 1},
    {"granite", "residual_scale", 0.61},
    {"granite", "logit_scale", 2.01},
    {"deepseek_v2", "rope.scaling.factor", 8.1},
    {"deepseek_v2", "rope.scaling.yarn_log_multiplier", 0.071},
    {"deepseek_v2", "expert_weights_scale", 1.51},
    {"deepseek_v2", "expert_group_used_count", 3, true},
    {"deepseek_v3", "rope.freq_base", 10100},
    {"deepseek_v3", "rope.scaling.yarn_log_multiplier", 0.101},
    {"dots1", "expert_weights_scale", 1.51},
    {"dots1", "expert_group_used_count", 3, true},
    {"granitemoe", "residual_scale", 0.61},
    {"gpt_oss", "attention.sliding_window", 127, true},
    {"gpt_oss", "attention.sliding_window", 129, true},
    {"gpt_oss", "expert_used_count", 2, true},
    {"gpt_oss", "rope.scaling.factor", 31},
    {"mixtral", "expert_used_count", 3, true},
    {"qwen3_5", "attention.layer_norm_rms_epsilon", 1e-3},
    {"qwen3_5", "rope.freq_base", 10100},
    {"qwen3_5_moe", "rope.dimension_count", 16, true},
    {"qwen3_5_moe", "expert_used_count", 2, true},
    {"qwen3_next", "rope.dimension_count", 16, true},
    {"qwen3_next", "expert_used_count", 2, true},
    {"olmoe", "expert_used_count", 2, true},
};

TEST(ArchitectureGoldensFail, WhereASettingIsWrong) {
  for (const WrongSetting& wrong : kWrongSettings) {
    SCOPED_TRACE(fmt::format("{}: {} = {}", wrong.golden, wrong.key, wrong.value));
    const ArchitectureGolden golden = read_architecture_golden(wrong.golden);
    GgufBuilder builder = architecture_as_gguf(golden);
    const auto right = open(builder, wrong.golden);
    ASSERT_NE(right, nullptr);
    const std::string key = right->spec().architecture + "." + wrong.key;
    ASSERT_TRUE(right->gguf().has(key));
    if (wrong.count) {
      builder.set_u32(key, static_cast<uint32_t>(wrong.value));
    } else {
      builder.set_f32(key, static_cast<float>(wrong.value));
    }
    const auto file = open(builder, wrong.golden);
    ASSERT_NE(file, nullptr);
    EXPECT_GT(difference(golden, *file, 1000), 3 * kWorst);
  }
}

// The same of models that only a folder describes: a part of their configuration.
struct WrongField {
  const char* golden;
  const char* right;
  const char* wrong;
};

constexpr WrongField kWrongFields[] = {
    {"cohere2", R"("sliding_window_pattern": 4)", R"("sliding_window_pattern": 3)"},
    {"cohere2_layers", R"("sliding_window": 96)", R"("sliding_window": 95)"},
    {"cohere2_layers", R"("full_attention", "sliding_attention"])",
     R"("sliding_attention", "sliding_attention"])"},
    {"gemma4", R"("partial_rotary_factor": 0.25)", R"("partial_rotary_factor": 0.5)"},
    {"gemma4", R"("sliding_window": 96)", R"("sliding_window": 95)"},
    {"glm4", R"("partial_rotary_factor": 0.5)", R"("partial_rotary_factor": 0.75)"},
    {"llama4", R"("use_qk_norm": true)", R"("use_qk_norm": false)"},
    {"llama4_chunks", R"("attention_chunk_size": 96)", R"("attention_chunk_size": 97)"},
    {"llama4_chunks", R"("no_rope_layers": [1, 0, 1, 1])", R"("no_rope_layers": [1, 1, 1, 1])"},
    {"llama4_chunks", R"("floor_scale": 60)", R"("floor_scale": 61)"},
    {"llama4_chunks", R"("attn_temperature_tuning": true)", R"("attn_temperature_tuning": 0)"},
    {"ministral", R"("sliding_window": 96)", R"("sliding_window": 97)"},
    {"ministral", R"("full_attention", "full_attention")", R"("sliding_attention", "full_attention")"},
    {"qwen2_windows", R"("sliding_window": 96)", R"("sliding_window": 95)"},
    {"qwen2_windows", R"("max_window_layers": 2)", R"("max_window_layers": 3)"},
    {"smollm3_windows", R"("sliding_window": 96)", R"("sliding_window": 97)"},
    {"smollm3_windows", R"("no_rope_layers": [1, 0, 1, 0])", R"("no_rope_layers": [1, 1, 1, 0])"},
    {"gemma3_nested", R"("rope_theta": 20000.0)", R"("rope_theta": 10000.0)"},
    {"gemma3_nested", R"("factor": 4.0)", R"("factor": 4.04)"},
    {"qwen3_moe_sparse", R"("norm_topk_prob": false)", R"("norm_topk_prob": true)"},
    {"qwen3_moe", R"("norm_topk_prob": true)", R"("norm_topk_prob": false)"},
    {"qwen2_moe", R"("norm_topk_prob": false)", R"("norm_topk_prob": true)"},
    {"dots1", R"("norm_topk_prob": true)", R"("norm_topk_prob": false)"},
    {"deepseek_v2", R"("group_limited_greedy")", R"("greedy")"},
    {"deepseek_v2", R"("mscale": 0.707, "mscale_all_dim": 0.707)",
     R"("mscale": 0.72, "mscale_all_dim": 0.72)"},
    {"deepseek_v3", R"("norm_topk_prob": true)", R"("norm_topk_prob": false)"},
    {"qwen3_5", R"("partial_rotary_factor": 0.25)", R"("partial_rotary_factor": 0.5)"},
    {"qwen3_5_moe", R"("num_experts_per_tok": 3)", R"("num_experts_per_tok": 2)"},
    {"qwen3_next", R"("norm_topk_prob": true)", R"("norm_topk_prob": false)"},
    {"qwen3_next", R"("partial_rotary_factor": 0.25)", R"("partial_rotary_factor": 0.5)"},
    {"gpt_oss", R"("truncate": false)", R"("truncate": true)"},
    {"llama_yarn_factor", R"("attention_factor": 0.8)", R"("attention_factor": 0.81)"},
};

TEST(ArchitectureGoldensFail, WhereAFieldIsWrong) {
  for (const auto& [name, right, wrong] : kWrongFields) {
    SCOPED_TRACE(fmt::format("{}: {}", name, wrong));
    ArchitectureGolden golden = read_architecture_golden(name);
    const size_t place = golden.config.find(right);
    ASSERT_NE(place, std::string::npos);
    golden.config.replace(place, std::string(right).size(), wrong);
    const TempFolder folder;
    const auto file = open_folder(golden, folder);
    ASSERT_NE(file, nullptr);
    EXPECT_GT(difference(golden, *file, 1000), 3 * kWorst);
  }
}

#if defined(KVASIR_MUTANTS)
TEST(ArchitectureGoldensFail, WhereTheDecoderIsWrong) {
  struct Seeded {
    const char* golden;
    Mutant fault;
    uint32_t chunk;
  };
  for (const auto& [name, fault, chunk] : {Seeded{"mistral", Mutant::kWindowOffByOne, 1000},
                                           {"gemma2", Mutant::kWindowOffByOne, 37},
                                           {"gemma2", Mutant::kPostNormSkipped, 1},
                                           {"gemma3", Mutant::kRopeOfOtherLayers, 1000},
                                           {"gemma3", Mutant::kNormAfterRope, 1000},
                                           {"qwen3", Mutant::kNormAfterRope, 1000},
                                           {"olmo2", Mutant::kPostNormSkipped, 1},
                                           {"gemma4", Mutant::kValuesNotNormed, 1000},
                                           {"gemma4", Mutant::kLayerUnscaled, 1},
                                           {"gemma4", Mutant::kSwappedKvHeads, 1000},
                                           {"glm4", Mutant::kPostNormSkipped, 1},
                                           {"cohere2", Mutant::kParallelInSeries, 1},
                                           {"cohere2", Mutant::kWindowOffByOne, 1000},
                                           {"qwen2", Mutant::kWrongPosition, 37},
                                           {"phi3", Mutant::kSwappedKvHeads, 1000},
                                           {"llama", Mutant::kLeafOffByOne, 1},
                                           {"deepseek_v2", Mutant::kAbsorbedByOtherHead, 1},
                                           {"deepseek_v3", Mutant::kRopePartMissing, 1},
                                           {"dots1", Mutant::kBiasWeighs, 1000},
                                           {"gpt_oss", Mutant::kSinkLeftOut, 1},
                                           {"gpt_oss", Mutant::kExpertBiasShared, 1000},
                                           {"gpt_oss", Mutant::kExpertNeighbour, 1000},
                                           {"gpt_oss", Mutant::kWindowOffByOne, 1000},
                                           {"llama4", Mutant::kOutputsWeighed, 1},
                                           {"llama4", Mutant::kExpertNeighbour, 1000},
                                           {"qwen3_5", Mutant::kStateOfOtherBlock, 37},
                                           {"qwen3_5", Mutant::kConvolutionForgets, 37},
                                           {"qwen3_5", Mutant::kDecayLeftOut, 1},
                                           {"qwen3_5", Mutant::kOutputGateLeftOut, 1},
                                           {"qwen3_5_moe", Mutant::kSharedUnweighed, 1},
                                           {"qwen3_next", Mutant::kStateOfOtherBlock, 37},
                                           {"qwen3_next", Mutant::kConvolutionForgets, 37},
                                           {"qwen3_next", Mutant::kDecayLeftOut, 1},
                                           {"qwen3_next", Mutant::kOutputGateLeftOut, 1},
                                           {"mixtral", Mutant::kExpertNeighbour, 1000},
                                           {"qwen2_moe", Mutant::kSharedUnweighed, 1}}) {
    SCOPED_TRACE(fmt::format("{}, fault {}", name, static_cast<int>(fault)));
    const ArchitectureGolden golden = read_architecture_golden(name);
    const auto file = open(architecture_as_gguf(golden), name);
    ASSERT_NE(file, nullptr);
    const ScopedMutant on(fault);
    EXPECT_GT(difference(golden, *file, chunk), 3 * kWorst);
  }
}
#endif

}  // namespace
}  // namespace kvasir::test
