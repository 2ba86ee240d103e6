// One step of a Hopper tensor core: against the published model of it, by hand, and in lanes.
#include "ops/gpu/fused16.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "base/mutant.h"
#include "fused16_cases.h"
#include "ops/gpu/fused16_lanes.h"
#include "ops/numerics.h"

namespace kvasir::ops {
namespace {

uint32_t word_of(float x) {
  return std::bit_cast<uint32_t>(x);
}

struct Golden {
  uint64_t cases = 0, hash = 0;
  std::vector<uint32_t> results;
};

Golden read_golden() {
  const std::string path = std::string(KVASIR_SOURCE_DIR) + "/tests/golden/fused16.txt";
  std::ifstream in(path);
  EXPECT_TRUE(in.is_open()) << path;
  Golden golden;
  for (std::string line; std::getline(in, line);) {
    std::istringstream fields(line);
    if (line.starts_with("#")) continue;
    std::string what;
    if (line.starts_with("cases")) {
      fields >> what >> golden.cases >> std::hex >> golden.hash;
      continue;
    }
    for (uint32_t bits = 0; fields >> std::hex >> bits;) golden.results.push_back(bits);
  }
  return golden;
}

uint64_t hash_of_cases(uint64_t count) {
  uint64_t hash = 0xcbf29ce484222325;
  for (uint64_t i = 0; i < count; ++i) {
    const Fused16Case c = fused16_case(i);
    static_assert(sizeof(c) == 4 + 4 * kFusedProducts, "no padding");
    const auto* bytes = reinterpret_cast<const uint8_t*>(&c);
    for (size_t b = 0; b < sizeof(c); ++b) hash = (hash ^ bytes[b]) * 0x100000001b3;
  }
  return hash;
}

// Cases whose result differs from the golden's.
uint64_t count_differences(const Golden& golden) {
  uint64_t differing = 0;
  for (uint64_t i = 0; i < golden.results.size(); ++i) {
    const Fused16Case c = fused16_case(i);
    if (word_of(fused16(c.accumulator, c.a, c.b)) != golden.results[i]) ++differing;
  }
  return differing;
}

TEST(Fused16, EqualsThePublishedModel) {
  const Golden golden = read_golden();
  ASSERT_GE(golden.cases, 5000u);
  ASSERT_EQ(golden.results.size(), golden.cases);
  ASSERT_EQ(hash_of_cases(golden.cases), golden.hash) << "make_mma_goldens.py makes other cases";
  EXPECT_EQ(count_differences(golden), 0u);
}

TEST(Fused16, CasesAreOfManyKinds) {
  const KeepSubnormals mode;
  std::array<int, kFused16Kinds> ordinary{};
  int infinite = 0, nan = 0, subnormal = 0, zero = 0;
  for (uint64_t i = 0; i < 6000; ++i) {
    const Fused16Case c = fused16_case(i);
    const float result = fused16(c.accumulator, c.a, c.b);
    EXPECT_NE(word_of(result), 0x80000000u) << i;
    EXPECT_TRUE(!std::isnan(result) || word_of(result) == 0x7FFFFFFF) << i;
    infinite += std::isinf(result) ? 1 : 0;
    nan += std::isnan(result) ? 1 : 0;
    zero += result == 0 ? 1 : 0;
    subnormal += std::fpclassify(result) == FP_SUBNORMAL ? 1 : 0;
    ordinary[i % kFused16Kinds] += std::isfinite(result) && result != 0 ? 1 : 0;
  }
  // Of 500 each.
  for (const int count : ordinary) EXPECT_GT(count, 150);
  EXPECT_GT(infinite, 100);
  EXPECT_GT(nan, 20);
  EXPECT_GT(zero, 20);
  EXPECT_GT(subnormal, 100);
}

// A step of which only some products are not zero.
float step(float accumulator, std::initializer_list<std::pair<float, float>> products) {
  uint16_t a[kFusedProducts] = {}, b[kFusedProducts] = {};
  size_t i = 0;
  for (const auto& [x, y] : products) {
    a[i] = f32_to_bf16(x);
    b[i] = f32_to_bf16(y);
    ++i;
  }
  return fused16(accumulator, a, b);
}

TEST(Fused16, ByHand) {
  const KeepSubnormals mode;
  EXPECT_EQ(step(0, {{2, 3}, {-1, 4}}), 2.0f);
  EXPECT_EQ(step(1, {}), 1.0f);
  // 2^-25 is the last place of a sum at 1, which f32 does not hold; two of them it does not hold either.
  EXPECT_EQ(step(1, {{0x1p-25f, 1}, {0x1p-25f, 1}}), 1.0f);
  EXPECT_EQ(step(1, {{0x1p-24f, 1}, {0x1p-25f, 1}, {0x1p-25f, 1}}), 1.0f + 0x1p-23f);
  // What is below it is gone before the sum.
  EXPECT_EQ(step(1, {{0x1p-24f, 1}, {0x1p-26f, 1}, {0x1p-26f, 1}, {0x1p-26f, 1}, {0x1p-26f, 1}}), 1.0f);
  // Toward zero, on both sides of it.
  EXPECT_EQ(step(-1, {{-0x1p-24f, 1}}), -1.0f);
  EXPECT_EQ(step(1, {{-0x1p-26f, 1}}), 1.0f);
  EXPECT_EQ(step(1, {{-0x1p-25f, 1}}), 1.0f - 0x1p-24f);
  // 1.5 * 1.5 counts as one of exponent 0, not 1, so that 2^-25 is still there beside it.
  EXPECT_EQ(step(-2.25f, {{1.5f, 1.5f}, {0x1p-25f, 1}}), 0.0f);  // the accumulator's exponent is 1
  EXPECT_EQ(step(0, {{1.5f, 1.5f}, {-1.5f, 1.5f}, {0x1p-25f, 1}}), 0x1p-25f);
  EXPECT_EQ(step(0x1p127f, {{0x1p64f, 0x1p63f}}), std::numeric_limits<float>::infinity());
  EXPECT_EQ(word_of(step(-0.0f, {})), 0u);
  EXPECT_EQ(word_of(step(0, {{-1, 0}})), 0u);
  // The smallest subnormal, and what is cut at 2^-158.
  EXPECT_EQ(step(0, {{0x1p-100f, 0x1p-49f}}), 0x1p-149f);
  EXPECT_EQ(step(0, {{0x1p-100f, 0x1p-50f}, {0x1p-100f, 0x1p-50f}}), 0x1p-149f);
}

TEST(Fused16, NamesNoOrder) {
  for (uint64_t i = 0; i < 2000; ++i) {
    Fused16Case c = fused16_case(i);
    const uint32_t want = word_of(fused16(c.accumulator, c.a, c.b));
    EXPECT_EQ(word_of(fused16(c.accumulator, c.b, c.a)), want) << i;
    std::reverse(c.a, c.a + kFusedProducts);
    std::reverse(c.b, c.b + kFusedProducts);
    std::rotate(c.a, c.a + 5, c.a + kFusedProducts);
    std::rotate(c.b, c.b + 5, c.b + kFusedProducts);
    EXPECT_EQ(word_of(fused16(c.accumulator, c.a, c.b)), want) << i;
  }
}

// So a step of zeros may be left out.
TEST(Fused16, AddsNothingForZeros) {
  const uint16_t zeros[kFusedProducts] = {};
  for (uint64_t i = 0; i < 2000; ++i) {
    const Fused16Case c = fused16_case(i);
    const float sum = fused16(c.accumulator, c.a, c.b);
    EXPECT_EQ(word_of(fused16(sum, zeros, zeros)), word_of(sum)) << i;
  }
}

#if defined(KVASIR_MUTANTS)
TEST(Fused16, GoldensSeeFaults) {
  const Golden golden = read_golden();
  for (const Mutant fault : {Mutant::kFusedBy8, Mutant::kFusedTo24Bits, Mutant::kFusedAccumulatorUncut}) {
    const ScopedMutant on(fault);
    EXPECT_GT(count_differences(golden), golden.cases / 20) << static_cast<int>(fault);
  }
}
#endif

// ---------------------------------------------------------------- lanes

// Rows of one case after another, by columns that are cases of the same kind.
class LanesOfKind : public testing::TestWithParam<uint64_t> {};

TEST_P(LanesOfKind, HaveTheBitsOfTheScalars) {
  constexpr int64_t kSteps = 3, kRows = 5, kK = kSteps * kFusedProducts, kStride = kK + 16, kOutStride = 24;
  for (uint64_t round = 0; round < 8; ++round) {
    uint64_t next = GetParam() + round * 10000 * kFused16Kinds;
    const auto draw = [&] {
      next += kFused16Kinds;
      return fused16_case(next);
    };
    std::vector<uint16_t> x(kRows * kStride), panel(kK * kFusedLanes);
    std::vector<float> start(kRows * kOutStride, 7.0f);
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t s = 0; s < kSteps; ++s) {
        const Fused16Case c = draw();
        std::copy_n(c.a, kFusedProducts, x.data() + r * kStride + s * kFusedProducts);
      }
      for (int64_t j = 0; j < kFusedLanes; ++j) {
        start[static_cast<size_t>(r * kOutStride + j)] = draw().accumulator;
      }
    }
    for (int64_t j = 0; j < kFusedLanes; ++j) {
      for (int64_t s = 0; s < kSteps; ++s) {
        const Fused16Case c = draw();
        for (int64_t i = 0; i < kFusedProducts; ++i) {
          panel[static_cast<size_t>((s * kFusedProducts + i) * kFusedLanes + j)] = c.b[i];
        }
      }
    }
    std::vector<float> want = start;
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t j = 0; j < kFusedLanes; ++j) {
        float& acc = want[static_cast<size_t>(r * kOutStride + j)];
        for (int64_t k = 0; k < kK; k += kFusedProducts) {
          uint16_t column[kFusedProducts];
          for (int64_t i = 0; i < kFusedProducts; ++i) {
            column[i] = panel[static_cast<size_t>((k + i) * kFusedLanes + j)];
          }
          acc = fused16(acc, x.data() + r * kStride + k, column);
        }
      }
    }
    for (const IsaClass isa : supported_sets()) {
      std::vector<float> got = start;
      fused16_chains(isa)(x.data(), kStride, kRows, panel.data(), kK, got.data(), kOutStride);
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(word_of(got[i]), word_of(want[i])) << isa_name(isa) << " round " << round << " at " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, LanesOfKind, testing::Range<uint64_t>(0, kFused16Kinds));

}  // namespace
}  // namespace kvasir::ops
