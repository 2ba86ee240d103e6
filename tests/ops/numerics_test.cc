// Conversions, GGUF rows, deterministic functions and the RoPE table.
#include "ops/numerics.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "ops/det_math.h"
#include "ops/rope_table.h"
#include "reference.h"

namespace kvasir::ops {
namespace {

// The value of a finite half by its definition.
double half_value(uint32_t bits) {
  const int exponent = static_cast<int>((bits >> 10) & 31);
  const int fraction = static_cast<int>(bits & 1023);
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

TEST(Half, EveryValueIsExactAndComesBack) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float f = f16_to_f32(static_cast<uint16_t>(bits));
    const uint16_t back = f32_to_f16(f);
    if ((bits & 0x7FFF) > 0x7C00) {
      EXPECT_TRUE(std::isnan(f)) << bits;
      EXPECT_EQ(back, bits | 0x200) << bits;
      continue;
    }
    EXPECT_EQ(back, bits);
    if ((bits & 0x7FFF) == 0x7C00) {
      EXPECT_TRUE(std::isinf(f));
    } else {
      ASSERT_EQ(f, half_value(bits)) << bits;
    }
  }
}

TEST(Half, RoundsToNearestEvenBetweenAllNeighbours) {
  for (uint32_t bits = 0; bits < 0x7BFF; ++bits) {
    const double low = half_value(bits);
    const double high = half_value(bits + 1);
    const auto middle = static_cast<float>((low + high) / 2);
    const uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(f32_to_f16(middle), even) << bits;
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, 0.0f)), bits) << bits;
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, 1e9f)), bits + 1) << bits;
    ASSERT_EQ(f32_to_f16(-middle), even | 0x8000) << bits;
  }
  EXPECT_EQ(f32_to_f16(65519.996f), 0x7BFF);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7C00);
  EXPECT_EQ(f32_to_f16(1e-30f), 0);
  EXPECT_EQ(f32_to_f16(-1e-30f), 0x8000);
}

TEST(BrainFloat, EveryValueComesBackAndMiddlesGoToEven) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float f = bf16_to_f32(static_cast<uint16_t>(bits));
    EXPECT_EQ(std::bit_cast<uint32_t>(f), bits << 16);
    if (std::isnan(f)) {
      EXPECT_EQ(f32_to_bf16(f), bits | 0x40);
      continue;
    }
    EXPECT_EQ(f32_to_bf16(f), bits);
    if (std::isinf(f)) continue;
    const uint32_t middle = (bits << 16) | 0x8000;
    ASSERT_EQ(f32_to_bf16(std::bit_cast<float>(middle)), bits + bits % 2) << bits;
    ASSERT_EQ(f32_to_bf16(std::bit_cast<float>(middle - 1)), bits) << bits;
    ASSERT_EQ(f32_to_bf16(std::bit_cast<float>(middle + 1)), bits + 1) << bits;
  }
}

TEST(Activations, FollowTheWeightsUnlessF32IsAskedFor) {
  using enum ActivationType;
  for (auto [weights, rows] : {std::pair{WeightType::kF32, kF32},
                               {WeightType::kF16, kF32},
                               {WeightType::kBf16, kBf16},
                               {WeightType::kQ8_0, kInt8},
                               {WeightType::kQ4_0, kInt8},
                               {WeightType::kQ4_1, kInt8}}) {
    EXPECT_EQ(activation_for(weights, ActivationMode::kAuto), rows) << weight_type_name(weights);
    EXPECT_EQ(activation_for(weights, ActivationMode::kF32), kF32) << weight_type_name(weights);
  }
  EXPECT_STREQ(activation_type_name(kBf16), "bf16");
  EXPECT_STREQ(activation_mode_name(ActivationMode::kAuto), "auto");
}

TEST(WeightRows, SizesAreGguf) {
  EXPECT_EQ(row_bytes(WeightType::kF32, 7), 28u);
  EXPECT_EQ(row_bytes(WeightType::kBf16, 7), 14u);
  EXPECT_EQ(row_bytes(WeightType::kQ8_0, 64), 68u);
  EXPECT_EQ(row_bytes(WeightType::kQ4_0, 64), 36u);
  EXPECT_EQ(row_bytes(WeightType::kQ4_1, 64), 40u);
}

