// The scalar reference of the GPU numerics: what it computes, against double precision and by hand.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/random.h"
#include "ops/cpu/isa.h"
#include "ops/gpu/reference.h"
#include "ops/numerics.h"

namespace kvasir::ops {
namespace {

std::vector<float> uniform(Random& random, int64_t n, float scale = 1) {
  std::vector<float> out(static_cast<size_t>(n));
  for (float& x : out) x = scale * static_cast<float>(2 * random.unit() - 1);
  return out;
}

std::vector<uint16_t> random_halves(Random& random, int64_t n, float scale = 1) {
  std::vector<uint16_t> out;
  for (float x : uniform(random, n, scale)) out.push_back(f32_to_bf16(x));
  return out;
}

double real(uint16_t bits) {
  return static_cast<double>(bf16_to_f32(bits));
}

class GpuReference : public testing::Test {
  const KeepSubnormals mode_;
};

TEST_F(GpuReference, PowersOfTwo) {
  double worst = 0;
  for (float x = -126; x < 127; x += 0.0037F) {
    const double want = std::exp2(static_cast<double>(x));
    worst = std::max(worst, std::fabs(static_cast<double>(reference::exp2(x)) / want - 1));
  }
  EXPECT_LT(worst, 2e-7);
  for (int i = -126; i <= 127; ++i) EXPECT_EQ(reference::exp2(static_cast<float>(i)), std::ldexp(1.0f, i));
  EXPECT_EQ(reference::exp2(1e9f), 0x1p127f);
  EXPECT_EQ(std::bit_cast<uint32_t>(reference::exp2(-HUGE_VALF)), 0u);
  EXPECT_EQ(std::bit_cast<uint32_t>(reference::exp2(-126.001f)), 0u);
  EXPECT_TRUE(std::isnan(reference::exp2(std::numeric_limits<float>::quiet_NaN())));
}

TEST_F(GpuReference, FunctionsOfOneValue) {
  const reference::Cap logits = reference::cap_of(30), scores = reference::score_cap_of(50);
  for (float x = -20; x < 20; x += 0.01F) {
    const auto y = static_cast<double>(x);
    const double u = std::sqrt(2 / M_PI) * (y + 0.044715 * y * y * y);
    EXPECT_NEAR(reference::silu(x), y / (1 + std::exp(-y)), 2e-6);
    EXPECT_NEAR(reference::gelu(x), 0.5 * y * (1 + std::tanh(u)), 2e-6);
    EXPECT_NEAR(reference::cap(x, logits), 30 * std::tanh(y / 30), 1e-5);
    // Scores are in powers of 2.
    EXPECT_NEAR(reference::cap(static_cast<float>(y * M_LOG2E), scores) / M_LOG2E, 50 * std::tanh(y / 50),
                1.5e-5);
  }
  EXPECT_EQ(reference::relu(-1), 0.0f);
  EXPECT_EQ(reference::relu(2), 2.0f);
  EXPECT_EQ(reference::cap_of(0).limit, 0.0f);
}

TEST_F(GpuReference, ProductsAreChains) {
  Random random(1);
  const int64_t rows = 3, n = 5, k = 88;  // the last step is half full
  const auto x = random_halves(random, rows * k), w = random_halves(random, n * k);
  std::vector<float> out(static_cast<size_t>(rows * n));
  reference::gemm(x.data(), w.data(), rows, n, k, out.data());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double want = 0, size = 0;
      for (int64_t c = 0; c < k; ++c) {
        const double product =
            real(x[static_cast<size_t>(i * k + c)]) * real(w[static_cast<size_t>(j * k + c)]);
        want += product;
        size += std::fabs(product);
      }
      EXPECT_NEAR(out[static_cast<size_t>(i * n + j)], want, size * 0x1p-23);
    }
  }
}

