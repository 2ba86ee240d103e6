// The kernels over rows, in every instruction set.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "reference.h"

namespace kvasir::ops {
namespace {

const float kInf = std::numeric_limits<float>::infinity();
constexpr int64_t kLengths[] = {1, 7, 15, 16, 17, 31, 32, 48, 576, 577};

std::vector<float> exps(const Kernels& kernels, const std::vector<float>& x) {
  std::vector<float> y(x.size());
  kernels.exp_shifted(x.data(), 0.0f, static_cast<int64_t>(x.size()), y.data());
  return y;
}

TEST(Exp, ExactValues) {
  const std::vector<float> x = {0.0f, -0.0f, -kInf, -87.5f, -1e30f, -std::nextafter(87.0f, 88.0f)};
  for_each_isa([&](const Kernels& kernels) {
    same_bits({1.0f, 1.0f, 0.0f, 0.0f, 0.0f, 0.0f}, exps(kernels, x), "exact values");
    const auto big = exps(kernels, {88.0f, 89.0f, kInf, std::numeric_limits<float>::quiet_NaN()});
    EXPECT_NEAR(big[0] / std::exp(88.0), 1.0, 2e-7);
    EXPECT_EQ(big[1], big[0]);
    EXPECT_EQ(big[2], big[0]);
    EXPECT_TRUE(std::isnan(big[3]));
    EXPECT_GT(exps(kernels, {-87.0f})[0], std::numeric_limits<float>::min());
  });
}

TEST(Exp, ErrorIsBelowTwoInTenMillion) {
  std::vector<float> x;
  for (int i = 0; i <= 400000; ++i) x.push_back(-87.0f + 175.0f * static_cast<float>(i) / 400000.0f);
  for (int i = 1; i < 20000; ++i) x.push_back(static_cast<float>(i) * -1e-5f);
  std::vector<float> want;
  for (float v : x) want.push_back(reference_exp(v));
  double worst = 0;
  for_each_isa([&](const Kernels& kernels) {
    const auto y = exps(kernels, x);
    same_bits(want, y, "exp");
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = std::exp(static_cast<double>(x[i]));
      worst = std::max(worst, std::fabs(static_cast<double>(y[i]) - exact) / exact);
    }
  });
  EXPECT_LT(worst, 2e-7);
  RecordProperty("worst_relative_error", std::to_string(worst));
}

TEST(RmsNorm, SumsInSixteenLanes) {
  for (int64_t n : kLengths) {
    Random random(static_cast<uint64_t>(n));
    const auto x = random_floats(random, n, 4.0f);
    const auto weight = random_floats(random, n);
    std::vector<float> lanes(16), want;
    for (int64_t i = 0; i < n; ++i) {
      float& lane = lanes[static_cast<size_t>(i % 16)];
      lane = std::fma(x[static_cast<size_t>(i)], x[static_cast<size_t>(i)], lane);
    }
    const float inverse = 1.0f / std::sqrt(reference_tree(lanes) / static_cast<float>(n) + 1e-5f);
    for (size_t i = 0; i < x.size(); ++i) want.push_back((x[i] * inverse) * weight[i]);
    for_each_isa([&](const Kernels& kernels) {
      std::vector<float> y(x.size() + 1, -7.0f);
      kernels.rms_norm(x.data(), weight.data(), n, 1e-5f, y.data());
      EXPECT_EQ(y.back(), -7.0f) << "written past the end";
      y.pop_back();
      same_bits(want, y, "n=" + std::to_string(n));
      std::vector<float> in_place = x;
      kernels.rms_norm(in_place.data(), weight.data(), n, 1e-5f, in_place.data());
      same_bits(want, in_place, "in place");
    });
  }
}

TEST(Rope, RotatesNeighbouringPairs) {
  for (int64_t half : {1, 3, 8, 20, 32, 40}) {
    const int64_t heads = 3, dim = 2 * half + 4;
    Random random(static_cast<uint64_t>(half));
    const auto x = random_floats(random, heads * dim);
    const auto c = random_floats(random, half);
    const auto s = random_floats(random, half);
    std::vector<float> want = x;
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < half; ++i) {
        const auto at = static_cast<size_t>(h * dim + 2 * i);
        const auto j = static_cast<size_t>(i);
        want[at] = std::fma(x[at], c[j], -(x[at + 1] * s[j]));
        want[at + 1] = std::fma(x[at + 1], c[j], x[at] * s[j]);
      }
    }
    for_each_isa([&](const Kernels& kernels) {
      std::vector<float> y = x;
      kernels.rope(y.data(), heads, dim, c.data(), s.data(), half);
      same_bits(want, y, "half=" + std::to_string(half));
    });
  }
}

