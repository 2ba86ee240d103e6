// The least CPU that this program is compiled for. On x86-64 that is the level x86-64-v2 of the System V ABI
// (Intel's Nehalem of 2009, AMD's Bulldozer of 2011); kernels for wider instruction sets are chosen at run
// time (ops/cpu/isa.h). A program that links kvasir_cpu_floor ends on a lesser CPU with a message, not with
// an illegal instruction.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace kvasir {

// ECX of the leaves of CPUID that name the features of x86-64-v2.
struct CpuidWords {
  uint32_t basic;     // of leaf 1
  uint32_t extended;  // of leaf 0x80000001
};

// Writes to `out` the x86-64-v2 features missing from a CPU with these words, separated by spaces.
// Returns its length, 0 if none is missing. REQUIRES: size > 0; names that have no room are left out.
size_t missing_cpu_features(const CpuidWords& words, char* out, size_t size);

// If features are missing, ends the process with exit code 1 and a message on standard error that names them.
// It runs by itself before the constructors of static objects.
void require_cpu_floor(const CpuidWords& words);

}  // namespace kvasir
