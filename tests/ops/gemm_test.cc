// Quantisation and both products, in every instruction set, against the naive formulas: bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "base/mutant.h"
#include "reference.h"

namespace kvasir::ops {
namespace {

// Activations in quantised form, and the memory that they lie in.
struct Quantized {
  Quantized(const Kernels& kernels, const std::vector<float>& x, int64_t rows, int64_t k)
      : bytes(quantized_rows_bytes(rows, k)), view(make_quantized_rows(bytes.data(), rows, k)) {
    kernels.quantize_rows(x.data(), k, view, 0, rows);
  }
  AlignedBytes bytes;
  QuantizedRows view;
};

struct Packed {
  Packed(WeightType type, const std::vector<uint8_t>& raw, int64_t n, int64_t k)
      : bytes(packed_bytes(type, n, k)), view(pack_matrix(type, raw.data(), n, k, bytes.data())) {}
  AlignedBytes bytes;
  PackedMatrix view;
};

std::vector<float> naive_product(WeightType type, const std::vector<uint8_t>& raw,
                                 const std::vector<float>& x, int64_t m, int64_t n, int64_t k, bool int8) {
  std::vector<float> c(static_cast<size_t>(m * n));
  std::vector<ReferenceRow> rows;
  for (int64_t r = 0; r < m && int8; ++r) rows.push_back(reference_quantize(x.data() + r * k, k));
  for (int64_t j = 0; j < n; ++j) {
    const uint8_t* w = raw.data() + static_cast<size_t>(j) * row_bytes(type, k);
    const auto weights = int8 ? decode_weights(type, w, k) : std::vector<test::BlockWeight>();
    const auto values = int8 ? std::vector<float>() : weight_values(type, w, k);
    for (int64_t r = 0; r < m; ++r) {
      c[static_cast<size_t>(r * n + j)] =
          int8 ? reference_dot_int8(type, weights, rows[static_cast<size_t>(r)])
               : reference_dot_f32(values, x.data() + r * k);
    }
  }
  return c;
}

class GemmShapes : public testing::TestWithParam<std::tuple<int64_t, int64_t>> {};

constexpr int64_t kRowCounts[] = {1, 2, 3, 7, 8, 9, 33, 64, 131};

// The first rows of one large product are what any smaller batch must give.
TEST_P(GemmShapes, Int8MatchesTheFormulaAtEveryBatchSize) {
  const int64_t n = std::get<0>(GetParam());
  const int64_t k = std::get<1>(GetParam());
  for (WeightType type : quantized_types(k % 256 == 0 ? 256 : k % 128 == 0 ? 128 : 32)) {
    SCOPED_TRACE(weight_type_name(type));
    Random random(static_cast<uint64_t>(n * 10007 + k));
    set_flush_to_zero();
    // More columns than needed make the reference too slow at the largest shapes: rows are then fewer.
    const int64_t most = n * k > 100000 ? 9 : n * k > 10000 ? 64 : 131;
    const auto raw = random_weights(random, type, n, k);
    const auto x = random_floats(random, most * k, 3.0f);
    const auto want = naive_product(type, raw, x, most, n, k, true);
    const Packed w(type, raw, n, k);
    for_each_isa([&](const Kernels& kernels) {
      for (int64_t m : kRowCounts) {
        if (m > most) continue;
        const Quantized a(kernels, x, m, k);
        std::vector<float> c(static_cast<size_t>(m * n), -7.0f);
        kernels.gemm_int8(a.view, 0, m, w.view, 0, panel_count(n), c.data(), n, false);
        const std::vector<float> head(want.begin(), want.begin() + m * n);
        ASSERT_TRUE(same_bits(head, c, "m=" + std::to_string(m)));
      }
    });
  }
}

TEST_P(GemmShapes, F32MatchesTheFormulaAtEveryBatchSize) {
  const int64_t n = std::get<0>(GetParam());
  const int64_t k = std::get<1>(GetParam());
  std::vector<WeightType> types = quantized_types(k % 256 == 0 ? 256 : k % 128 == 0 ? 128 : 32);
  types.insert(types.end(), {WeightType::kF32, WeightType::kF16, WeightType::kBf16});
  for (WeightType type : types) {
    SCOPED_TRACE(weight_type_name(type));
    Random random(static_cast<uint64_t>(n * 20011 + k));
    set_flush_to_zero();
    const int64_t most = n * k > 100000 ? 9 : n * k > 15000 ? 33 : 64;
    const auto raw = random_weights(random, type, n, k);
    const auto x = random_floats(random, most * k);
    const auto want = naive_product(type, raw, x, most, n, k, false);
    const Packed w(type, raw, n, k);
    for_each_isa([&](const Kernels& kernels) {
      for (int64_t m : kRowCounts) {
        if (m > most) continue;
        std::vector<float> c(static_cast<size_t>(m * n), -7.0f);
        kernels.gemm_f32(x.data(), k, 0, m, w.view, 0, panel_count(n), c.data(), n, false);
        const std::vector<float> head(want.begin(), want.begin() + m * n);
        ASSERT_TRUE(same_bits(head, c, "m=" + std::to_string(m)));
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Ragged, GemmShapes,
                         testing::Combine(testing::Values<int64_t>(1, 31, 32, 33, 64, 200),
                                          testing::Values<int64_t>(32, 96, 256, 384, 576, 1536)));

TEST(Gemm, FloatWeightsTakeAnyLengthOfK) {
  for (WeightType type : {WeightType::kF32, WeightType::kF16, WeightType::kBf16}) {
    Random random(5);
    const int64_t m = 5, n = 40, k = 77;
    const auto raw = random_weights(random, type, n, k);
    const auto x = random_floats(random, m * k);
    set_flush_to_zero();
    const auto want = naive_product(type, raw, x, m, n, k, false);
    const Packed w(type, raw, n, k);
    for_each_isa([&](const Kernels& kernels) {
      std::vector<float> c(static_cast<size_t>(m * n));
      kernels.gemm_f32(x.data(), k, 0, m, w.view, 0, 2, c.data(), n, false);
      EXPECT_TRUE(same_bits(want, c, weight_type_name(type)));
    });
  }
}

TEST(Gemm, PartsAddUpAndAccumulateIsOneAddition) {
  const int64_t m = 11, n = 100, k = 96, ldc = 103;
  Random random(6);
  const auto raw = random_weights(random, WeightType::kQ4_1, n, k);
  const auto x = random_floats(random, m * k);
  const auto old = random_floats(random, m * ldc);
  set_flush_to_zero();
  for (bool int8 : {true, false}) {
    const auto product = naive_product(WeightType::kQ4_1, raw, x, m, n, k, int8);
    std::vector<float> want = old;
    for (int64_t r = 0; r < m; ++r) {
      for (int64_t j = 0; j < n; ++j) {
        want[static_cast<size_t>(r * ldc + j)] += product[static_cast<size_t>(r * n + j)];
      }
    }
    const Packed w(WeightType::kQ4_1, raw, n, k);
    for_each_isa([&](const Kernels& kernels) {
      const Quantized a(kernels, x, m, k);
      std::vector<float> c = old;
      for (auto [r0, r1] : {std::pair<int64_t, int64_t>{0, 4}, {4, 5}, {5, 11}}) {
        for (auto [p0, p1] : {std::pair<int64_t, int64_t>{2, 4}, {0, 2}, {1, 1}}) {
          if (int8) {
            kernels.gemm_int8(a.view, r0, r1, w.view, p0, p1, c.data(), ldc, true);
          } else {
            kernels.gemm_f32(x.data(), k, r0, r1, w.view, p0, p1, c.data(), ldc, true);
          }
        }
      }
      EXPECT_TRUE(same_bits(want, c, int8 ? "int8" : "f32"));
    });
  }
}

TEST(Gemm, SourcesPackedSideBySideAreTheirConcatenation) {
  const int64_t k = 256;
  std::vector<WeightType> types = quantized_types(256);
  types.push_back(WeightType::kF16);
  for (WeightType type : types) {
    Random random(8);
    const int64_t parts[] = {40, 7, 33};
    const auto raw = random_weights(random, type, 80, k);
    AlignedBytes whole(packed_bytes(type, 80, k)), fused(packed_bytes(type, 80, k));
    pack_matrix(type, raw.data(), 80, k, whole.data());
    clear_packed(type, 80, k, fused.data());
    int64_t column = 0;
    for (int64_t n : parts) {
      const uint8_t* src = raw.data() + static_cast<size_t>(column) * row_bytes(type, k);
      pack_columns(type, src, n, k, column, 80, fused.data());
      column += n;
    }
    EXPECT_EQ(std::memcmp(whole.data(), fused.data(), whole.size()), 0) << weight_type_name(type);
  }
}

TEST(Gemm, ExtremeIntegersStayExact) {
  // All weights and activations at their limits: the largest sums that a group can have.
  const int64_t n = 33, k = 256;
  for (WeightType type : quantized_types(256)) {
    const test::HalfPlaces places = test::half_places(type);
    for (uint8_t value : {uint8_t{0x80}, uint8_t{0x7F}, uint8_t{0xFF}, uint8_t{0x77}, uint8_t{0x00}}) {
      for (float sign : {1.0f, -1.0f}) {
        std::vector<uint8_t> raw(static_cast<size_t>(n) * row_bytes(type, k), value);
        for (size_t i = 0; i < raw.size(); i += row_bytes(type, block_values(type))) {
          const auto put = [&](int64_t place, uint8_t high) {
            if (place >= 0) raw[i + static_cast<size_t>(place)] = 0;
            raw[i + static_cast<size_t>(place + 1)] = high;
          };
          put(places.scale, 0x3C);
          if (places.min >= 0) put(places.min, 0xBC);
        }
        const std::vector<float> x(static_cast<size_t>(k), sign * 12.7f);
        set_flush_to_zero();
        const auto want = naive_product(type, raw, x, 1, n, k, true);
        const Packed w(type, raw, n, k);
        for_each_isa([&](const Kernels& kernels) {
          const Quantized a(kernels, x, 1, k);
          std::vector<float> c(static_cast<size_t>(n));
          kernels.gemm_int8(a.view, 0, 1, w.view, 0, 2, c.data(), n, false);
          EXPECT_TRUE(same_bits(want, c, weight_type_name(type)));
        });
      }
    }
  }
}

void expect_quantized(const std::vector<float>& x, const std::string& what) {
  const auto k = static_cast<int64_t>(x.size());
  set_flush_to_zero();
  const ReferenceRow want = reference_quantize(x.data(), k);
  for_each_isa([&](const Kernels& kernels) {
    const Quantized got(kernels, x, 1, k);
    for (int64_t i = 0; i < k; ++i) {
      ASSERT_EQ(got.view.q[i], want.q[static_cast<size_t>(i)]) << what << " element " << i;
    }
    const auto expect_derived = [&] {
      for (int64_t g = 0; g < k / kGroup; ++g) {
        int32_t sums[2] = {};
        for (int64_t i = 0; i < kGroup; ++i) sums[i / 16] += want.q[static_cast<size_t>(g * kGroup + i)];
        ASSERT_EQ(got.view.scales[g], f16_to_f32(want.d[static_cast<size_t>(g)])) << what;
        ASSERT_EQ(got.view.sums[2 * g], -sums[0] - sums[1]) << what;
        ASSERT_EQ(got.view.sums[2 * g + 1], -sums[1]) << what;
        ASSERT_EQ(got.view.moments[g], got.view.scales[g] * static_cast<float>(sums[0] + sums[1])) << what;
      }
    };
    expect_derived();
    std::fill_n(got.view.sums, 2 * k / kGroup, int16_t{9999});
    std::fill_n(got.view.scales, k / kGroup, 1e9f);
    std::fill_n(got.view.moments, k / kGroup, 1e9f);
    kernels.complete_rows(want.d.data(), got.view, 0, 1);
    expect_derived();
  });
}

TEST(Quantize, OrdinaryRows) {
  Random random(9);
  for (float scale : {1e-4f, 0.03f, 1.0f, 50.0f, 1e5f}) {
    expect_quantized(random_floats(random, 1536, scale), "scale " + std::to_string(scale));
  }
}

TEST(Quantize, TiesGoToEven) {
  std::vector<float> x(32, 0.0f);
  x[0] = 127.0f;
  for (size_t i = 1; i < 32; ++i) x[i] = static_cast<float>(i) - 16.5f;
  expect_quantized(x, "ties");
}

TEST(Quantize, Corners) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  expect_quantized(std::vector<float>(64, 0.0f), "zeros");
  expect_quantized(std::vector<float>(64, -0.0f), "negative zeros");
  expect_quantized(std::vector<float>(64, 1e-41f), "subnormals");
  expect_quantized(std::vector<float>(64, 1e-10f), "scale below the smallest half");
  expect_quantized(std::vector<float>(64, 127 * 5e-8f), "subnormal scale");
  expect_quantized(std::vector<float>(64, 3e38f), "huge");
  expect_quantized(std::vector<float>(64, -3e38f), "huge and negative");
  for (float odd : {inf, -inf, nan, -nan}) {
    std::vector<float> x(64, 0.25f);
    x[5] = odd;
    x[40] = odd;
    expect_quantized(x, "one " + std::to_string(odd));
    expect_quantized(std::vector<float>(32, odd), "all " + std::to_string(odd));
  }
}

#if defined(KVASIR_MUTANTS)
// Each fault of the products must be visible to the comparison above.
TEST(GemmMutants, AreSeen) {
  const int64_t m = 3, n = 40, k = 96;
  Random random(10);
  const auto raw = random_weights(random, WeightType::kQ4_1, n, k);
  const auto x = random_floats(random, m * k);
  const Packed w(WeightType::kQ4_1, raw, n, k);
  const auto product = [&](const Kernels& kernels, int64_t rows) {
    const Quantized a(kernels, x, rows, k);
    std::vector<float> c(static_cast<size_t>(rows * n));
    kernels.gemm_int8(a.view, 0, rows, w.view, 0, 2, c.data(), n, false);
    return c;
  };
  for_each_isa([&](const Kernels& kernels) {
    const auto alone = product(kernels, 1);
    const auto batch = product(kernels, m);
    for (auto [fault, rows] : {std::pair{Mutant::kKTailDropped, int64_t{1}},
                               {Mutant::kBatchScale, m},
                               {Mutant::kScaleUnrounded, m}}) {
      ScopedMutant active(fault);
      EXPECT_NE(product(kernels, rows), rows == 1 ? alone : batch) << static_cast<int>(fault);
    }
  });
}
TEST(GemmMutants, ScalesOfTheNextGroupAreSeen) {
  const int64_t n = 40, k = 512;
  for (WeightType type : {WeightType::kQ2K, WeightType::kQ3K, WeightType::kQ4K, WeightType::kQ5K,
                          WeightType::kQ6K, WeightType::kIq4Xs}) {
    SCOPED_TRACE(weight_type_name(type));
    Random random(11);
    const auto raw = random_weights(random, type, n, k);
    const auto x = random_floats(random, k);
    const Packed w(type, raw, n, k);
    set_flush_to_zero();
    const auto want = naive_product(type, raw, x, 1, n, k, true);
    for_each_isa([&](const Kernels& kernels) {
      const Quantized a(kernels, x, 1, k);
      std::vector<float> c(static_cast<size_t>(n));
      const ScopedMutant active(Mutant::kScaleOfNextGroup);
      kernels.gemm_int8(a.view, 0, 1, w.view, 0, panel_count(n), c.data(), n, false);
      EXPECT_NE(c, want);
    });
  }
}
#endif

}  // namespace
}  // namespace kvasir::ops