TEST_F(GpuReference, Norms) {
  Random random(2);
  for (const int64_t n : {int64_t{64}, int64_t{256}, int64_t{1000}}) {
    const auto x = uniform(random, n, 3), weight = uniform(random, n), bias = uniform(random, n);
    double sum = 0, squares = 0, centred = 0;
    for (float v : x) sum += static_cast<double>(v);
    const double mean = sum / static_cast<double>(n);
    for (float v : x) {
      squares += static_cast<double>(v) * static_cast<double>(v);
      centred += (static_cast<double>(v) - mean) * (static_cast<double>(v) - mean);
    }
    std::vector<float> rms(x.size()), layer = x;
    reference::normalise({reference::NormKind::kRms, weight.data(), nullptr, 1e-5F}, x.data(), n, rms.data());
    // In place.
    reference::normalise({reference::NormKind::kLayer, weight.data(), bias.data(), 1e-5F}, layer.data(), n,
                         layer.data());
    for (size_t i = 0; i < x.size(); ++i) {
      const auto v = static_cast<double>(x[i]), w = static_cast<double>(weight[i]);
      EXPECT_NEAR(rms[i], v / std::sqrt(squares / static_cast<double>(n) + 1e-5) * w, 1e-6);
      EXPECT_NEAR(layer[i], (v - mean) / std::sqrt(centred / static_cast<double>(n) + 1e-5) * w + bias[i],
                  1e-6);
    }
  }
}

// 2^24 + 1 is not a float: which sums are exact tells which elements are added first.
TEST_F(GpuReference, NormsAddByThePartials) {
  std::vector<float> x(512, 0.0f), weight(512, 1.0f), out(512);
  const reference::Norm norm = {reference::NormKind::kRms, weight.data(), nullptr, 0};
  const auto sum_of_squares = [&](std::initializer_list<std::pair<size_t, float>> squares) {
    std::fill(x.begin(), x.end(), 0.0f);
    for (const auto& [place, root] : squares) x[place] = root;
    reference::normalise(norm, x.data(), 512, out.data());
    // y = x / sqrt(sum / 512); 4096^2 = 2^24.
    const double y = static_cast<double>(out[0]) / 4096;
    return 512 * (1 / (y * y));
  };
  // In one partial, each 1 is lost; in another one they survive together.
  const double lost = sum_of_squares({{0, 4096}, {256, 1}, {128, 1}, {384, 0}});
  const double kept = sum_of_squares({{0, 4096}, {1, 40}, {257, 9}});
  EXPECT_NEAR(lost, 0x1p24, 16);
  EXPECT_NEAR(kept, 0x1p24 + 1681, 16);
}

TEST_F(GpuReference, ResidualTakesTheBranchInOrder) {
  const std::vector<float> y = {1, 2, 3, 4}, bias = {1, 1, 1, 1}, weight = {2, 2, 2, 2};
  std::vector<float> x = {10, 10, 10, 10};
  reference::add_to_residual({}, y.data(), 4, x.data());
  EXPECT_EQ(x, (std::vector<float>{11, 12, 13, 14}));
  reference::Branch branch;
  branch.bias = bias.data();
  branch.post_norm = {reference::NormKind::kRms, weight.data(), nullptr, 0};
  branch.scale = 0.5F;
  reference::add_to_residual(branch, y.data(), 4, x.data());
  const double rms = std::sqrt((4.0 + 9 + 16 + 25) / 4);
  for (size_t i = 0; i < 4; ++i) {
    const double want = 11 + static_cast<double>(i) + (2 + static_cast<double>(i)) / rms;
    EXPECT_NEAR(x[i], want, 1e-5);
  }
}

TEST_F(GpuReference, QkvInOrder) {
  Random random(3);
  const int64_t heads = 2, kv_heads = 1, head_dim = 16, half = 4;
  const int64_t width = (heads + 2 * kv_heads) * head_dim;
  const auto qkv = uniform(random, width), bias = uniform(random, width), weight = uniform(random, head_dim);
  const auto angles = uniform(random, half, 3);
  std::vector<float> cos, sin;
  for (float a : angles) {
    cos.push_back(std::cos(a));
    sin.push_back(std::sin(a));
  }
  reference::QkvFinish how;
  how.heads = heads;
  how.kv_heads = kv_heads;
  how.head_dim = head_dim;
  how.bias = bias.data();
  how.q_norm = how.k_norm = weight.data();
  how.norm_epsilon = 1e-6F;
  const float factor = reference::query_factor(0.25);
  EXPECT_NEAR(factor, 0.25 * M_LOG2E, 1e-7);
  std::vector<uint16_t> q(32), k(16), v(16);
  reference::finish_qkv(how, qkv.data(), cos.data(), sin.data(), half, factor, q.data(), k.data(), v.data());
  for (int64_t head = 0; head < 3; ++head) {
    std::vector<double> x(16);
    double squares = 0;
    for (size_t i = 0; i < 16; ++i) {
      const size_t at = static_cast<size_t>(head) * 16 + i;
      x[i] = static_cast<double>(qkv[at]) + static_cast<double>(bias[at]);
      squares += x[i] * x[i];
    }
    for (size_t i = 0; i < 16; ++i) x[i] *= static_cast<double>(weight[i]) / std::sqrt(squares / 16 + 1e-6);
    for (size_t i = 0; i < 4; ++i) {
      const double x0 = x[2 * i], x1 = x[2 * i + 1], c = static_cast<double>(cos[i]),
                   s = static_cast<double>(sin[i]);
      x[2 * i] = x0 * c - x1 * s;
      x[2 * i + 1] = x1 * c + x0 * s;
    }
    for (size_t i = 0; i < 16; ++i) {
      const double want = head < 2 ? x[i] * static_cast<double>(factor) : x[i];
      const double got = real(head < 2 ? q[static_cast<size_t>(head) * 16 + i] : k[i]);
      EXPECT_NEAR(got, want, std::fabs(want) * 0x1p-8 + 1e-6);
    }
  }
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(v[i], f32_to_bf16(qkv[48 + i] + bias[48 + i]));
}

