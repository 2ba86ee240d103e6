// The host twin has the bits of the reference.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "base/mutant.h"
#include "base/random.h"
#include "fused16_cases.h"
#include "ops/cpu/isa.h"
#include "ops/gpu/twin.h"
#include "ops/numerics.h"

namespace kvasir::ops {
namespace {

constexpr uint16_t kNotANumber = 0x7FC0;

std::vector<uint16_t> mixed_halves(Random& random, int64_t n) {
  std::vector<uint16_t> out(static_cast<size_t>(n));
  for (uint16_t& x : out) {
    x = f32_to_bf16(static_cast<float>((2 * random.unit() - 1) * (random.below(4) == 0 ? 0.01 : 1)));
  }
  return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct TwinProduct {
  TwinProduct(uint64_t seed, int64_t of_rows, int64_t of_n, int64_t of_k)
      : rows(of_rows),
        n(of_n),
        k(of_k),
        random(seed),
        x(mixed_halves(random, rows * k)),
        w(mixed_halves(random, n * k)) {}
  std::vector<float> expected() const {
    std::vector<float> out(static_cast<size_t>(rows * n));
    reference::gemm(x.data(), w.data(), rows, n, k, out.data());
    return out;
  }
  std::vector<float> twin(IsaClass isa) const {
    std::vector<float> out(static_cast<size_t>(rows * n));
    twin::gemm(isa, x.data(), twin::Weights(w.data(), n, k), rows, out.data());
    return out;
  }
  int64_t rows, n, k;
  Random random;
  std::vector<uint16_t> x, w;
};

class GpuTwin : public testing::Test {
  const KeepSubnormals mode_;
};

TEST_F(GpuTwin, MultipliesAsTheReference) {
  uint64_t seed = 0;
  for (const auto& [rows, n, k] :
       {std::array<int64_t, 3>{1, 1, 1}, {1, 16, 16}, {5, 33, 100}, {4, 48, 256}, {13, 7, 40}}) {
    TwinProduct p(++seed, rows, n, k);
    for (const bool with_specials : {false, true}) {
      if (with_specials) {
        p.x[0] = 0x7F80;
        p.w[p.w.size() / 2] = 0x0001;
      }
      for (const IsaClass isa : supported_sets()) {
        EXPECT_TRUE(same_bits(p.twin(isa), p.expected()))
            << isa_name(isa) << " " << rows << " " << n << " " << k;
      }
    }
  }
}

// Every row of a batch is what it is alone.
TEST_F(GpuTwin, RowsDoNotDependOnTheBatch) {
  const TwinProduct p(10, 9, 40, 64);
  const std::vector<float> all = p.twin(detect_isa());
  const twin::Weights weights(p.w.data(), p.n, p.k);
  for (int64_t r = 0; r < p.rows; ++r) {
    std::vector<float> alone(static_cast<size_t>(p.n));
    twin::gemm(detect_isa(), p.x.data() + r * p.k, weights, 1, alone.data());
    EXPECT_EQ(std::memcmp(alone.data(), all.data() + r * p.n, alone.size() * sizeof(float)), 0) << r;
  }
}

// One row of query heads over a leaf; K and V elsewhere are not numbers.
struct LeafCase {
  LeafCase(uint64_t seed, int64_t of_heads, int64_t dim, int64_t from, int64_t to, float of_limit)
      : heads(of_heads), head_dim(dim), first(from), end(to), limit(of_limit) {
    Random random(seed);
    q = mixed_halves(random, heads * dim);
    k = mixed_halves(random, 256 * stride());
    v = mixed_halves(random, 256 * stride());
    for (int64_t p = 0; p < 256; ++p) {
      if (p >= first && p < end) continue;
      std::fill_n(k.begin() + p * stride(), stride(), kNotANumber);
      std::fill_n(v.begin() + p * stride(), stride(), kNotANumber);
    }
  }
  int64_t stride() const { return head_dim + 16; }
  int64_t record() const { return reference::partial_floats(head_dim); }
  std::vector<float> expected() const {
    std::vector<float> out(static_cast<size_t>(heads * record()));
    for (int64_t h = 0; h < heads; ++h) {
      reference::leaf(q.data() + h * head_dim, k.data(), v.data(), stride(), head_dim, first, end,
                      reference::score_cap_of(limit), out.data() + h * record());
    }
    return out;
  }
  std::vector<float> twin(IsaClass isa) const {
    std::vector<float> out(static_cast<size_t>(heads * record()));
    twin::leaf(isa, q.data(), heads, k.data(), v.data(), stride(), head_dim, first, end,
               reference::score_cap_of(limit), out.data());
    return out;
  }
  int64_t heads, head_dim, first, end;
  float limit;
  std::vector<uint16_t> q, k, v;
};

TEST_F(GpuTwin, AttendsAsTheReference) {
  uint64_t seed = 20;
  for (const auto& [first, end] :
       {std::pair<int64_t, int64_t>{0, 256}, {0, 1}, {0, 100}, {200, 201}, {17, 256}, {3, 250}}) {
    for (const int64_t heads : {1, 5}) {
      const LeafCase c(++seed, heads, heads == 1 ? 16 : 48, first, end, heads == 1 ? 0.0F : 2.0F);
      const std::vector<float> want = c.expected();
      for (const IsaClass isa : supported_sets()) {
        EXPECT_TRUE(same_bits(c.twin(isa), want)) << isa_name(isa) << " [" << first << ", " << end << ")";
      }
    }
  }
}

TEST_F(GpuTwin, MergesAsTheReference) {
  Random random(40);
  const int64_t positions = 800, heads = 3, head_dim = 32;
  const auto q = mixed_halves(random, heads * head_dim);
  const auto k = mixed_halves(random, positions * head_dim), v = mixed_halves(random, positions * head_dim);
  for (const auto& [first, end] : {std::pair<int64_t, int64_t>{0, 800}, {300, 790}, {5, 6}}) {
    std::vector<uint16_t> want(q.size()), got(q.size());
    for (int64_t h = 0; h < heads; ++h) {
      reference::attend(q.data() + h * head_dim, k.data(), v.data(), head_dim, head_dim, first, end, {},
                        want.data() + h * head_dim);
    }
    twin::attend(detect_isa(), q.data(), heads, k.data(), v.data(), head_dim, head_dim, first, end, {},
                 got.data());
    EXPECT_EQ(got, want);
  }
}

#if defined(KVASIR_MUTANTS)
TEST_F(GpuTwin, FaultsAreSeen) {
  const TwinProduct p(30, 2, 16, 256);
  const LeafCase whole(31, 2, 32, 0, 256, 0), part(32, 2, 32, 0, 100, 0);
  const std::vector<float> product = p.twin(detect_isa());
  for (const Mutant fault : {Mutant::kFusedBy8, Mutant::kFusedTo24Bits}) {
    const ScopedMutant on(fault);
    EXPECT_FALSE(same_bits(p.expected(), product)) << static_cast<int>(fault);
  }
  {
    const ScopedMutant on(Mutant::kLeafOf128);
    EXPECT_FALSE(same_bits(whole.twin(detect_isa()), whole.expected()));
  }
  const ScopedMutant on(Mutant::kValueTailUnmasked);
  EXPECT_FALSE(same_bits(part.twin(detect_isa()), part.expected()));
}
#endif

}  // namespace
}  // namespace kvasir::ops
