// The product on the simulated machine, against one chain for each output.
#include "ops/gpu/reference.h"
#include "simt/kernels.h"

namespace kvasir::simt {
namespace {

struct Product {
  int rows, n, k;
  std::vector<uint16_t> x, w;
  std::vector<float> want;

  Product(int rows_, int n_, int k_, uint64_t seed) : rows(rows_), n(n_), k(k_) {
    Random random(seed);
    x = random_bf16(random, int64_t{rows} * k);
    w = random_bf16(random, int64_t{n} * k);
    want.resize(static_cast<size_t>(rows * n));
    ops::reference::gemm(x.data(), w.data(), rows, n, k, want.data());
  }

  ops::gpu::GemmArgs args(const std::vector<uint16_t>& w_image, const std::vector<uint16_t>& x_image,
                          std::vector<float>& out) const {
    ops::gpu::GemmArgs a = {};
    a.weights = w_image.data();
    a.x = x_image.data();
    a.out = out.data();
    a.out_stride = n;
    a.rows = rows;
    a.n = n;
    a.k = k;
    return a;
  }

  std::vector<float> run_on_machine(uint64_t seed) const {
    const std::vector<uint16_t> w_image = image_of(w, n, k), x_image = image_of(x, rows, k);
    std::vector<float> out = unwritten(int64_t{rows} * n);
    run(args(w_image, x_image, out), seed);
    return out;
  }
};

TEST(GemmKernel, EqualsTheReference) {
  for (const auto& [rows, n, k] : std::vector<std::array<int, 3>>{{1, 64, 64},
                                                                  {1, 80, 400},
                                                                  {7, 24, 96},
                                                                  {8, 128, 64},
                                                                  {9, 64, 336},
                                                                  {16, 40, 128},
                                                                  {17, 64, 80},
                                                                  {32, 64, 64},
                                                                  {33, 64, 128},
                                                                  {64, 72, 320},
                                                                  {65, 64, 64},
                                                                  {130, 64, 80}}) {
    const Product product(rows, n, k, static_cast<uint64_t>(rows * 1000 + k));
    for (uint64_t seed = 1; seed <= 2; ++seed) {
      EXPECT_EQ(difference(product.run_on_machine(seed), product.want), "")
          << rows << " rows, n " << n << ", k " << k << ", seed " << seed;
    }
  }
}

TEST(GemmKernel, AddsToWhatIsThere) {
  const Product product(5, 70, 160, 3);
  const std::vector<uint16_t> w_image = image_of(product.w, product.n, product.k);
  const std::vector<uint16_t> x_image = image_of(product.x, product.rows, product.k);
  Random random(4);
  std::vector<float> out = random_values(random, int64_t{product.rows} * product.n), want = out;
  for (size_t i = 0; i < want.size(); ++i) want[i] = want[i] + product.want[i];
  ops::gpu::GemmArgs args = product.args(w_image, x_image, out);
  args.accumulate = 1;
  run(args, 5);
  EXPECT_EQ(difference(out, want), "");
}

#if !defined(KVASIR_ON_DEVICE)

// Each sync of the kernel is needed: without it some order of the threads gives other bits, or none.
TEST(GemmKernel, NoBarrierCanBeLeftOut) {
  const Product product(3, 64, 6 * 64, 7);
  ASSERT_EQ(difference(product.run_on_machine(1), product.want), "");
  ASSERT_EQ(syncs_of_last_launch(), 7);
  // The syncs behind the last stages protect no stage that is filled again.
  for (int skipped = 0; skipped < 3; ++skipped) {
    bool found = false;
    for (uint64_t seed = 1; seed <= 40 && !found; ++seed) {
      const ScopedMachine without({.skipped_sync = skipped});
      try {
        found = product.run_on_machine(seed) != product.want;
      } catch (const SimtError&) {
        found = true;
      }
    }
    EXPECT_TRUE(found) << "sync " << skipped;
  }
}

TEST(GemmKernel, AStepOfEightIsFound) {
  const Product product(8, 64, 64, 9);
  const ScopedMachine other({.half_steps = true});
  EXPECT_NE(difference(product.run_on_machine(1), product.want), "");
}

#endif

TEST(GemmKernel, RowsWithoutTheSwizzleAreFound) {
  const Product product(8, 64, 64, 11);
  const std::vector<uint16_t> x_image = image_of(product.x, product.rows, product.k);
  std::vector<float> out = unwritten(int64_t{product.rows} * product.n);
  run(product.args(product.w, x_image, out), 1);  // 64 x 64 row by row
  EXPECT_NE(difference(out, product.want), "");
}

}  // namespace
}  // namespace kvasir::simt
