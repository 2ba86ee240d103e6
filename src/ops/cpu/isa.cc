// What the CPU offers, and the kernels that go with it.
#include "ops/cpu/isa.h"

#include "base/check.h"
#include "ops/cpu/bf16_check.h"
#include "ops/cpu/kernel_table.h"
#include "ops/cpu/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace kvasir::ops {
namespace {

#if defined(__x86_64__)
bool bit(unsigned word, int n) {
  return (word >> n) & 1u;
}

// The register state that the operating system saves: XCR0.
uint64_t saved_state() {
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

IsaClass widest() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return IsaClass::kPortable;
  const bool fma = bit(c, 12), os_xsave = bit(c, 27), avx = bit(c, 28), f16c = bit(c, 29);
  if (!os_xsave || !avx || !fma || !f16c) return IsaClass::kPortable;
  const uint64_t state = saved_state();
  if ((state & 0x6) != 0x6) return IsaClass::kPortable;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !bit(b, 5)) return IsaClass::kPortable;
  const bool avx512 = bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31) && bit(c, 11);
  return avx512 && (state & 0xE6) == 0xE6 ? IsaClass::kAvx512 : IsaClass::kAvx2;
}

// REQUIRES: widest() == kAvx512, so that the operating system saves what the instruction needs
bool cpu_has_bf16_dot() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && bit(a, 5);
}

// Linux gives the matrix registers, 8 KiB of state a thread, to processes that ask for them.
// REQUIRES: widest() == kAvx512
bool may_use_amx() {
#if defined(__linux__)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool has = __get_cpuid_count(7, 0, &a, &b, &c, &d) && bit(d, 24) && bit(d, 25);
  return has && (saved_state() & 0x60000) == 0x60000 &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

KernelTable avx512_table() {
  KernelTable table = kvasir_kernels_avx512;
  if (has_amx()) table.gemm_int8 = kvasir_gemm_int8_amx;
  if (has_bf16_dot()) table.gemm_bf16 = kvasir_bf16_dot_avx512.gemm_bf16;
  return table;
}
#else
IsaClass widest() {
  return IsaClass::kPortable;
}
#endif

}  // namespace

const char* isa_name(IsaClass isa) {
  switch (isa) {
    case IsaClass::kPortable:
      return "portable";
    case IsaClass::kAvx2:
      return "avx2";
    case IsaClass::kAvx512:
      return "avx512";
  }
  return "unknown";
}

IsaClass detect_isa() {
  static const IsaClass kWidest = widest();
  return kWidest;
}

bool is_supported(IsaClass isa) {
  return isa <= detect_isa();
}

const Kernels& kernels_for(IsaClass isa) {
  KV_CHECK(is_supported(isa), "isa={} is wider than {}", isa_name(isa), isa_name(detect_isa()));
  static const Kernels kPortable(&kvasir_kernels_portable, IsaClass::kPortable);
#if defined(__x86_64__)
  static const Kernels kAvx2(&kvasir_kernels_avx2, IsaClass::kAvx2);
  if (isa == IsaClass::kAvx512) {
    static const KernelTable kTable = avx512_table();
    static const Kernels kAvx512(&kTable, IsaClass::kAvx512);
    return kAvx512;
  }
  if (isa == IsaClass::kAvx2) return kAvx2;
#endif
  return kPortable;
}

bool has_bf16_dot() {
#if defined(__x86_64__)
  static const bool kUsable = is_supported(IsaClass::kAvx512) && cpu_has_bf16_dot() &&
                              gives_pair_chain(kvasir_bf16_dot_avx512.dot_pairs);
  return kUsable;
#else
  return false;
#endif
}

bool has_amx() {
#if defined(__x86_64__)
  static const bool kUsable = is_supported(IsaClass::kAvx512) && may_use_amx();
  return kUsable;
#else
  return false;
#endif
}

const Kernels& basic_avx512_kernels() {
  KV_CHECK(is_supported(IsaClass::kAvx512), "this CPU has {}", isa_name(detect_isa()));
#if defined(__x86_64__)
  static const Kernels kAvx512(&kvasir_kernels_avx512, IsaClass::kAvx512);
  return kAvx512;
#else
  return kernels_for(IsaClass::kPortable);
#endif
}

#if defined(__x86_64__)
constexpr uint32_t kFlushBits = 0x8040;  // results, and inputs

FlushToZero::FlushToZero() : before_(_mm_getcsr()) {
  set_flush_to_zero();
}
FlushToZero::~FlushToZero() {
  _mm_setcsr(before_);
}
KeepSubnormals::KeepSubnormals() : before_(_mm_getcsr()) {
  _mm_setcsr(before_ & ~kFlushBits);
}
KeepSubnormals::~KeepSubnormals() {
  _mm_setcsr(before_);
}
void set_flush_to_zero() {
  _mm_setcsr(_mm_getcsr() | kFlushBits);
}
#else
FlushToZero::FlushToZero() = default;
FlushToZero::~FlushToZero() = default;
KeepSubnormals::KeepSubnormals() = default;
KeepSubnormals::~KeepSubnormals() = default;
void set_flush_to_zero() {}
#endif

}  // namespace kvasir::ops
