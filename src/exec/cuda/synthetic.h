// Operands made from an index, alike on the host and the device, so that neither need copy them to the other.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvasir::cuda {

// 64 well mixed bits of (seed, index).
constexpr uint64_t mixed_bits(uint64_t seed, uint64_t index) {
  uint64_t z = (seed + 1) * 0x9E3779B97F4A7C15u + index * 0xD1B54A32D192ED03u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// A bf16 of either sign, evenly spread over magnitudes up to 1 but for those below 2^-12. Never zero.
constexpr uint16_t synthetic_bf16(uint64_t seed, uint64_t index) {
  const uint64_t bits = mixed_bits(seed, index);
  uint32_t exponent = 126;
  for (uint64_t halvings = bits >> 32; exponent > 114 && (halvings & 1) != 0; halvings >>= 1) --exponent;
  return static_cast<uint16_t>((bits & 0x807F) | exponent << 7);
}

// Element (row, k) of a synthetic matrix is synthetic_bf16(seed, row * columns + k). Rows from `rows` up to
// the next multiple of 64 are zeros in the image.
cudaError_t fill_image(uint16_t* image, int64_t rows, int64_t columns, uint64_t seed, cudaStream_t stream);
cudaError_t fill_rows(uint16_t* matrix, int64_t rows, int64_t columns, uint64_t seed, cudaStream_t stream);

}  // namespace kvasir::cuda
