// wgmma.mma_async.m64nNk16 in bf16 with f32 accumulators. Device code for sm_90a.
//
// A warpgroup (four warps, the first a multiple of four) computes d += A B: A is 64 x 16, B is 16 x N, both
// with k contiguous. Of d, lane l of warp w holds d[4j], d[4j+1]: row 16 w + l / 4, columns 8 j + 2 (l % 4)
// and the next; d[4j+2], d[4j+3]: the same eight rows below.
#pragma once

#include <cstdint>

namespace kvasir::ops::gpu::hopper {

// Names rows of 64 bf16 in shared memory, 128 bytes each, of which 16-byte chunk c of row r lies at c ^ (r %
// 8). address: a multiple of 1,024; 16 elements further in k is 2 more in the descriptor.
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t address) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kBytesBetweenEights = uint64_t{1024 / 16} << 32;
  constexpr uint64_t kUnusedStride = uint64_t{1} << 16;
  return kSwizzle128 | kBytesBetweenEights | kUnusedStride | ((address & 0x3FFFF) >> 4);
}

// Registers and shared memory written before are seen by the products that follow.
__device__ __forceinline__ void products_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void products_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kPending committed groups are unfinished.
template <int kPending>
__device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// The accumulators as operands: their places in the text, and the registers, in tens.
#define KV_PLACES_10(t) \
  "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t "9"
#define KV_PLACES_8(t) "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7"
#define KV_PLACES_6(t) "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5"
#define KV_PLACES_4(t) "%" #t "0, %" #t "1, %" #t "2, %" #t "3"
#define KV_PLACES_2(t) "%" #t "0, %" #t "1"
#define KV_PLACES_30 KV_PLACES_10() ", " KV_PLACES_10(1) ", " KV_PLACES_10(2)
#define KV_PLACES_60 KV_PLACES_30 ", " KV_PLACES_10(3) ", " KV_PLACES_10(4) ", " KV_PLACES_10(5)
#define KV_PLACES_120                                                                            \
  KV_PLACES_60 ", " KV_PLACES_10(6) ", " KV_PLACES_10(7) ", " KV_PLACES_10(8) ", " KV_PLACES_10( \
      9) ", " KV_PLACES_10(10) ", " KV_PLACES_10(11)

#define KV_REGISTERS_2(i) "+f"(d[i]), "+f"(d[(i) + 1])
#define KV_REGISTERS_4(i) KV_REGISTERS_2(i), KV_REGISTERS_2((i) + 2)
#define KV_REGISTERS_8(i) KV_REGISTERS_4(i), KV_REGISTERS_4((i) + 4)
#define KV_REGISTERS_16(i) KV_REGISTERS_8(i), KV_REGISTERS_8((i) + 8)
#define KV_REGISTERS_32(i) KV_REGISTERS_16(i), KV_REGISTERS_16((i) + 16)
#define KV_REGISTERS_64(i) KV_REGISTERS_32(i), KV_REGISTERS_32((i) + 32)
#define KV_REGISTERS_128(i) KV_REGISTERS_64(i), KV_REGISTERS_64((i) + 64)

// One width: n is N, c the number of accumulators n / 2; c1 ... c5 are the places after them.
#define KV_WGMMA(n, c, places, c1, c2, c3, c4, c5)                                                         \
  __device__ __forceinline__ void wgmma(float(&d)[c], uint64_t a, uint64_t b, int accumulate) {            \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #c2                                                  \
                 ", 0;\n"                                                                                  \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" places "}, %" #c ", %" #c1   \
                 ", p, 1, 1, 0, 0;\n}"                                                                     \
                 : KV_REGISTERS_##c(0)                                                                     \
                 : "l"(a), "l"(b), "r"(accumulate));                                                       \
  }                                                                                                        \
  __device__ __forceinline__ void wgmma(float(&d)[c], const uint32_t(&a)[4], uint64_t b, int accumulate) { \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #c5                                                  \
                 ", 0;\n"                                                                                  \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" places "}, {%" #c ", %" #c1  \
                 ", %" #c2 ", %" #c3 "}, %" #c4 ", p, 1, 1, 0;\n}"                                         \
                 : KV_REGISTERS_##c(0)                                                                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));                   \
  }

// d = A B, or d += A B if `accumulate`; A by a descriptor, or a warp's 16 rows as mma.m16n8k16 has them.
KV_WGMMA(8, 4, KV_PLACES_4(), 5, 6, 7, 8, 9)
KV_WGMMA(16, 8, KV_PLACES_8(), 9, 10, 11, 12, 13)
KV_WGMMA(32, 16, KV_PLACES_10() ", " KV_PLACES_6(1), 17, 18, 19, 20, 21)
KV_WGMMA(64, 32, KV_PLACES_30 ", " KV_PLACES_2(3), 33, 34, 35, 36, 37)
KV_WGMMA(128, 64, KV_PLACES_60 ", " KV_PLACES_4(6), 65, 66, 67, 68, 69)
KV_WGMMA(256, 128, KV_PLACES_120 ", " KV_PLACES_8(12), 129, 130, 131, 132, 133)

#undef KV_WGMMA
#undef KV_PLACES_10
#undef KV_PLACES_8
#undef KV_PLACES_6
#undef KV_PLACES_4
#undef KV_PLACES_2
#undef KV_PLACES_30
#undef KV_PLACES_60
#undef KV_PLACES_120
#undef KV_REGISTERS_2
#undef KV_REGISTERS_4
#undef KV_REGISTERS_8
#undef KV_REGISTERS_16
#undef KV_REGISTERS_32
#undef KV_REGISTERS_64
#undef KV_REGISTERS_128

}  // namespace kvasir::ops::gpu::hopper
