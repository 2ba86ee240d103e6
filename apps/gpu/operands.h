// Operands for the check of instructions: what models have, and what breaks models of arithmetic.
#pragma once

#include <cstdint>
#include <vector>

namespace kvasir::gpu_program {

// Kinds of problems, and their names.
constexpr int kOperandKinds = 12;
const char* operand_kind(int kind);

// Problems of one kind: see cuda::FormProblems for the order of elements.
struct Operands {
  std::vector<uint16_t> a;
  std::vector<uint16_t> b;
  std::vector<float> c;
};
Operands make_operands(int kind, int problems, int rows, int columns, int k, uint64_t seed);

}  // namespace kvasir::gpu_program
