// Loops that do nothing but multiply and add in registers: the most that one core can do with an instruction.
#pragma once

#include <cstdint>
#include <vector>

namespace kvasir::bench {

// What is multiplied; sums are fp32, fp32 and int32.
enum class Product : uint8_t { kFp32, kBf16, kInt8 };

// "fp32", "bf16", "int8"
const char* product_name(Product product);

// One instruction (or chain of instructions) and the loop around it.
struct PeakLoop {
  Product product;
  int vector_bits;
  const char* instruction;  // what the loop is made of
  const char* needs;        // the CPU feature, by the name that /proc/cpuinfo has
  bool supported;     // by this CPU and operating system; run() otherwise dies of an illegal instruction
  double operations;  // of one round; a product and its addition count as two
  void (*run)(int64_t rounds);  // thread-safe. REQUIRES: supported, rounds >= 1
};

// Every loop that this program has for this kind of machine; empty where it has none. Tiles of AMX are not
// among them.
std::vector<PeakLoop> peak_loops();

}  // namespace kvasir::bench
