// One kernel for each form of the tensor cores' instruction: operands as they come, outputs as they are.
#include "exec/cuda/probe.h"
#include "ops/gpu/kernels/hopper.h"
#include "ops/gpu/kernels/wgmma.h"

namespace kvasir::cuda {
namespace {

namespace hopper = ops::gpu::hopper;

__device__ __forceinline__ uint32_t pair_at(const uint16_t* from) {
  return *reinterpret_cast<const uint32_t*>(from);
}

// A problem a warp: rows 16, columns 8.
template <bool kShort>
__global__ void mma_kernel(const FormProblems p) {
  const int lane = static_cast<int>(threadIdx.x % 32), group = lane / 4, pair = lane % 4 * 2;
  const int problem = static_cast<int>(blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32);
  if (problem >= p.problems) return;
  const int k = 16 * p.steps;
  const uint16_t* a = p.a + int64_t{problem} * 16 * k;
  const uint16_t* b = p.b + int64_t{problem} * 8 * k;
  const int64_t output = int64_t{problem} * 128;
  const int64_t places[4] = {output + group * 8 + pair, output + group * 8 + pair + 1,
                             output + (group + 8) * 8 + pair, output + (group + 8) * 8 + pair + 1};
  float d[4];
  for (int i = 0; i < 4; ++i) d[i] = p.from_zero ? 0.0f : p.c[places[i]];
  for (int at = 0; at < k; at += 16) {
    const uint32_t fragment[4] = {
        pair_at(a + group * k + at + pair), pair_at(a + (group + 8) * k + at + pair),
        pair_at(a + group * k + at + pair + 8), pair_at(a + (group + 8) * k + at + pair + 8)};
    const uint32_t b0 = pair_at(b + group * k + at + pair), b1 = pair_at(b + group * k + at + pair + 8);
    if (kShort) {
      hopper::mma_m16n8k8(d, fragment[0], fragment[1], b0);
      hopper::mma_m16n8k8(d, fragment[2], fragment[3], b1);
    } else {
      ops::gpu::fused_step(d, fragment, b0, b1);
    }
  }
  for (int i = 0; i < 4; ++i) p.d[places[i]] = d[i];
}

// Rows of up to 64 of k to rows of 128 bytes in shared memory, swizzled.
__device__ __forceinline__ void stage_rows(uint8_t* to, const uint16_t* from, int rows, int k) {
  for (int i = static_cast<int>(threadIdx.x); i < rows * k / 8; i += static_cast<int>(blockDim.x)) {
    const int row = i / (k / 8), chunk = i % (k / 8);
    *reinterpret_cast<uint4*>(to + row * 128 + ((chunk ^ (row % 8)) * 16)) =
        *reinterpret_cast<const uint4*>(from + row * k + chunk * 8);
  }
}

// A problem a block of one warpgroup, one after another.
template <int kColumns, bool kRegisters>
__global__ void __launch_bounds__(128) wgmma_kernel(const FormProblems p) {
  __shared__ __align__(1024) uint8_t staged_a[64 * 128];
  __shared__ __align__(1024) uint8_t staged_b[kColumns * 128];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int row = warp * 16 + lane / 4, pair = lane % 4 * 2, k = 16 * p.steps;
  for (int problem = static_cast<int>(blockIdx.x); problem < p.problems;
       problem += static_cast<int>(gridDim.x)) {
    const uint16_t* a = p.a + int64_t{problem} * 64 * k;
    const int64_t output = int64_t{problem} * 64 * kColumns;
    __syncthreads();
    stage_rows(staged_a, a, 64, k);
    stage_rows(staged_b, p.b + int64_t{problem} * kColumns * k, kColumns, k);
    hopper::stores_before_async();
    __syncthreads();
    float d[kColumns / 2];
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) {
      const int64_t place = output + (row + i % 4 / 2 * 8) * kColumns + i / 4 * 8 + pair + i % 2;
      d[i] = p.from_zero ? __uint_as_float(0x7FC12345u) : p.c[place];  // not a number: it must be overwritten
    }
    const uint64_t a_tile = hopper::tile_descriptor(ops::gpu::shared_address(staged_a));
    const uint64_t b_tile = hopper::tile_descriptor(ops::gpu::shared_address(staged_b));
#pragma unroll 1
    for (int step = 0; step < p.steps; ++step) {
      const int accumulate = step != 0 || !p.from_zero;
      const uint16_t* at = a + row * k + step * 16 + pair;
      const uint32_t fragment[4] = {pair_at(at), pair_at(at + 8 * k), pair_at(at + 8),
                                    pair_at(at + 8 * k + 8)};
      hopper::products_begin();
      if constexpr (kRegisters) {
        hopper::wgmma(d, fragment, b_tile + step * 2, accumulate);
      } else {
        hopper::wgmma(d, a_tile + step * 2, b_tile + step * 2, accumulate);
      }
      hopper::products_commit();
      hopper::products_wait<0>();
    }
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) {
      p.d[output + (row + i % 4 / 2 * 8) * kColumns + i / 4 * 8 + pair + i % 2] = d[i];
    }
  }
}

constexpr InstructionForm kForms[kInstructionForms] = {
    {"mma.sync.m16n8k16", 16, 8},
    {"wgmma.m64n8k16 A shared", 64, 8},
    {"wgmma.m64n16k16 A shared", 64, 16},
    {"wgmma.m64n32k16 A shared", 64, 32},
    {"wgmma.m64n64k16 A shared", 64, 64},
    {"wgmma.m64n128k16 A shared", 64, 128},
    {"wgmma.m64n256k16 A shared", 64, 256},
    {"wgmma.m64n8k16 A registers", 64, 8},
    {"wgmma.m64n16k16 A registers", 64, 16},
    {"wgmma.m64n32k16 A registers", 64, 32},
    {"wgmma.m64n64k16 A registers", 64, 64},
    {"wgmma.m64n128k16 A registers", 64, 128},
    {"wgmma.m64n256k16 A registers", 64, 256},
    {"mma.sync.m16n8k8 twice", 16, 8},
};

using FormKernel = void (*)(FormProblems);
constexpr FormKernel kKernels[kInstructionForms] = {
    mma_kernel<false>,       wgmma_kernel<8, false>,   wgmma_kernel<16, false>,  wgmma_kernel<32, false>,
    wgmma_kernel<64, false>, wgmma_kernel<128, false>, wgmma_kernel<256, false>, wgmma_kernel<8, true>,
    wgmma_kernel<16, true>,  wgmma_kernel<32, true>,   wgmma_kernel<64, true>,   wgmma_kernel<128, true>,
    wgmma_kernel<256, true>, mma_kernel<true>,
};

}  // namespace

InstructionForm instruction_form(int form) {
  return kForms[form];
}

cudaError_t run_form(int form, const FormProblems& problems, cudaStream_t stream) {
  const bool warps = kForms[form].rows == 16;
  const int blocks = warps ? (problems.problems + 3) / 4 : problems.problems;
  kKernels[form]<<<static_cast<unsigned>(blocks), 128, 0, stream>>>(problems);
  return cudaGetLastError();
}

}  // namespace kvasir::cuda
