#include "exec/cuda/probe.h"
#include "exec/cuda/synthetic.h"
#include "ops/gpu/kernels/hopper.h"
#include "ops/gpu/layouts.h"

namespace kvasir::cuda {
namespace {

using ops::gpu::shared_address;
using ops::gpu::hopper::barrier_arrive_expecting;
using ops::gpu::hopper::barrier_init;
using ops::gpu::hopper::barrier_init_done;
using ops::gpu::hopper::barrier_wait;
using ops::gpu::hopper::bulk_load;

constexpr int kThreads = 512;
constexpr int kBlocksEach = 4;

// Hands each value to take(index, value); a thread has kAtOnce loads on their way.
template <int kAtOnce, typename Take>
__device__ void load_all(const uint4* from, int64_t count, const Take& take) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (; i + (kAtOnce - 1) * step < count; i += kAtOnce * step) {
    uint4 v[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) v[j] = __ldcs(from + i + j * step);
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) take(i + j * step, v[j]);
  }
  for (; i < count; i += step) take(i, from[i]);
}

__global__ void __launch_bounds__(kThreads) loads_kernel(const uint4* from, int64_t count, uint32_t* sink) {
  uint32_t sum = 0;
  load_all<8>(from, count, [&](int64_t, const uint4& v) { sum += v.x ^ v.y ^ v.z ^ v.w; });
  if (sum == 0x12345678u) *sink = sum;
}

constexpr int kBulkBytes = 8192;

__global__ void bulk_kernel(const uint8_t* from, int pieces, int times, int in_flight) {
  extern __shared__ uint8_t shared[];
  const uint32_t base = (shared_address(shared) + 127) & ~127u;
  const uint32_t barriers = base + static_cast<uint32_t>(in_flight) * kBulkBytes;
  if (threadIdx.x != 0) return;
  for (int i = 0; i < in_flight; ++i) barrier_init(barriers + i * 8, 1);
  barrier_init_done();
  const int last = pieces * times;
  const auto piece = [&](int n) { return n * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x); };
  const auto start = [&](int n) {
    const uint32_t slot = static_cast<uint32_t>(n % in_flight);
    if (piece(n) >= last) return;
    barrier_arrive_expecting(barriers + slot * 8, kBulkBytes);
    bulk_load(base + slot * kBulkBytes, from + int64_t{piece(n) % pieces} * kBulkBytes, kBulkBytes,
              barriers + slot * 8);
  };
  for (int n = 0; n < in_flight; ++n) start(n);
  for (int n = 0; piece(n) < last; ++n) {
    const uint32_t slot = static_cast<uint32_t>(n % in_flight);
    barrier_wait(barriers + slot * 8, static_cast<uint32_t>(n / in_flight) & 1);
    start(n + in_flight);
  }
}

__global__ void __launch_bounds__(kThreads) stores_kernel(uint4* to, int64_t count, uint32_t value) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    to[i] = make_uint4(value, value, value, value);
  }
}

__global__ void __launch_bounds__(kThreads) copy_kernel(uint4* to, const uint4* from, int64_t count) {
  load_all<4>(from, count, [&](int64_t i, const uint4& v) { __stcs(to + i, v); });
}

__global__ void nothing_kernel() {}

__global__ void mark_and_wait_kernel(uint32_t* mark, const uint32_t* gate, uint32_t value,
                                     uint64_t limit_ns) {
  asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(mark), "r"(value) : "memory");
  uint64_t begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  uint32_t seen;
  do {
    asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(seen) : "l"(gate) : "memory");
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (seen < value && now - begin < limit_ns);
}

__global__ void scalar_kernel(ScalarOperation operation, const float* x, const float* y, const float* z,
                              uint32_t* out, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  switch (operation) {
    case ScalarOperation::kFma:
      out[i] = __float_as_uint(fmaf(x[i], y[i], z[i]));
      break;
    case ScalarOperation::kDivide:
      out[i] = __float_as_uint(x[i] / y[i]);
      break;
    case ScalarOperation::kSquareRoot:
      out[i] = __float_as_uint(sqrtf(x[i]));
      break;
    case ScalarOperation::kAdd:
      out[i] = __float_as_uint(x[i] + y[i]);
      break;
    case ScalarOperation::kMultiply:
      out[i] = __float_as_uint(x[i] * y[i]);
      break;
    case ScalarOperation::kToBf16:
      out[i] = ops::gpu::hopper::bf16_pair(x[i], y[i]);
      break;
    case ScalarOperation::kRint:
      out[i] = __float_as_uint(rintf(x[i]));
      break;
    case ScalarOperation::kToInt:
      out[i] = static_cast<uint32_t>(__float2int_rn(x[i]));
      break;
  }
}

