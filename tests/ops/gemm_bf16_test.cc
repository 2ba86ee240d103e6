// Rounding to bf16, the product of bf16 pairs in every instruction set, and the check of the CPU's own
// instruction: bit for bit against the naive formula.
#include <gtest/gtest.h>

#include <bit>
#include <cfenv>
#include <cmath>
#include <limits>
#include <thread>

#include "base/mutant.h"
#include "ops/cpu/bf16_check.h"
#include "reference.h"

namespace kvasir::ops {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Rounded {
  Rounded(const Kernels& kernels, const std::vector<float>& x, int64_t rows, int64_t k)
      : bytes(bf16_rows_bytes(rows, k)), view(make_bf16_rows(bytes.data(), rows, k)) {
    kernels.round_rows_bf16(x.data(), k, view, 0, rows);
  }
  AlignedBytes bytes;
  Bf16Rows view;
};

struct PackedBf16 {
  PackedBf16(const std::vector<uint8_t>& raw, int64_t n, int64_t k)
      : bytes(packed_bytes(WeightType::kBf16, n, k)),
        view(pack_matrix(WeightType::kBf16, raw.data(), n, k, bytes.data())) {}
  AlignedBytes bytes;
  PackedMatrix view;
};

std::vector<uint8_t> weights_of(const std::vector<float>& values) {
  std::vector<uint8_t> raw;
  for (float v : values) {
    const uint16_t bits = f32_to_bf16(v);
    raw.push_back(static_cast<uint8_t>(bits & 255));
    raw.push_back(static_cast<uint8_t>(bits >> 8));
  }
  return raw;
}

// Of many magnitudes: sums of products of eight-bit significands of one size are mostly exact, and would hide
// the order in which they are added.
std::vector<float> wide_floats(Random& random, int64_t n) {
  std::vector<float> v = random_floats(random, n);
  for (float& x : v) x = std::ldexp(x, -static_cast<int>(random.below(12)));
  return v;
}
std::vector<uint8_t> wide_weights(Random& random, int64_t n, int64_t k) {
  return weights_of(wide_floats(random, n * k));
}

std::vector<float> naive_product(const std::vector<uint8_t>& raw, const std::vector<float>& x, int64_t m,
                                 int64_t n, int64_t k) {
  std::vector<float> c;
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t j = 0; j < n; ++j)
      c.push_back(reference_dot_bf16(raw.data() + 2 * j * k, x.data() + r * k, k));
  }
  return c;
}

// The first rows of one large product are what any smaller batch must give; so for every batch size.
void expect_product(const std::vector<uint8_t>& raw, const std::vector<float>& x, int64_t most, int64_t n,
                    int64_t k) {
  SCOPED_TRACE("n=" + std::to_string(n) + " k=" + std::to_string(k));
  set_flush_to_zero();
  const auto want = naive_product(raw, x, most, n, k);
  const PackedBf16 w(raw, n, k);
  for_each_isa([&](const Kernels& kernels) {
    for (int64_t m = 1; m <= most; ++m) {
      const Rounded a(kernels, x, m, k);
      std::vector<float> c(static_cast<size_t>(m * n), -7.0f);
      kernels.gemm_bf16(a.view, 0, m, w.view, 0, panel_count(n), c.data(), n, false);
      const std::vector<float> head(want.begin(), want.begin() + m * n);
      ASSERT_TRUE(same_bits(head, c, "m=" + std::to_string(m), true));
    }
  });
}

TEST(GemmBf16, MatchesTheFormulaAtEveryBatchSizeAndShape) {
  Random random(1);
  for (int64_t n : {1, 31, 32, 33, 200}) {
    for (int64_t k : {1, 2, 31, 96, 577}) {
      expect_product(wide_weights(random, n, k), wide_floats(random, 40 * k), 40, n, k);
    }
  }
}

// Longer than every block of K, more rows than every block of rows.
TEST(GemmBf16, BlocksOfKAndOfRowsChangeNothing) {
  const int64_t m = 201, n = 40, k = 1291;
  Random random(2);
  const auto raw = wide_weights(random, n, k);
  const auto x = wide_floats(random, m * k);
  set_flush_to_zero();
  const auto want = naive_product(raw, x, m, n, k);
  const PackedBf16 w(raw, n, k);
  for_each_isa([&](const Kernels& kernels) {
    const Rounded a(kernels, x, m, k);
    std::vector<float> c(static_cast<size_t>(m * n));
    kernels.gemm_bf16(a.view, 0, m, w.view, 0, 2, c.data(), n, false);
    EXPECT_TRUE(same_bits(want, c, "all rows"));
  });
}

