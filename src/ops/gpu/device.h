// What kernels are written in: the few things that a thread of a GPU can do and C++ has no word for.
//
// nvcc compiles each to an instruction of sm_90a. Any other compiler sees declarations; tests/simt defines
// them, so that kernels run, and are tested, without a GPU. Kernels use nothing of CUDA but what stands here.
// A *warp* is 32 threads; functions that say so are called by all lanes of a warp together, with the same
// kind of arguments. Shared memory is given by ordinary pointers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/gpu/scalar.h"

#if defined(__CUDACC__)
#define KV_DEVICE __device__ __forceinline__
#define KV_UNROLL_LOOP _Pragma("unroll")
#define KV_UNROLL_8 _Pragma("unroll 8")
#else
#define KV_DEVICE inline
#define KV_UNROLL_LOOP
#define KV_UNROLL_8
#endif

namespace kvasir::ops::gpu {

constexpr int kWarp = 32;

// A counter in shared memory on which threads wait for copies: a phase ends when so many threads have arrived
// as it was made for, and all bytes have come that it was told to expect. Phases have parities 0, 1, 0, ...
struct alignas(8) CopyBarrier {
  uint64_t word;
};

// Faults that tests plant in kernels.
enum class Fault {
  kNone,
  kUnseenKept,       // V of positions that no query sees is not zeroed
  kMergeInOrder,     // leaves merge from left to right, not by the aligned tree
  kHeadOfNeighbour,  // a query head reads the next KV head
  kWindowOffByOne,   // a window has a position too many
};

#if defined(__CUDACC__)

KV_DEVICE constexpr bool planted(Fault) {
  return false;
}

KV_DEVICE uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

KV_DEVICE int thread_index() {
  return static_cast<int>(threadIdx.x);
}
KV_DEVICE int block_x() {
  return static_cast<int>(blockIdx.x);
}
KV_DEVICE int block_y() {
  return static_cast<int>(blockIdx.y);
}
KV_DEVICE int grid_x() {
  return static_cast<int>(gridDim.x);
}
KV_DEVICE std::byte* shared_memory() {
  extern __shared__ __align__(1024) std::byte kvasir_shared[];
  return kvasir_shared;
}

KV_DEVICE void sync_block() {
  __syncthreads();
}
KV_DEVICE void sync_warp() {
  __syncwarp();
}

KV_DEVICE float shuffle_xor(float value, int mask) {
  return __shfl_xor_sync(0xFFFFFFFFU, value, mask);
}
KV_DEVICE int shuffle_xor(int value, int mask) {
  return __shfl_xor_sync(0xFFFFFFFFU, value, mask);
}

KV_DEVICE uint64_t shuffle_xor(uint64_t value, int mask) {
  return __shfl_xor_sync(0xFFFFFFFFU, static_cast<unsigned long long>(value), mask);
}
KV_DEVICE void add_in_shared(uint64_t* to, uint64_t value) {
  atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
}
KV_DEVICE uint64_t multiply_high(uint64_t a, uint64_t b) {
  return __umul64hi(a, b);
}

KV_DEVICE void barrier_init(CopyBarrier* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
               : "memory");
}
KV_DEVICE void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
KV_DEVICE void fence_shared_to_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
KV_DEVICE void barrier_arrive(CopyBarrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
KV_DEVICE void barrier_arrive_expecting(CopyBarrier* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
KV_DEVICE void barrier_wait(CopyBarrier* barrier, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  }
}
KV_DEVICE void copy_to_shared(void* to, const void* from, uint32_t bytes, CopyBarrier* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(to)),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

KV_DEVICE void load_matrices(const void* row, uint32_t (&out)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row))
               : "memory");
}
KV_DEVICE void load_matrices_transposed(const void* row, uint32_t (&out)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row))
               : "memory");
}
KV_DEVICE void fused_step(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#else  // defined by tests/simt

bool planted(Fault fault);

// The thread in its block, and the block in its grid.
int thread_index();
int block_x();
int block_y();
int grid_x();
// The block's shared memory, at a multiple of 1,024 bytes; it holds anything at first.
std::byte* shared_memory();

// Waits for all threads of the block, or of the warp.
void sync_block();
void sync_warp();

// The value of the lane whose number differs in these bits. A whole warp.
float shuffle_xor(float value, int mask);
int shuffle_xor(int value, int mask);
uint64_t shuffle_xor(uint64_t value, int mask);
// Adds to an integer in shared memory that other threads add to.
void add_in_shared(uint64_t* to, uint64_t value);
// The upper 64 bits of the product.
uint64_t multiply_high(uint64_t a, uint64_t b);

// Makes a barrier for so many arrivals a phase; then fence_barrier_init() and a sync of all threads that use
// it.
void barrier_init(CopyBarrier* barrier, int arrivals);
void fence_barrier_init();
// Behind ordinary writes to shared memory that a later copy overwrites, by each thread that wrote, before the
// sync with the thread that starts the copy.
void fence_shared_to_copies();
void barrier_arrive(CopyBarrier* barrier);
// Arrives, and has the phase expect so many bytes more.
void barrier_arrive_expecting(CopyBarrier* barrier, uint32_t bytes);
// Until the phase of this parity has ended.
void barrier_wait(CopyBarrier* barrier, uint32_t parity);
// Starts a copy; its bytes count in the barrier's phase. REQUIRES: all three are multiples of 16
void copy_to_shared(void* to, const void* from, uint32_t bytes, CopyBarrier* barrier);

// Four 8 x 8 matrices of 16-bit elements. Lane 8 m + r names row r of matrix m, 16 bytes in shared memory;
// out[m] has elements (lane / 4, 2 (lane mod 4)) and the one to its right. Transposed: of the transposed
// matrices. A whole warp.
void load_matrices(const void* row, uint32_t (&out)[4]);
void load_matrices_transposed(const void* row, uint32_t (&out)[4]);
// c[16][8] += a[16][16] b[16][8] in bf16, each output one fused16 (ops/gpu/fused16.h). With g = lane / 4 and
// t = 2 (lane mod 4), a lane has a: (g, t) (g + 8, t) (g, t + 8) (g + 8, t + 8), each with its right
// neighbour; b: (t, g) (t + 8, g), each with the one below; c: (g, t) (g, t + 1) (g + 8, t) (g + 8, t + 1). A
// whole warp.
void fused_step(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

#endif

KV_DEVICE int lane_index() {
  return thread_index() % kWarp;
}
KV_DEVICE int warp_index() {
  return thread_index() / kWarp;
}

}  // namespace kvasir::ops::gpu
