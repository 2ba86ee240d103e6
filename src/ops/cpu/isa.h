// Which instruction set the kernels use. All classes give the same bits; only the speed differs.
#pragma once

#include <cstdint>

namespace kvasir::ops {

class Kernels;

enum class IsaClass : uint8_t {
  kPortable,  // any CPU that this program is compiled for
  kAvx2,      // AVX2 + FMA + F16C
  kAvx512,    // AVX-512 F, BW, VL, DQ + VNNI
};

// "portable", "avx2", "avx512"
const char* isa_name(IsaClass isa);
// What the CPU and the operating system offer. kPortable is always supported.
bool is_supported(IsaClass isa);
// The widest class that is supported here.
IsaClass detect_isa();
// The kernels of a class, immutable and valid for the program's lifetime. REQUIRES: is_supported(isa)
const Kernels& kernels_for(IsaClass isa);

// True where kernels_for(kAvx512) multiplies bf16 pairs by the CPU's own instruction: the CPU has it, and it
// gives the bits of two fma (see bf16_check.h). Decided at the first call; the bits are the same either way.
bool has_bf16_dot();
// True where kernels_for(kAvx512) multiplies several int8 rows by the CPU's matrix registers. The sums are
// exact integers either way.
bool has_amx();
// The kernels of kAvx512 as a CPU without these two runs them, for tests and benchmarks.
// REQUIRES: is_supported(kAvx512)
const Kernels& basic_avx512_kernels();

// Subnormal inputs and results of this thread become zero from here on. Every thread that runs kernels calls
// it once, before the first: the bits are promised under this mode. No effect on a CPU without the mode.
void set_flush_to_zero();

// The same for a scope: the thread's mode before it comes back afterwards.
class FlushToZero {
 public:
  FlushToZero();
  ~FlushToZero();
  FlushToZero(const FlushToZero&) = delete;
  FlushToZero& operator=(const FlushToZero&) = delete;

 private:
  uint32_t before_ = 0;
};

// Subnormals are kept for a scope, as the GPU's numerics want them (ops/gpu/reference.h); the mode before
// comes back.
class KeepSubnormals {
 public:
  KeepSubnormals();
  ~KeepSubnormals();
  KeepSubnormals(const KeepSubnormals&) = delete;
  KeepSubnormals& operator=(const KeepSubnormals&) = delete;

 private:
  uint32_t before_ = 0;
};

}  // namespace kvasir::ops
