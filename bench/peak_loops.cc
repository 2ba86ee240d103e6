// The loops of peak_loops.h for x86-64. Each is compiled for its own instruction set by an attribute, and
// only called where the CPU has it.
#include "peak_loops.h"

namespace kvasir::bench {

const char* product_name(Product product) {
  switch (product) {
    case Product::kFp32:
      return "fp32";
    case Product::kBf16:
      return "bf16";
    case Product::kInt8:
      return "int8";
  }
  return "unknown";
}

#if defined(__x86_64__)
namespace {

// Two results a cycle, each some six cycles after its operands, need twelve independent chains: as many as
// fit into the 16 registers of AVX2. AVX-512 has room for 24. The loops are assembly because a compiler that
// moves one of these registers to memory and back measures that. Sums are in registers 0 to 11 and 16 to 27;
// registers 13 to 15 hold operands, a pattern that is an ordinary number in each type. No compiler uses those
// from 16 on in code that is not compiled for AVX-512, as this is not, so they need not be declared as
// changed (and cannot be).
constexpr int kChains512 = 24;
constexpr int kChains256 = 12;

// clang-format off
#define KV_256(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(10) f(11)
#define KV_512(f) KV_256(f) f(16) f(17) f(18) f(19) f(20) f(21) f(22) f(23) f(24) f(25) f(26) f(27)
#define KV_CLOBBERED "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
  "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc"

// A function `name` whose round is `body(n)` for each of the sums that `all` names, in registers r ("ymm" or "zmm").
#define KV_PEAK_LOOP(name, r, all, clear, body)   \
  void name(int64_t rounds) {                     \
    __asm__ volatile(                             \
        "vmovd %[pattern], %%xmm15\n\t"           \
        "vpbroadcastd %%xmm15, %%" r "15\n\t"     \
        "vpbroadcastd %%xmm15, %%" r "14\n\t"     \
        "vpbroadcastd %%xmm15, %%" r "13\n\t"     \
        all(clear)                                \
        "1:\n\t"                                  \
        all(body)                                 \
        "dec %[rounds]\n\t"                       \
        "jnz 1b\n\t"                              \
        "vzeroupper\n\t"                          \
        : [rounds] "+r"(rounds)                   \
        : [pattern] "r"(0x3f013f01)               \
        : KV_CLOBBERED);                          \
  }

#define KV_CLEAR_512(n) "vpxord %%zmm" #n ", %%zmm" #n ", %%zmm" #n "\n\t"
#define KV_CLEAR_256(n) "vpxor %%xmm" #n ", %%xmm" #n ", %%xmm" #n "\n\t"
#define KV_FP32_512(n) "vfmadd231ps %%zmm14, %%zmm15, %%zmm" #n "\n\t"
#define KV_BF16_512(n) "vdpbf16ps %%zmm14, %%zmm15, %%zmm" #n "\n\t"
#define KV_INT8_512(n) "vpdpbusd %%zmm14, %%zmm15, %%zmm" #n "\n\t"
#define KV_FP32_256(n) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #n "\n\t"
#define KV_INT8_256(n) "%{vex%} vpdpbusd %%ymm14, %%ymm15, %%ymm" #n "\n\t"
#define KV_INT8_256_CHAIN(n)                 \
  "vpmaddubsw %%ymm14, %%ymm15, %%ymm12\n\t" \
  "vpmaddwd %%ymm13, %%ymm12, %%ymm12\n\t"   \
  "vpaddd %%ymm12, %%ymm" #n ", %%ymm" #n "\n\t"
// clang-format on

KV_PEAK_LOOP(fp32_512, "zmm", KV_512, KV_CLEAR_512, KV_FP32_512)
KV_PEAK_LOOP(bf16_512, "zmm", KV_512, KV_CLEAR_512, KV_BF16_512)
KV_PEAK_LOOP(int8_512, "zmm", KV_512, KV_CLEAR_512, KV_INT8_512)
KV_PEAK_LOOP(fp32_256, "ymm", KV_256, KV_CLEAR_256, KV_FP32_256)
KV_PEAK_LOOP(int8_256, "ymm", KV_256, KV_CLEAR_256, KV_INT8_256)
KV_PEAK_LOOP(int8_256_chain, "ymm", KV_256, KV_CLEAR_256, KV_INT8_256_CHAIN)

}  // namespace

std::vector<PeakLoop> peak_loops() {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2"), fma = __builtin_cpu_supports("fma");
  const bool avx512 = __builtin_cpu_supports("avx512f");
  const bool vnni512 = avx512 && __builtin_cpu_supports("avx512vnni");
  const bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
  const bool vnni256 = avx2 && __builtin_cpu_supports("avxvnni");
  // Two operations for each of the products of a vector.
  constexpr double k512 = 2.0 * kChains512 * 512, k256 = 2.0 * kChains256 * 256;
  return {
      {Product::kFp32, 512, "vfmadd", "avx512f", avx512, k512 / 32, fp32_512},
      {Product::kFp32, 256, "vfmadd", "fma", avx2 && fma, k256 / 32, fp32_256},
      {Product::kBf16, 512, "vdpbf16ps", "avx512_bf16", bf16, k512 / 16, bf16_512},
      {Product::kInt8, 512, "vpdpbusd", "avx512_vnni", vnni512, k512 / 8, int8_512},
      {Product::kInt8, 256, "vpdpbusd", "avx_vnni", vnni256, k256 / 8, int8_256},
      {Product::kInt8, 256, "vpmaddubsw+vpmaddwd+vpaddd", "avx2", avx2, k256 / 8, int8_256_chain},
  };
}
#else
std::vector<PeakLoop> peak_loops() {
  return {};
}
#endif

}  // namespace kvasir::bench
