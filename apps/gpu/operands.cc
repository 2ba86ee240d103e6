#include "apps/gpu/operands.h"

#include <array>
#include <bit>

#include "apps/gpu/workers.h"
#include "exec/cuda/synthetic.h"

namespace kvasir::gpu_program {
namespace {

enum Kind {
  kOrdinary,
  kAnyBits,
  kWholeRange,
  kCancelling,
  kCancelledAccumulator,
  kSmallest,
  kSubnormalAndLarge,
  kSubnormalAccumulators,
  kCorners,
  kCutEdges,
  kOneProduct,
  kOverflow
};

constexpr std::array<const char*, kOperandKinds> kNames = {"ordinary",
                                                           "any bits",
                                                           "whole range",
                                                           "cancelling products",
                                                           "cancelled accumulator",
                                                           "smallest results",
                                                           "subnormal times large",
                                                           "subnormal accumulators",
                                                           "corners",
                                                           "cut edges",
                                                           "one product",
                                                           "overflow"};

class Draws {
 public:
  Draws(uint64_t seed, uint64_t stream) : seed_(seed * 1'000'003 + stream) {}
  uint64_t bits() { return cuda::mixed_bits(seed_, next_++); }
  uint32_t between(uint32_t low, uint32_t high) {
    return low + static_cast<uint32_t>((bits() >> 11) % (high - low + 1));
  }
  // A bf16 with an exponent field of [low, high] and any sign and fraction.
  uint16_t element(uint32_t low, uint32_t high) {
    return static_cast<uint16_t>((bits() & 0x807F) | between(low, high) << 7);
  }
  float accumulator(uint32_t low, uint32_t high) {
    return std::bit_cast<float>(static_cast<uint32_t>((bits() & 0x807FFFFF) | between(low, high) << 23));
  }
  // Zeros, the ends of the subnormals and of the normals, one, infinity; with either sign.
  uint16_t corner() {
    constexpr std::array<uint16_t, 8> kCorners = {0x0000, 0x0001, 0x007F, 0x0080,
                                                  0x0081, 0x3F80, 0x7F7F, 0x7F80};
    return static_cast<uint16_t>(kCorners[bits() % 8] | (bits() & 0x8000));
  }
  uint16_t signed_zero() { return static_cast<uint16_t>(bits() & 0x8000); }

 private:
  uint64_t seed_;
  uint64_t next_ = 0;
};

// Element k of a row. left: of A; `before` is the element at k - 1.
uint16_t element_of(Draws& draws, int kind, bool left, int k, uint16_t before) {
  const bool odd = k % 2 == 1;
  switch (kind) {
    case kAnyBits:
      return static_cast<uint16_t>(draws.bits());
    case kWholeRange:
      return draws.element(0, 254);
    case kCancelling:
      if (!odd) return draws.element(110, 144);
      return static_cast<uint16_t>(left ? before ^ 0x8000u : before ^ (draws.bits() % 4));
    case kSmallest:
      return draws.element(58, 66);
    case kSubnormalAndLarge:
      return odd == left ? draws.element(0, 1) : draws.element(240, 254);
    case kSubnormalAccumulators:
      return left ? draws.signed_zero() : draws.element(0, 254);
    case kCorners:
      return draws.corner();
    case kCutEdges:
      return left ? draws.element(126, 127) : draws.element(96, 127);
    // Of these only one of a step is not zero; which one differs from step to step.
    case kOneProduct:
      return left && k % 16 != k / 16 * 5 % 16 ? draws.signed_zero() : draws.element(120, 134);
    case kOverflow:
      return draws.element(186, 191);
    default:
      return draws.element(120, 134);
  }
}

float accumulator_of(Draws& draws, int kind, const uint16_t* a, const uint16_t* b) {
  const auto value = [](uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); };
  switch (kind) {
    case kAnyBits:
      return std::bit_cast<float>(static_cast<uint32_t>(draws.bits()));
    case kWholeRange:
      return draws.accumulator(0, 254);
    case kCancelledAccumulator: {
      double sum = 0;
      for (int i = 0; i < 16; ++i) sum += static_cast<double>(value(a[i])) * value(b[i]);
      return static_cast<float>(-sum);
    }
    case kSmallest:
      return draws.accumulator(0, 6);
    case kSubnormalAccumulators:
      return draws.accumulator(0, 1);
    case kCorners:
      return value(draws.corner());
    case kCutEdges:
      return draws.accumulator(96, 130);
    case kOneProduct:
      return draws.accumulator(90, 164);
    case kOverflow:
      return draws.accumulator(240, 254);
    default:
      return draws.accumulator(112, 142);
  }
}

}  // namespace

const char* operand_kind(int kind) {
  return kNames.at(static_cast<size_t>(kind));
}

Operands make_operands(int kind, int problems, int rows, int columns, int k, uint64_t seed) {
  const auto size = [&](int64_t each) { return static_cast<size_t>(problems * each); };
  Operands o{std::vector<uint16_t>(size(rows * k)), std::vector<uint16_t>(size(columns * k)),
             std::vector<float>(size(rows * columns))};
  on_all_cores(problems, [&](int64_t problem) {
    Draws draws(seed, static_cast<uint64_t>(problem));
    uint16_t* a = o.a.data() + problem * rows * k;
    uint16_t* b = o.b.data() + problem * columns * k;
    for (int i = 0; i < rows * k; ++i) a[i] = element_of(draws, kind, true, i % k, i > 0 ? a[i - 1] : 0);
    for (int i = 0; i < columns * k; ++i) b[i] = element_of(draws, kind, false, i % k, i > 0 ? b[i - 1] : 0);
    float* c = o.c.data() + problem * rows * columns;
    for (int i = 0; i < rows * columns; ++i) {
      c[i] = accumulator_of(draws, kind, a + i / columns * k, b + i % columns * k);
    }
  });
  return o;
}

}  // namespace kvasir::gpu_program