// ---------------------------------------------------------------- attention

struct History {
  History(uint64_t seed, int64_t positions, int64_t dim) : head_dim(dim) {
    Random random(seed);
    q = random_halves(random, dim);
    k = random_halves(random, positions * dim, 2);
    v = random_halves(random, positions * dim);
  }
  std::vector<double> softmax(int64_t first, int64_t end, double cap) const {
    std::vector<double> out(q.size());
    double mass = 0;
    for (int64_t p = first; p < end; ++p) {
      double s = 0;
      for (size_t d = 0; d < q.size(); ++d) s += real(q[d]) * real(k[static_cast<size_t>(p * head_dim) + d]);
      if (cap != 0) s = M_LOG2E * cap * std::tanh(s / M_LOG2E / cap);
      const double e = std::exp2(s);
      mass += e;
      for (size_t d = 0; d < q.size(); ++d) out[d] += e * real(v[static_cast<size_t>(p * head_dim) + d]);
    }
    for (double& o : out) o /= mass;
    return out;
  }
  int64_t head_dim;
  std::vector<uint16_t> q, k, v;
};

TEST_F(GpuReference, AttentionIsASoftmax) {
  const History h(4, 1100, 48);
  for (const auto& [first, end] :
       {std::pair<int64_t, int64_t>{0, 1}, {0, 17}, {0, 256}, {0, 1100}, {300, 900}, {255, 258}}) {
    for (const float limit : {0.0F, 3.0F}) {
      std::vector<uint16_t> out(48);
      reference::attend(h.q.data(), h.k.data(), h.v.data(), 48, 48, first, end,
                        reference::score_cap_of(limit), out.data());
      const std::vector<double> want = h.softmax(first, end, static_cast<double>(limit));
      // e is rounded to bf16, each by itself; and once more what comes out.
      for (size_t d = 0; d < 48; ++d)
        EXPECT_NEAR(real(out[d]), want[d], 0x1p-8 * std::fabs(want[d]) + 2e-3) << first << " " << end;
    }
  }
}

// Bit for bit: leaves by their place in the history, merged two by two.
TEST_F(GpuReference, AttentionMergesByTheAlignedTree) {
  const History h(5, 5 * 256, 16);
  std::vector<std::vector<float>> leaf(5, std::vector<float>(18));
  for (int64_t i = 0; i < 5; ++i) {
    reference::leaf(h.q.data(), h.k.data() + i * 256 * 16, h.v.data() + i * 256 * 16, 16, 16, i == 1 ? 44 : 0,
                    i == 4 ? 100 : 256, {}, leaf[static_cast<size_t>(i)].data());
  }
  const auto merged = [](const std::vector<float>& a, const std::vector<float>& b) {
    std::vector<float> out(18);
    reference::merge(a.data(), b.data(), 16, out.data());
    return out;
  };
  std::vector<uint16_t> want(16), got(16);
  // From leaf 1 on: 1, (2, 3), 4.
  const auto total = merged(merged(leaf[1], merged(leaf[2], leaf[3])), leaf[4]);
  reference::finish_attention(total.data(), 16, want.data());
  reference::attend(h.q.data(), h.k.data(), h.v.data(), 16, 16, 300, 4 * 256 + 100, {}, got.data());
  EXPECT_EQ(got, want);
}

