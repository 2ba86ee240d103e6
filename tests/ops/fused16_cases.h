// Fixed cases by which fused16 is compared: with the published model of the instruction
// (tests/golden/fused16.txt), with its vector form, and with the instructions of a device.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/cpu/isa.h"
#include "ops/gpu/fused16.h"

namespace kvasir::ops {

struct Fused16Case {
  float accumulator;
  uint16_t a[kFusedProducts];
  uint16_t b[kFusedProducts];
};

// Kinds of cases, which take turns: index modulo this.
constexpr uint64_t kFused16Kinds = 12;

// The case of an index: values as models have them, values of the whole range, cancellations, sums whose last
// places are cut, results about the smallest normal and the largest number, zeros of either sign, subnormals,
// infinities and what is not a number. tools/make_mma_goldens.py makes the same ones. Pure.
Fused16Case fused16_case(uint64_t index);

// Every instruction set that this CPU has.
std::vector<IsaClass> supported_sets();

}  // namespace kvasir::ops
