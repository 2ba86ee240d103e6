// libxsmm's matrix products, for kernels_bench. It makes kernels for small products, so the weights are cut
// into panels of columns, each of which is one call for all of K.
#include <benchmark/benchmark.h>
#include <libxsmm.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "peers.h"
#include "shares.h"

namespace kvasir::bench {
namespace {

constexpr int kPanelColumns = 64;
constexpr int64_t kRowsOfCall = 64;

template <typename T>
struct Free {
  void operator()(T* p) const { std::free(p); }
};
template <typename T>
using Array = std::unique_ptr<T[], Free<T>>;
template <typename T>
Array<T> array(int64_t count) {
  const size_t bytes = (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
  return Array<T>(static_cast<T*>(std::aligned_alloc(64, bytes)));
}

// Exact for the small integers that are multiplied here.
libxsmm_bfloat16 to_bf16(float x) {
  uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof(bits));
  return static_cast<libxsmm_bfloat16>(bits >> 16);
}
void convert(float x, float* out) {
  *out = x;
}
void convert(float x, libxsmm_bfloat16* out) {
  *out = to_bf16(x);
}

// libxsmm counts columns first: what it calls A is our panel of weights, [k][64] for f32 and, for bf16, pairs
// of k side by side, [k/2][64][2]; B is our rows of activations, C our rows of sums.
template <typename T>
Array<T> pack_weights(int64_t n, int64_t k) {
  Array<T> packed = array<T>(n * k);
  constexpr int64_t kPair = sizeof(T) == 2 ? 2 : 1;
  for (int64_t col = 0; col < n; ++col) {
    T* panel = packed.get() + col / kPanelColumns * kPanelColumns * k;
    for (int64_t i = 0; i < k; ++i) {
      const int64_t place = (i / kPair * kPanelColumns + col % kPanelColumns) * kPair + i % kPair;
      convert(peer_weight(i, col), panel + place);
    }
  }
  return packed;
}

auto make_kernel(float, int rows, int n, int k) {
  const int lda = kPanelColumns, ldb = k, ldc = n;
  const float one = 1, zero = 0;
  const int flags = LIBXSMM_GEMM_FLAG_NONE, prefetch = LIBXSMM_GEMM_PREFETCH_NONE;
  return libxsmm_smmdispatch(kPanelColumns, rows, k, &lda, &ldb, &ldc, &one, &zero, &flags, &prefetch);
}
auto make_kernel(libxsmm_bfloat16, int rows, int n, int k) {
  const int lda = kPanelColumns, ldb = k, ldc = n;
  const float one = 1, zero = 0;
  const int flags = LIBXSMM_GEMM_FLAG_VNNI_A, prefetch = LIBXSMM_GEMM_PREFETCH_NONE;
  return libxsmm_bsmmdispatch(kPanelColumns, rows, k, &lda, &ldb, &ldc, &one, &zero, &flags, &prefetch);
}

template <typename T>
void product(benchmark::State& state, ThreadLimits* limits, Product what, Shape shape) {
  const int64_t m = state.range(0), n = shape.n, k = shape.k;
  const int64_t rows = std::min(m, kRowsOfCall);  // divides m at our shapes
  const auto kernel = make_kernel(T{}, static_cast<int>(rows), static_cast<int>(n), static_cast<int>(k));
  if (kernel == nullptr) {
    state.SkipWithError("libxsmm makes no kernel for this shape");
    return;
  }
  const Array<T> weights = pack_weights<T>(n, k), x = array<T>(m * k);
  const Array<float> y = array<float>(m * n);
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t i = 0; i < k; ++i) convert(peer_activation(row, i), x.get() + row * k + i);
  }
  for (auto _ : state) {
    // A panel stays in the cache for all the rows.
    for (int64_t col = 0; col < n; col += kPanelColumns) {
      for (int64_t row = 0; row < m; row += rows)
        kernel(weights.get() + col * k, x.get() + row * k, y.get() + row * n + col);
    }
    benchmark::ClobberMemory();
  }
  if (!peer_is_right(y.get(), m, n, k)) state.SkipWithError("the product is wrong");
  state.SetLabel(libxsmm_get_target_arch());
  count_operations(state, *limits, what, 512, 2.0 * static_cast<double>(m * n * k));
  const auto bytes = static_cast<double>(n * k) * sizeof(T);
  count_bytes(state, *limits, bytes, bytes > 40e6);
}

}  // namespace

void register_libxsmm(ThreadLimits* limits) {
  libxsmm_init();
  for (const Shape& shape : peer_shapes()) {
    const std::string f32 = std::string("libxsmm/f32/") + shape.name;
    const std::string bf16 = std::string("libxsmm/bf16/") + shape.name;
    auto* single = benchmark::RegisterBenchmark(f32.c_str(), product<float>, limits, Product::kFp32, shape);
    auto* half =
        benchmark::RegisterBenchmark(bf16.c_str(), product<libxsmm_bfloat16>, limits, Product::kBf16, shape);
    for (int64_t rows : shape.rows) {
      single->Arg(rows);
      half->Arg(rows);
    }
  }
}

}  // namespace kvasir::bench
