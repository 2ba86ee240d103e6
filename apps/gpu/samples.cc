#include "apps/gpu/samples.h"

#include <atomic>
#include <bit>
#include <vector>

#include "apps/gpu/workers.h"
#include "exec/cuda/synthetic.h"
#include "ops/gpu/fused16.h"

namespace kvasir::gpu_program {
float chained_output(const Product& product, int64_t row, int64_t feature) {
  float sum = 0;
  for (int64_t k = 0; k < product.k; k += 16) {
    uint16_t w[16], x[16];
    for (int64_t i = 0; i < 16; ++i) {
      w[i] = cuda::synthetic_bf16(kWeightSeed, static_cast<uint64_t>(feature * product.k + k + i));
      x[i] = cuda::synthetic_bf16(kRowSeed, static_cast<uint64_t>(row * product.k + k + i));
    }
    sum = ops::fused16(sum, w, x);
  }
  return sum;
}

int64_t wrong_outputs(const Product& product, int64_t rows, int64_t samples,
                      const std::function<float(int64_t)>& output) {
  std::vector<float> got(static_cast<size_t>(samples));
  std::vector<int64_t> places(static_cast<size_t>(samples));
  for (int64_t i = 0; i < samples; ++i) {
    const uint64_t draw = cuda::mixed_bits(99, static_cast<uint64_t>(i + rows * samples));
    int64_t row = static_cast<int64_t>(draw % static_cast<uint64_t>(rows));
    int64_t feature = static_cast<int64_t>((draw >> 32) % static_cast<uint64_t>(product.features));
    if (i < 4) {
      row = i % 2 == 0 ? 0 : rows - 1;
      feature = i < 2 ? 0 : product.features - 1;
    }
    places[static_cast<size_t>(i)] = row * product.features + feature;
    got[static_cast<size_t>(i)] = output(places[static_cast<size_t>(i)]);
  }
  std::atomic<int64_t> wrong{0};
  on_all_cores(samples, [&](int64_t i) {
    const int64_t place = places[static_cast<size_t>(i)];
    const float want = chained_output(product, place / product.features, place % product.features);
    if (std::bit_cast<uint32_t>(want) != std::bit_cast<uint32_t>(got[static_cast<size_t>(i)])) ++wrong;
  });
  return wrong;
}

}  // namespace kvasir::gpu_program