TEST(WeightRows, BlocksByHand) {
  // Scale 0.5, minimum -1; the first byte holds elements 0 (low nibble) and 16 (high).
  std::vector<uint8_t> block(20, 0);
  block[1] = 0x38;
  block[3] = 0xBC;
  block[4] = 0xF3;
  std::vector<float> out(32);
  dequantize_row(WeightType::kQ4_1, block.data(), 32, out.data());
  EXPECT_EQ(out[0], 0.5f);
  EXPECT_EQ(out[16], 6.5f);
  EXPECT_EQ(out[1], -1.0f);
  dequantize_row(WeightType::kQ4_0, block.data() + 2, 32, out.data());  // scale -1
  EXPECT_EQ(out[0], 5.0f);
  EXPECT_EQ(out[16], -7.0f);
  std::vector<uint8_t> bytes(34, 0);
  bytes[1] = 0x38;
  bytes[2] = 0x80;
  bytes[33] = 0x7F;
  dequantize_row(WeightType::kQ8_0, bytes.data(), 32, out.data());
  EXPECT_EQ(out[0], -64.0f);
  EXPECT_EQ(out[31], 63.5f);
}

TEST(DetMath, AgreesWithLongDouble) {
  Random random(3);
  double worst_exp = 0, worst_log = 0, worst_pow = 0, worst_trig = 0;
  for (int i = 0; i < 200000; ++i) {
    const double x = (random.unit() - 0.5) * 1400;
    const long double e = std::exp(static_cast<long double>(x));
    worst_exp = std::max(worst_exp, std::fabs(static_cast<double>((det_exp(x) - e) / e)));
    const double y = std::exp((random.unit() - 0.5) * (i % 2 ? 1400 : 0.1));
    const long double l = std::log(static_cast<long double>(y));
    if (l != 0) worst_log = std::max(worst_log, std::fabs(static_cast<double>((det_log(y) - l) / l)));
    const double base = 1 + random.unit() * 1e6;
    const double power = (random.unit() - 0.5) * 4;
    const long double p = std::pow(static_cast<long double>(base), static_cast<long double>(power));
    worst_pow = std::max(worst_pow, std::fabs(static_cast<double>((det_pow(base, power) - p) / p)));
    const double angle = (random.unit() - 0.5) * (i % 2 ? 300000 : 8);
    const auto wide = static_cast<long double>(angle);
    worst_trig = std::max(worst_trig, std::fabs(static_cast<double>(det_sin(angle) - std::sin(wide))));
    worst_trig = std::max(worst_trig, std::fabs(static_cast<double>(det_cos(angle) - std::cos(wide))));
  }
  EXPECT_LT(worst_exp, 1e-15);
  EXPECT_LT(worst_log, 1e-15);
  EXPECT_LT(worst_pow, 1e-15);
  EXPECT_LT(worst_trig, 1e-15);
}

TEST(DetMath, Corners) {
  EXPECT_EQ(det_exp(0), 1.0);
  EXPECT_EQ(det_exp(-1000), 0.0);
  EXPECT_EQ(det_exp(-std::numeric_limits<double>::infinity()), 0.0);
  EXPECT_EQ(det_exp(1000), std::numeric_limits<double>::infinity());
  EXPECT_EQ(det_log(1), 0.0);
  EXPECT_EQ(det_log(0), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(det_log(-1)));
  EXPECT_EQ(det_sin(0), 0.0);
  EXPECT_EQ(det_cos(0), 1.0);
  EXPECT_EQ(det_pow(10000, 0), 1.0);
  EXPECT_EQ(det_pow(2, 10), 1024.0);
}

TEST(RopeTable, HoldsAnglesByPosition) {
  const std::vector<float> factors = {1.0f, 2.0f, 4.0f, 8.0f};
  RopeSpec spec{300, 8, 10000.0, 2.0, factors};
  const RopeTable table = make_rope_table(spec);
  ASSERT_EQ(table.half, 4);
  for (int64_t p : {0, 1, 7, 299}) {
    for (int64_t i = 0; i < 4; ++i) {
      const long double inverse = std::pow(10000.0L, -2.0L * static_cast<long double>(i) / 8);
      const long double angle = static_cast<long double>(p) / 2 * inverse / factors[static_cast<size_t>(i)];
      EXPECT_NEAR(table.cos_row(p)[i], static_cast<double>(std::cos(angle)), 7e-8);
      EXPECT_NEAR(table.sin_row(p)[i], static_cast<double>(std::sin(angle)), 7e-8);
    }
  }
}

}  // namespace
}  // namespace kvasir::ops