// Magnitudes over the whole range, so that subnormal products, sums and operands occur, and infinities.
TEST(GemmBf16, SubnormalsAreFlushedEverywhere) {
  Random random(3);
  const int64_t m = 9, n = 70, k = 33;
  for (int low : {-149, -80, -66, 0}) {
    std::vector<float> x, w;
    for (auto [out, count] : {std::pair{&x, m * k}, {&w, n * k}}) {
      for (int64_t i = 0; i < count; ++i) {
        const auto unit = static_cast<float>(2 * random.unit() - 1);
        out->push_back(std::ldexp(unit, low + static_cast<int>(random.below(low == 0 ? 120 : 30))));
      }
    }
    expect_product(weights_of(w), x, m, n, k);
  }
}

TEST(GemmBf16, InfinitiesAndNotANumberStayInTheirRowsAndColumns) {
  Random random(4);
  const int64_t m = 14, n = 40, k = 20;
  auto x = random_floats(random, m * k);
  auto w = random_floats(random, n * k);
  x[3 * k + 1] = kInfinity;
  x[5 * k + 2] = kNan;
  x[7 * k + 19] = -kInfinity;
  x[9 * k + 4] = 3.4e38f;  // rounds to infinity
  w[6 * k + 1] = 0.0f;     // times infinity
  w[8 * k + 2] = -kInfinity;
  w[33 * k + 7] = kNan;
  expect_product(weights_of(w), x, m, n, k);
}

TEST(GemmBf16, PartsAddUpAndAccumulateIsOneAddition) {
  const int64_t m = 29, n = 300, k = 75, ldc = 303;
  Random random(5);
  const auto raw = wide_weights(random, n, k);
  const auto x = wide_floats(random, m * k);
  const auto old = random_floats(random, m * ldc);
  set_flush_to_zero();
  const auto product = naive_product(raw, x, m, n, k);
  std::vector<float> want = old;
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t j = 0; j < n; ++j) {
      want[static_cast<size_t>(r * ldc + j)] += product[static_cast<size_t>(r * n + j)];
    }
  }
  const PackedBf16 w(raw, n, k);
  for_each_isa([&](const Kernels& kernels) {
    const Rounded a(kernels, x, m, k);
    std::vector<float> c = old;
    for (auto [r0, r1] : {std::pair<int64_t, int64_t>{0, 1}, {1, 6}, {6, 29}}) {
      for (auto [p0, p1] : {std::pair<int64_t, int64_t>{3, 10}, {0, 3}, {1, 1}}) {
        kernels.gemm_bf16(a.view, r0, r1, w.view, p0, p1, c.data(), ldc, true);
      }
    }
    EXPECT_TRUE(same_bits(want, c, "in parts"));
  });
}

TEST(GemmBf16, RowsAreRoundedAsOneElementIs) {
  Random random(6);
  std::vector<float> x = {0.0f, -0.0f, kInfinity, -kInfinity, kNan, -kNan, 3.4e38f, 1e-39f, -1e-45f};
  x.push_back(std::bit_cast<float>(0x7F800001u));  // a signalling one
  x.push_back(std::bit_cast<float>(0xFFFFFFFFu));
  for (uint32_t high : {0x3F80u, 0x3F81u, 0xC2F0u, 0x007Fu, 0x7F7Fu}) {
    for (uint32_t low : {0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu})
      x.push_back(std::bit_cast<float>(high << 16 | low));
  }
  for (float v : random_floats(random, 600, 100.0f)) x.push_back(v);
  for (int64_t k : {int64_t{1}, int64_t{15}, int64_t{16}, int64_t{17}, static_cast<int64_t>(x.size())}) {
    for_each_isa([&](const Kernels& kernels) {
      AlignedBytes bytes(bf16_rows_bytes(1, k));
      std::memset(bytes.data(), 0xAB, bytes.size());
      const Bf16Rows rows = make_bf16_rows(bytes.data(), 1, k);
      kernels.round_rows_bf16(x.data(), k, rows, 0, 1);
      for (int64_t i = 0; i < k; ++i) {
        ASSERT_EQ(rows.x[i], f32_to_bf16(x[static_cast<size_t>(i)])) << "k=" << k << " element " << i;
      }
      if (k % 2 != 0) {
        EXPECT_EQ(rows.x[k], 0) << "the last pair is not padded";
      }
    });
  }
}

// ---------------------------------------------------------------- the check of the instruction

float low(uint32_t pair) {
  return bf16_to_f32(static_cast<uint16_t>(pair));
}
float high(uint32_t pair) {
  return bf16_to_f32(static_cast<uint16_t>(pair >> 16));
}

