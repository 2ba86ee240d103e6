// The host twin of the GPU numerics, one thread: CPU time for each fused16, by instruction set and number
// of rows.
//
//   fused16_bench [--benchmark_filter=...]
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstdint>
#include <vector>

#include "base/random.h"
#include "ops/cpu/isa.h"
#include "ops/gpu/twin.h"
#include "ops/numerics.h"

namespace kvasir::ops {
namespace {

std::vector<uint16_t> random_halves(int64_t n, float scale) {
  Random random(1);
  std::vector<uint16_t> out(static_cast<size_t>(n));
  for (uint16_t& x : out) x = f32_to_bf16(scale * static_cast<float>(2 * random.unit() - 1));
  return out;
}

void count_steps(benchmark::State& state, int64_t steps) {
  state.counters["per_fused16"] =
      benchmark::Counter(static_cast<double>(steps),
                         benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void product(benchmark::State& state, IsaClass isa, int64_t rows) {
  constexpr int64_t kN = 256, kK = 2048;
  const auto x = random_halves(rows * kK, 1), w = random_halves(kN * kK, 0.05F);
  const twin::Weights weights(w.data(), kN, kK);
  std::vector<float> out(static_cast<size_t>(rows * kN));
  for (auto _ : state) {
    twin::gemm(isa, x.data(), weights, rows, out.data());
    benchmark::DoNotOptimize(out.data());
  }
  count_steps(state, rows * kN * kK / 16);
}

void leaf(benchmark::State& state, IsaClass isa, int64_t heads) {
  constexpr int64_t kDim = 128;
  const auto q = random_halves(heads * kDim, 1), kv = random_halves(256 * kDim, 1);
  std::vector<float> out(static_cast<size_t>(heads * reference::partial_floats(kDim)));
  for (auto _ : state) {
    twin::leaf(isa, q.data(), heads, kv.data(), kv.data(), kDim, kDim, 0, 256, {}, out.data());
    benchmark::DoNotOptimize(out.data());
  }
  count_steps(state, 2 * heads * 256 * kDim / 16);
}

}  // namespace
}  // namespace kvasir::ops

int main(int argc, char** argv) {
  using namespace kvasir::ops;
  for (const IsaClass isa : {IsaClass::kPortable, IsaClass::kAvx2, IsaClass::kAvx512}) {
    if (!is_supported(isa)) continue;
    for (const int64_t rows : {1, 4, 32}) {
      benchmark::RegisterBenchmark(fmt::format("product/{}/rows:{}", isa_name(isa), rows).c_str(), product,
                                   isa, rows);
    }
    for (const int64_t heads : {1, 4}) {
      benchmark::RegisterBenchmark(fmt::format("leaf/{}/heads:{}", isa_name(isa), heads).c_str(), leaf, isa,
                                   heads);
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
