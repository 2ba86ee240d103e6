// The forward pass by the GPU numerics, for a tiny model of every architecture: the CPU's in f32 but for the
// noise of bf16, and the same bits however the rows are batched.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>

#include "base/random.h"
#include "exec/gpu_reference_decoder.h"
#include "golden/architecture_golden.h"
#include "golden/teacher_forcing.h"
#include "support/temp_file.h"
#include "support/tiny_llama.h"

namespace kvasir::test {
namespace {

using By = GpuReferenceDecoder::By;

// More than a leaf of attention, and than the windows of the tiny models.
constexpr uint32_t kTokens = 320;

std::unique_ptr<ModelFile> open(const GgufBuilder& builder) {
  auto file = ModelFile::from_bytes(builder.build(), "tiny");
  EXPECT_TRUE(file.ok()) << file.status().message();
  return file.ok() ? std::move(file).value() : nullptr;
}

std::vector<Token> tokens_of(const ModelFile& file) {
  Random random(7);
  std::vector<Token> out;
  for (uint32_t i = 0; i < kTokens; ++i) {
    out.push_back(static_cast<Token>(random.below(static_cast<uint64_t>(file.spec().vocab_size))));
  }
  return out;
}

std::vector<float> gpu_logits(const ModelFile& file, By by, uint32_t count, uint32_t chunk) {
  const std::vector<Token> tokens = tokens_of(file);
  GpuReferenceDecoder decoder(file, kTokens, by);
  std::vector<float> out;
  for (uint32_t begin = 0; begin < count; begin += chunk) {
    const auto logits = decoder.run(std::span(tokens).subspan(begin, std::min(chunk, count - begin)));
    out.insert(out.end(), logits.begin(), logits.end());
  }
  return out;
}

// By the CPU executor.
std::vector<float> cpu_logits(const ModelFile& file, const ForcedPrecision& precision) {
  std::vector<float> out;
  TeacherForcing model(file, precision, kTokens, 2);
  model.run(tokens_of(file), kTokens, [&](uint32_t, std::span<const float> logits) {
    out.insert(out.end(), logits.begin(), logits.end());
  });
  return out;
}
// Weights are bf16 in both.
constexpr ForcedPrecision kInFloats = {ops::ActivationMode::kF32, ops::KvType::kF32};
constexpr ForcedPrecision kInHalves = {ops::ActivationMode::kAuto, ops::KvType::kBf16};

double root_mean_square(const std::vector<float>& x) {
  double squares = 0;
  for (float v : x) squares += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(squares / static_cast<double>(x.size()));
}

// The root mean square of the difference, in parts of the CPU's logits.
double difference(const std::vector<float>& gpu, const std::vector<float>& cpu) {
  EXPECT_EQ(gpu.size(), cpu.size());
  std::vector<float> off(cpu.size());
  for (size_t i = 0; i < off.size(); ++i) off[i] = gpu[i] - cpu[i];
  return root_mean_square(off) / root_mean_square(cpu);
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The worst of the goldens shows 0.034.
constexpr double kGoldenNoise = 0.05;

class GpuDecoder : public testing::TestWithParam<TinyLlamaShape> {
 protected:
  void SetUp() override {
    file_ = open(tiny_llama_builder(GetParam(), ops::WeightType::kBf16, 11));
    ASSERT_NE(file_, nullptr);
  }
  std::unique_ptr<ModelFile> file_;
};

// The CPU's own noise, with rows and a cache in bf16, is the measure: how much a model makes of a rounding
// depends on the model. The GPU's numerics round q and e, too.
constexpr double kTimesTheCpus = 1.3;

TEST_P(GpuDecoder, IsNearTheCpuInFloat32) {
  const std::vector<float> exact = cpu_logits(*file_, kInFloats);
  const double noise = difference(cpu_logits(*file_, kInHalves), exact);
  const double off = difference(gpu_logits(*file_, By::kTwin, kTokens, kTokens), exact);
  std::cout << fmt::format("{}: {:.2g} of the logits' root mean square, the CPU with bf16 {:.2g}\n",
                           GetParam().architecture, off, noise);
  EXPECT_LT(off, kTimesTheCpus * noise);
  EXPECT_GT(off, noise / 4) << "nothing was rounded";
}

// Weights of other types, which are rounded to bf16 besides.
TEST(GpuDecoderWeights, AreOfAnyType) {
  for (const ops::WeightType type :
       {ops::WeightType::kF32, ops::WeightType::kF16, ops::WeightType::kQ8_0, ops::WeightType::kQ4_1}) {
    const auto file = open(tiny_llama_builder(tiny_gqa(), type, 11));
    const auto rounded = open(tiny_llama_builder(tiny_gqa(), ops::WeightType::kBf16, 11));
    ASSERT_TRUE(file != nullptr && rounded != nullptr);
    const double noise = difference(cpu_logits(*rounded, kInHalves), cpu_logits(*rounded, kInFloats));
    const std::vector<float> exact = cpu_logits(*file, kInFloats);
    const double off = difference(gpu_logits(*file, By::kTwin, kTokens, kTokens), exact);
    std::cout << fmt::format("{}: {:.2g} of the logits' root mean square\n", ops::weight_type_name(type),
                             off);
    EXPECT_LT(off, 2 * noise) << ops::weight_type_name(type);
  }
}

TEST_P(GpuDecoder, RowsDoNotDependOnTheBatch) {
  const std::vector<float> want = gpu_logits(*file_, By::kTwin, kTokens, kTokens);
  for (const uint32_t chunk : {37u, 1u}) {
    EXPECT_TRUE(same(gpu_logits(*file_, By::kTwin, kTokens, chunk), want)) << "in chunks of " << chunk;
  }
}

TEST_P(GpuDecoder, TwinAndReferenceHaveTheSameBits) {
  constexpr uint32_t kFew = 12;
  EXPECT_TRUE(same(gpu_logits(*file_, By::kReference, kFew, 5), gpu_logits(*file_, By::kTwin, kFew, kFew)));
}

// Against transformers, which computes in f32: settings and lengths that the tiny models above do not have,
// such as YaRN, LongRoPE, and queries that grow with the position. Weights are rounded to bf16 here, too.
class GpuDecoderGoldens : public testing::TestWithParam<std::string> {};

TEST_P(GpuDecoderGoldens, AgreeButForRounding) {
  const ArchitectureGolden golden = read_architecture_golden(GetParam());
  const TempFolder folder;
  write_model_folder(golden, folder.path());
  auto opened = ModelFile::open(folder.path());
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const auto file = std::move(opened).value();
  if (file->spec().has_experts()) GTEST_SKIP() << "experts do not run on a GPU";
  if (file->spec().is_recurrent()) GTEST_SKIP() << "recurrent layers do not run on a GPU";
  if (file->spec().parallel) GTEST_SKIP() << "parallel blocks do not run on a GPU";
  if (file->spec().has_other_heads()) GTEST_SKIP() << "heads of two sizes do not run on a GPU";
  const auto vocab = static_cast<size_t>(file->spec().vocab_size);
  GpuReferenceDecoder decoder(*file, static_cast<uint32_t>(golden.tokens.size()), By::kTwin);
  const std::vector<float> logits = decoder.run(golden.tokens);
  std::vector<float> got, want;
  for (const auto& [position, row] : golden.logits) {
    for (size_t i = 0; i < row.size(); ++i) {
      got.push_back(logits[position * vocab + static_cast<size_t>(golden.ids[i])]);
      want.push_back(row[i]);
    }
  }
  const double off = difference(got, want);
  std::cout << fmt::format("{}: {:.2g} of the logits' root mean square\n", GetParam(), off);
  EXPECT_LT(off, kGoldenNoise);
}

INSTANTIATE_TEST_SUITE_P(All, GpuDecoderGoldens, testing::ValuesIn(architecture_names()),
                         [](const auto& instance) { return instance.param; });

// A setting of a model a little or wholly wrong: the comparison must see it, or it would not see such a
// mistake in the code.
TEST(GpuDecoderFails, WhereASettingIsWrong) {
  struct Wrong {
    const char* architecture;
    const char* key;
    float value;
    bool count;
  };
  for (const auto& [architecture, key, value, count] :
       {Wrong{"llama", "rope.freq_base", 12000, false},
        {"llama", "attention.sliding_window", 200, true},
        {"gemma2", "attention.sliding_window", 80, true},
        {"gemma2", "attn_logit_softcapping", 5, false},
        {"gemma2", "final_logit_softcapping", 10, false},
        {"gemma3", "rope.freq_base_swa", 1000, false},
        {"granite", "attention.scale", 0.1F, false},
        {"granite", "residual_scale", 0.9F, false},
        {"olmo2", "attention.layer_norm_rms_epsilon", 0.1F, false},
        {"opt", "attention.layer_norm_epsilon", 0.1F, false}}) {
    SCOPED_TRACE(fmt::format("{}: {}", architecture, key));
    const auto shapes = tiny_architectures();
    const auto shape = std::find_if(
        shapes.begin(), shapes.end(),
        [name = std::string(architecture)](const TinyLlamaShape& s) { return s.architecture == name; });
    ASSERT_NE(shape, shapes.end());
    GgufBuilder builder = tiny_llama_builder(*shape, ops::WeightType::kBf16, 11);
    const auto right = open(builder);
    ASSERT_NE(right, nullptr);
    const std::string full = fmt::format("{}.{}", architecture, key);
    if (count) {
      builder.set_u32(full, static_cast<uint32_t>(value));
    } else {
      builder.set_f32(full, value);
    }
    const auto wrong = open(builder);
    ASSERT_NE(wrong, nullptr);
    const std::vector<float> exact = cpu_logits(*right, kInFloats);
    const double noise = difference(cpu_logits(*right, kInHalves), exact);
    EXPECT_GT(difference(gpu_logits(*wrong, By::kTwin, kTokens, kTokens), exact), kTimesTheCpus * noise);
  }
}

std::string name_of(const testing::TestParamInfo<TinyLlamaShape>& info) {
  return info.param.architecture;
}
INSTANTIATE_TEST_SUITE_P(All, GpuDecoder, testing::ValuesIn(tiny_architectures()), name_of);

}  // namespace
}  // namespace kvasir::test
