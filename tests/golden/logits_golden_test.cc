// The logits of tiny models against those of Hugging Face's transformers: see make_logits_goldens.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <string>

#include "base/mutant.h"
#include "golden/teacher_forcing.h"
#include "golden/tiny_models.h"

namespace kvasir::test {
namespace {

struct Golden {
  uint64_t model_hash = 0;
  std::vector<Token> tokens;
  std::map<uint32_t, std::vector<float>> logits;  // by position
};

// Lines: `# comment`, `model HASH`, `tokens ID...`, `position P LOGIT...`.
Golden read_golden(const std::string& name) {
  Golden golden;
  const std::string path = std::string(KVASIR_SOURCE_DIR) + "/tests/golden/logits_" + name + ".txt";
  std::ifstream in(path);
  EXPECT_TRUE(in.is_open()) << path;
  for (std::string line; std::getline(in, line);) {
    std::istringstream fields(line);
    std::string what;
    fields >> what;
    if (what == "model") {
      fields >> std::hex >> golden.model_hash;
    } else if (what == "tokens") {
      for (Token t; fields >> t;) golden.tokens.push_back(t);
    } else if (what == "position") {
      uint32_t position = 0;
      fields >> position;
      std::vector<float>& row = golden.logits[position];
      for (std::string number; fields >> number;) row.push_back(std::stof(number));
    } else {
      EXPECT_EQ(what, "#") << path << ": " << line.substr(0, 40);
    }
  }
  return golden;
}

class LogitsGolden : public testing::TestWithParam<GoldenModel> {
 protected:
  void SetUp() override {
    std::vector<std::byte> bytes = golden_model_bytes(GetParam());
    golden_ = read_golden(GetParam().name);
    ASSERT_EQ(fnv1a(bytes), golden_.model_hash)
        << "tests/support makes other models than when the goldens were written: run make_logits_goldens.py";
    ASSERT_GT(golden_.tokens.size(), 2u * 256) << "the golden should cross two leaves of attention";
    ASSERT_GE(golden_.logits.size(), 8u);
    ASSERT_EQ(golden_.logits.rbegin()->first + 1, golden_.tokens.size());
    auto file = ModelFile::from_bytes(std::move(bytes), GetParam().name);
    ASSERT_TRUE(file.ok()) << file.status().message();
    file_ = std::move(file).value();
  }

  struct Difference {
    double worst = 0;  // the largest, absolute, of any logit from the golden's
    double rms = 0;
  };
  Difference difference(const ForcedPrecision& precision, uint32_t chunk) {
    Difference result;
    double squares = 0;
    size_t compared = 0, values = 0;
    const int threads = chunk == 1 ? 1 : 2;  // meeting at barriers would take longer than the work
    TeacherForcing model(*file_, precision, static_cast<uint32_t>(golden_.tokens.size()), threads);
    model.run(golden_.tokens, chunk, [&](uint32_t position, std::span<const float> logits) {
      const auto it = golden_.logits.find(position);
      if (it == golden_.logits.end()) return;
      ++compared;
      ASSERT_EQ(logits.size(), it->second.size());
      for (size_t i = 0; i < logits.size(); ++i) {
        const double off = std::fabs(static_cast<double>(logits[i]) - it->second[i]);
        ASSERT_TRUE(std::isfinite(off)) << "position " << position << ", token " << i;
        result.worst = std::max(result.worst, off);
        squares += off * off;
        ++values;
      }
    });
    EXPECT_EQ(compared, golden_.logits.size());
    result.rms = std::sqrt(squares / static_cast<double>(std::max<size_t>(values, 1)));
    std::cout << fmt::format("{}, {}: logits differ by {:.2g} at most, {:.2g} in the root mean square\n",
                             GetParam().name, describe(precision), result.worst, result.rms);
    return result;
  }

  Golden golden_;
  std::unique_ptr<ModelFile> file_;
};

// Logits have a deviation of 2 and reach 10. In f32 both sides compute the same in different orders of
// summation.
constexpr double kF32Worst = 6e-5;
constexpr double kBf16KvWorst = 0.25, kBf16KvRms = 0.05;
constexpr double kQ8KvWorst = 0.7, kQ8KvRms = 0.1;
constexpr double kInt8Worst = 0.7, kInt8Rms = 0.15;
constexpr double kBf16RowsWorst = 0.25, kBf16RowsRms = 0.05;

// In one step, in steps whose ends are nowhere special, and token by token.
TEST_P(LogitsGolden, Float32AgreesClosely) {
  for (uint32_t chunk : {600u, 37u, 1u}) {
    EXPECT_LT(difference({ops::ActivationMode::kF32, ops::KvType::kF32}, chunk).worst, kF32Worst)
        << "in chunks of " << chunk;
  }
}

TEST_P(LogitsGolden, Bf16CacheAgreesRoughly) {
  const Difference d = difference({ops::ActivationMode::kF32, ops::KvType::kBf16}, 256);
  EXPECT_LT(d.worst, kBf16KvWorst);
  EXPECT_LT(d.rms, kBf16KvRms);
  EXPECT_GT(d.worst, kF32Worst) << "the cache was not rounded at all";
}

TEST_P(LogitsGolden, Q8CacheAgreesRoughly) {
  const Difference d = difference({ops::ActivationMode::kF32, ops::KvType::kQ8_0}, 256);
  EXPECT_LT(d.worst, kQ8KvWorst);
  EXPECT_LT(d.rms, kQ8KvRms);
  EXPECT_GT(d.worst, kF32Worst) << "the cache was not rounded at all";
}

// With weights in F32 and F16, activations stay f32.
TEST_P(LogitsGolden, RoundedActivationsAgreeRoughly) {
  const ops::ActivationType rows = ops::activation_for(GetParam().type, ops::ActivationMode::kAuto);
  const bool int8 = rows == ops::ActivationType::kInt8, bf16 = rows == ops::ActivationType::kBf16;
  const Difference d = difference({ops::ActivationMode::kAuto, ops::KvType::kF32}, 256);
  EXPECT_LT(d.worst, int8 ? kInt8Worst : bf16 ? kBf16RowsWorst : kF32Worst);
  EXPECT_LT(d.rms, int8 ? kInt8Rms : bf16 ? kBf16RowsRms : kF32Worst);
  EXPECT_EQ(d.worst > kF32Worst, int8 || bf16)
      << "activations were rounded where they should not be, or not at all";
}

#if defined(KVASIR_MUTANTS)
TEST_P(LogitsGolden, FaultsAreSeen) {
  struct Seeded {
    Mutant fault;
    uint32_t chunk;
  };
  std::vector<Seeded> faults = {{Mutant::kWrongPosition, 256}, {Mutant::kLeafOffByOne, 1}};
  if (GetParam().shape.kv_heads > 1) faults.push_back({Mutant::kSwappedKvHeads, 256});
  for (const auto& [fault, chunk] : faults) {
    ScopedMutant on(fault);
    EXPECT_GT(difference({ops::ActivationMode::kF32, ops::KvType::kF32}, chunk).worst, 10 * kF32Worst)
        << "fault " << static_cast<int>(fault);
  }
}
#endif

INSTANTIATE_TEST_SUITE_P(All, LogitsGolden, testing::ValuesIn(golden_models()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace kvasir::test