TEST(Elementwise, SiluAddScale) {
  for (int64_t n : kLengths) {
    Random random(static_cast<uint64_t>(n));
    auto gate = random_floats(random, n, 30.0f);
    if (n > 16) gate[3] = -200.0f, gate[4] = 200.0f, gate[5] = 0.0f;
    const auto up = random_floats(random, n);
    std::vector<float> silu, sum, scaled, added;
    for (size_t i = 0; i < gate.size(); ++i) {
      silu.push_back(gate[i] / (1.0f + reference_exp(-gate[i])) * up[i]);
      sum.push_back(gate[i] + up[i]);
      scaled.push_back(gate[i] * 0.125f);
      added.push_back(std::fma(gate[i], 0.3f, up[i]));
    }
    for_each_isa([&](const Kernels& kernels) {
      std::vector<float> y(gate.size());
      kernels.silu_mul(gate.data(), up.data(), n, y.data());
      same_bits(silu, y, "silu");
      kernels.add(gate.data(), up.data(), n, y.data());
      same_bits(sum, y, "add");
      kernels.scale(gate.data(), 0.125f, n, y.data());
      same_bits(scaled, y, "scale");
      y = up;
      kernels.add_scaled(gate.data(), 0.3f, n, y.data());
      same_bits(added, y, "add_scaled");
    });
  }
}

// (up' + 1) gate' sigmoid(1.702 gate'), the gate cut at 7, up at -7 and 7.
TEST(Elementwise, ClampedSwiglu) {
  for (int64_t n : kLengths) {
    Random random(static_cast<uint64_t>(n));
    const auto gate = random_floats(random, n, 12.0f), up = random_floats(random, n, 12.0f);
    std::vector<float> want;
    for (size_t i = 0; i < gate.size(); ++i) {
      const float g = std::min(gate[i], 7.0f), u = std::clamp(up[i], -7.0f, 7.0f);
      want.push_back(g / (1.0f + reference_exp(g * -1.702f)) * (u + 1.0f));
    }
    for_each_isa([&](const Kernels& kernels) {
      std::vector<float> y(gate.size());
      kernels.clamped_swiglu(gate.data(), up.data(), 1.702f, 7.0f, n, y.data());
      same_bits(want, y, "clamped_swiglu");
    });
  }
  // By hand: sigmoid(1.702) = 0.845795, times 1.5 - 0.5 + 1; at the limits 7 sigmoid(11.914) (7 + 1).
  for_each_isa([&](const Kernels& kernels) {
    const float gate[3] = {1.0f, 50.0f, -100.0f}, up[3] = {0.5f, 9.0f, -9.0f};
    float y[3];
    kernels.clamped_swiglu(gate, up, 1.702f, 7.0f, 3, y);
    EXPECT_NEAR(y[0], 1.268693f, 1e-5f);
    EXPECT_NEAR(y[1], 55.999626f, 1e-4f);
    EXPECT_NEAR(y[2], 0.0f, 1e-6f);
  });
}

TEST(Softmax, MaximumAndSumByLane) {
  for (int64_t n : {1, 15, 16, 17, 1000, 49152}) {
    Random random(static_cast<uint64_t>(n));
    const auto x = random_floats(random, n, 20.0f);
    float max = x[0];
    for (float v : x) max = std::max(max, v);
    std::vector<float> lanes(16);
    for (size_t i = 0; i < x.size(); ++i) lanes[i % 16] += reference_exp(x[i] - max);
    const float sum = reference_tree(lanes);
    for_each_isa([&](const Kernels& kernels) {
      float got_max = 0, got_sum = 0;
      kernels.softmax_stats(x.data(), n, &got_max, &got_sum);
      same_bits({max, sum}, {got_max, got_sum}, "n=" + std::to_string(n));
    });
  }
}

TEST(Softmax, MaskedLogitsCountForNothing) {
  for_each_isa([&](const Kernels& kernels) {
    std::vector<float> x(40, -kInf);
    x[37] = 2.0f;
    float max = 0, sum = 0;
    kernels.softmax_stats(x.data(), 40, &max, &sum);
    EXPECT_EQ(max, 2.0f);
    EXPECT_EQ(sum, 1.0f);
  });
}

}  // namespace
}  // namespace kvasir::ops