template <typename Lane>
void lanes(const float* acc, const uint32_t* x, const uint32_t* w, float* out, Lane lane) {
  for (int i = 0; i < 16; ++i) out[i] = lane(acc[i], low(x[i]), high(x[i]), low(w[i]), high(w[i]));
}
void right(const float* acc, const uint32_t* x, const uint32_t* w, float* out) {
  lanes(acc, x, w, out, [](float a, float x0, float x1, float w0, float w1) {
    return std::fma(x0, w0, std::fma(x1, w1, a));
  });
}
void even_first(const float* acc, const uint32_t* x, const uint32_t* w, float* out) {
  lanes(acc, x, w, out, [](float a, float x0, float x1, float w0, float w1) {
    return std::fma(x1, w1, std::fma(x0, w0, a));
  });
}
void products_rounded(const float* acc, const uint32_t* x, const uint32_t* w, float* out) {
  lanes(acc, x, w, out,
        [](float a, float x0, float x1, float w0, float w1) { return x0 * w0 + (x1 * w1 + a); });
}
void products_first(const float* acc, const uint32_t* x, const uint32_t* w, float* out) {
  lanes(acc, x, w, out,
        [](float a, float x0, float x1, float w0, float w1) { return a + std::fma(x0, w0, x1 * w1); });
}
void one_rounding(const float* acc, const uint32_t* x, const uint32_t* w, float* out) {
  lanes(acc, x, w, out, [](float a, float x0, float x1, float w0, float w1) {
    return static_cast<float>(static_cast<double>(x0) * w0 + (static_cast<double>(x1) * w1 + a));
  });
}
// As a CPU that keeps subnormals, whatever the mode: by whole numbers of 2^-149 where they are small.
void keeps_subnormals(const float* acc, const uint32_t* x, const uint32_t* w, float* out) {
  right(acc, x, w, out);
  for (int i = 0; i < 16; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(acc[i]);
    const bool subnormal = (bits & 0x7F800000u) == 0 && (bits & 0x7FFFFFu) != 0;
    if (subnormal && out[i] == 0) out[i] = acc[i];
  }
}
void flushes_elements_only(const float* acc, const uint32_t* x, const uint32_t* w, float* out) {
  right(acc, x, w, out);
  for (int i = 0; i < 16; ++i) {
    // Positive zero where a tiny negative result was flushed.
    if (out[i] == 0) out[i] = 0.0f;
  }
}
void loses_infinity(const float* acc, const uint32_t* x, const uint32_t* w, float* out) {
  right(acc, x, w, out);
  for (int i = 0; i < 16; ++i) {
    if (std::isinf(out[i])) out[i] = std::copysign(std::numeric_limits<float>::max(), out[i]);
  }
}

TEST(Bf16Check, AcceptsTwoFmaAndNothingElse) {
  EXPECT_TRUE(gives_pair_chain(right));
  EXPECT_FALSE(gives_pair_chain(even_first));
  EXPECT_FALSE(gives_pair_chain(products_rounded));
  EXPECT_FALSE(gives_pair_chain(products_first));
  EXPECT_FALSE(gives_pair_chain(one_rounding));
  EXPECT_FALSE(gives_pair_chain(keeps_subnormals));
  EXPECT_FALSE(gives_pair_chain(flushes_elements_only));
  EXPECT_FALSE(gives_pair_chain(loses_infinity));
}

// 2^-126 * 2^-1 is subnormal: zero under flush-to-zero. volatile: the product is made here and now.
bool flushes() {
  volatile float tiny = std::numeric_limits<float>::min();
  volatile float half = tiny * 0.5f;
  return half == 0.0f;
}

TEST(Bf16Check, LeavesTheModeOfTheThreadAlone) {
  // On a thread of its own: the others keep the mode that their tests rely on.
  std::thread([] {
    std::fesetenv(FE_DFL_ENV);
    EXPECT_FALSE(flushes());
    EXPECT_TRUE(gives_pair_chain(right));
    EXPECT_FALSE(flushes());
    set_flush_to_zero();
    EXPECT_TRUE(gives_pair_chain(right));
    EXPECT_TRUE(flushes());
  }).join();
}

#if defined(KVASIR_MUTANTS)
TEST(GemmBf16Mutants, AreSeenInLoneRowsOnly) {
  const int64_t n = 40, k = 96;
  Random random(10);
  const auto raw = wide_weights(random, n, k);
  const auto x = wide_floats(random, 2 * k);
  const PackedBf16 w(raw, n, k);
  const auto product = [&](const Kernels& kernels, int64_t rows) {
    const Rounded a(kernels, x, rows, k);
    std::vector<float> c(static_cast<size_t>(rows * n));
    kernels.gemm_bf16(a.view, 0, rows, w.view, 0, 2, c.data(), n, false);
    return c;
  };
  for_each_isa([&](const Kernels& kernels) {
    const auto alone = product(kernels, 1), two = product(kernels, 2);
    const ScopedMutant active(Mutant::kBf16PairSwapped);
    EXPECT_NE(product(kernels, 1), alone);
    EXPECT_EQ(product(kernels, 2), two);
  });
}
#endif

}  // namespace
}  // namespace kvasir::ops