template <bool kImage>
__global__ void fill_kernel(uint16_t* to, int64_t rows, int64_t stored_rows, int64_t columns, uint64_t seed) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < stored_rows * columns; i += step) {
    const int64_t row = i / columns, k = i % columns;
    const uint16_t value = row < rows ? synthetic_bf16(seed, static_cast<uint64_t>(i)) : uint16_t{0};
    to[kImage ? ops::operand_offset(row, k, columns / ops::kTileK) : i] = value;
  }
}

}  // namespace

cudaError_t read_by_loads(const void* from, size_t bytes, uint32_t* sink, int multiprocessors,
                          cudaStream_t stream) {
  loads_kernel<<<multiprocessors * kBlocksEach, kThreads, 0, stream>>>(
      static_cast<const uint4*>(from), static_cast<int64_t>(bytes / 16), sink);
  return cudaGetLastError();
}

cudaError_t read_by_bulk(const void* from, size_t bytes, int times, int in_flight, int multiprocessors,
                         cudaStream_t stream) {
  const int shared = in_flight * (kBulkBytes + 8) + 128;
  const cudaError_t error =
      cudaFuncSetAttribute(bulk_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (error != cudaSuccess) return error;
  bulk_kernel<<<multiprocessors, 32, shared, stream>>>(
      static_cast<const uint8_t*>(from), static_cast<int>(bytes / kBulkBytes), times, in_flight);
  return cudaGetLastError();
}

cudaError_t write_by_stores(void* to, size_t bytes, uint32_t value, int multiprocessors,
                            cudaStream_t stream) {
  stores_kernel<<<multiprocessors * kBlocksEach, kThreads, 0, stream>>>(
      static_cast<uint4*>(to), static_cast<int64_t>(bytes / 16), value);
  return cudaGetLastError();
}

cudaError_t copy_by_loads(void* to, const void* from, size_t bytes, int multiprocessors,
                          cudaStream_t stream) {
  copy_kernel<<<multiprocessors * kBlocksEach, kThreads, 0, stream>>>(
      static_cast<uint4*>(to), static_cast<const uint4*>(from), static_cast<int64_t>(bytes / 16));
  return cudaGetLastError();
}

cudaError_t do_nothing(cudaStream_t stream) {
  nothing_kernel<<<1, 32, 0, stream>>>();
  return cudaGetLastError();
}

cudaError_t mark_and_wait(uint32_t* mark, const uint32_t* gate, uint32_t value, uint64_t limit_ns,
                          cudaStream_t stream) {
  mark_and_wait_kernel<<<1, 1, 0, stream>>>(mark, gate, value, limit_ns);
  return cudaGetLastError();
}

cudaError_t run_scalar(ScalarOperation operation, const float* x, const float* y, const float* z,
                       uint32_t* out, int64_t count, cudaStream_t stream) {
  scalar_kernel<<<static_cast<unsigned>((count + 255) / 256), 256, 0, stream>>>(operation, x, y, z, out,
                                                                                count);
  return cudaGetLastError();
}

cudaError_t fill_image(uint16_t* image, int64_t rows, int64_t columns, uint64_t seed, cudaStream_t stream) {
  const int64_t stored = (rows + ops::kTileRows - 1) / ops::kTileRows * ops::kTileRows;
  fill_kernel<true><<<2048, 256, 0, stream>>>(image, rows, stored, columns, seed);
  return cudaGetLastError();
}

cudaError_t fill_rows(uint16_t* matrix, int64_t rows, int64_t columns, uint64_t seed, cudaStream_t stream) {
  fill_kernel<false><<<2048, 256, 0, stream>>>(matrix, rows, rows, columns, seed);
  return cudaGetLastError();
}

}  // namespace kvasir::cuda