TEST_F(GpuReference, ALeafReadsWhatItSees) {
  const History h(6, 256, 32);
  std::vector<float> want(34), got(34);
  reference::leaf(h.q.data(), h.k.data(), h.v.data(), 32, 32, 37, 90, {}, want.data());
  History masked = h;
  for (int64_t i = 0; i < 256 * 32; ++i) {
    if (i / 32 >= 37 && i / 32 < 90) continue;
    masked.k[static_cast<size_t>(i)] = masked.v[static_cast<size_t>(i)] = 0x7FC0;  // not a number
  }
  reference::leaf(masked.q.data(), masked.k.data(), masked.v.data(), 32, 32, 37, 90, {}, got.data());
  EXPECT_EQ(got, want);
  // l is the sum of what the products take, rounded: with one position it is 1.
  reference::leaf(h.q.data(), h.k.data(), h.v.data(), 32, 32, 255, 256, {}, got.data());
  EXPECT_EQ(got[1], 1.0f);
  for (int64_t d = 0; d < 32; ++d)
    EXPECT_EQ(got[static_cast<size_t>(2 + d)], bf16_to_f32(h.v[static_cast<size_t>(255 * 32 + d)]));
}

// ---------------------------------------------------------------- the draw

TEST_F(GpuReference, DrawsTheLargest) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> logits = {nan, 1, 3, -HUGE_VALF, 3, 2};
  EXPECT_EQ(reference::draw(logits.data(), 6, {}), 2);
  const std::vector<float> none = {-HUGE_VALF, nan};
  reference::Draw how;
  how.temperature = 1;
  EXPECT_EQ(reference::draw(none.data(), 2, how), 0);
  const std::vector<float> certain = {1, HUGE_VALF, 5};
  EXPECT_EQ(reference::draw(certain.data(), 3, how), 1);
  // So cold that nothing but the largest has a weight.
  how.temperature = 1e-40F;
  for (const uint64_t bits : {uint64_t{0}, UINT64_MAX}) {
    how.bits = bits;
    EXPECT_EQ(reference::draw(logits.data(), 6, how), bits == 0 ? 2 : 4);
  }
}

TEST_F(GpuReference, DrawsByProbability) {
  // Weights 1, 2, 4, 8 of 15.
  const std::vector<float> logits = {0, std::log(2.0f), std::log(4.0f), std::log(8.0f)};
  reference::Draw how;
  how.temperature = 1;
  const auto drawn_at = [&](double u) {
    how.bits = static_cast<uint64_t>(u * 0x1p64);
    return reference::draw(logits.data(), 4, how);
  };
  EXPECT_EQ(drawn_at(0.5 / 15), 0);
  EXPECT_EQ(drawn_at(1.5 / 15), 1);
  EXPECT_EQ(drawn_at(3.5 / 15), 2);
  EXPECT_EQ(drawn_at(14.9 / 15), 3);
  how.top_k = 2;  // 4, 8 of 12
  EXPECT_EQ(drawn_at(0), 2);
  EXPECT_EQ(drawn_at(3.9 / 12), 2);
  EXPECT_EQ(drawn_at(4.1 / 12), 3);
  how.top_k = 0;
  how.top_p = 0.75;  // 8 + 4 reach 11.25
  EXPECT_EQ(drawn_at(3.9 / 12), 2);
  EXPECT_EQ(drawn_at(4.1 / 12), 3);
  how.top_p = 0.5;
  EXPECT_EQ(drawn_at(0), 3);
  how.top_p = 0.75;
  how.top_k = 3;  // 8 + 4 reach 10.5 of 14
  EXPECT_EQ(drawn_at(0), 2);
  how.top_k = 1;
  EXPECT_EQ(drawn_at(0), 3);
}

TEST_F(GpuReference, TiesGoToTheSmallerId) {
  const std::vector<float> logits(10, 1.0f);
  reference::Draw how;
  how.temperature = 1;
  how.top_k = 3;
  for (int i = 0; i < 3; ++i) {
    how.bits = static_cast<uint64_t>((i + 0.5) / 3 * 0x1p64);
    EXPECT_EQ(reference::draw(logits.data(), 10, how), i);
  }
  how.top_k = 0;
  how.top_p = 0.35;  // four of ten
  how.bits = UINT64_MAX;
  EXPECT_EQ(reference::draw(logits.data(), 10, how), 3);
}

}  // namespace
}  // namespace kvasir::ops
