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

// Two results a cycle, each some four cycles after its operands, need eight independent chains, and more do
// no harm. The loops are assembly because a compiler that moves one of these registers to memory and back
// measures that. Registers 0 to 11 hold sums and 14 and 15 operands: a pattern that is an ordinary number in
// each type.
constexpr int kChains = 12;

#define KV_TWELVE(body) \
  body(0) body(1) body(2) body(3) body(4) body(5) body(6) body(7) body(8) body(9) body(10) body(11)
#define KV_CLOBBERED                                                                                         \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", \
      "xmm13", "xmm14", "xmm15", "cc", "memory"

// A function `name` that runs `body(register)` twelve times a round, in registers r ("ymm" or "zmm").
#define KV_PEAK_LOOP(name, r, clear, body)                                                                     \
  void name(int64_t rounds) {                                                                                  \
    __asm__ volatile(                                                                                        \
        "vmovd %[pattern], %%xmm15\n\t"                                                                      \
        "vpbroadcastd %%xmm15, %%" r "15\n\t"                                                                \
        "vpbroadcastd %%xmm15, %%" r "14\n\t"                                                                \
        "vpbroadcastd %%xmm15, %%" r "13\n\t"                                                                \
        KV_TWELVE(clear)                                                                                     \
        "1:\n\t"                                                                                             \
        KV_TWELVE(body)                                                                                      \
        "dec %[rounds]\n\t"                                                                                  \
        "jnz 1b\n\t"                                                                                         \
        "vzeroupper\n\t"                                                                                     \
        : [rounds] "+r"(rounds)                                                                              \
        : [pattern] "r"(0x3f013f01)                                                                          \
        : KV_CLOBBERED); \
  }

#define KV_CLEAR(n) "vpxor %%xmm" #n ", %%xmm" #n ", %%xmm" #n "\n\t"
#define KV_FP32_512(n) "vfmadd231ps %%zmm14, %%zmm15, %%zmm" #n "\n\t"
#define KV_BF16_512(n) "vdpbf16ps %%zmm14, %%zmm15, %%zmm" #n "\n\t"
#define KV_INT8_512(n) "vpdpbusd %%zmm14, %%zmm15, %%zmm" #n "\n\t"
#define KV_FP32_256(n) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #n "\n\t"
#define KV_INT8_256(n) "%{vex%} vpdpbusd %%ymm14, %%ymm15, %%ymm" #n "\n\t"
#define KV_INT8_256_CHAIN(n)                 \
  "vpmaddubsw %%ymm14, %%ymm15, %%ymm12\n\t" \
  "vpmaddwd %%ymm13, %%ymm12, %%ymm12\n\t"   \
  "vpaddd %%ymm12, %%ymm" #n ", %%ymm" #n "\n\t"

KV_PEAK_LOOP(fp32_512, "zmm", KV_CLEAR, KV_FP32_512)
KV_PEAK_LOOP(bf16_512, "zmm", KV_CLEAR, KV_BF16_512)
KV_PEAK_LOOP(int8_512, "zmm", KV_CLEAR, KV_INT8_512)
KV_PEAK_LOOP(fp32_256, "ymm", KV_CLEAR, KV_FP32_256)
KV_PEAK_LOOP(int8_256, "ymm", KV_CLEAR, KV_INT8_256)
KV_PEAK_LOOP(int8_256_chain, "ymm", KV_CLEAR, KV_INT8_256_CHAIN)

}  // namespace

std::vector<PeakLoop> peak_loops() {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2"), fma = __builtin_cpu_supports("fma");
  const bool avx512 = __builtin_cpu_supports("avx512f");
  const bool vnni512 = avx512 && __builtin_cpu_supports("avx512vnni");
  const bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
  const bool vnni256 = avx2 && __builtin_cpu_supports("avxvnni");
  // Two operations for each of the products of a vector.
  constexpr double k512 = 2.0 * kChains * 512, k256 = 2.0 * kChains * 256;
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
