// The id within which the bits of an output are promised. It is part of every block hash.
#pragma once

#include <string>

namespace kvasir {

// Raised by every change of a kernel's arithmetic, for example of a summation order.
constexpr int kNumericsVersion = 3;

struct NumericsId {
  std::string arithmetic;       // "fma", see ops/numerics.h
  std::string weight_types;     // sorted and joined, such as "q4_1+q8_0"
  std::string activation_type;  // the rows that products take: "int8", "bf16", "bf16+int8", "f32"
  std::string kv_type;
  int tensor_parallel = 1;

  // Such as "kvasir-3/fma/q4_1+q8_0/act-int8/kv-bf16/tp1".
  std::string to_string() const {
    return "kvasir-" + std::to_string(kNumericsVersion) + "/" + arithmetic + "/" + weight_types + "/act-" +
           activation_type + "/kv-" + kv_type + "/tp" + std::to_string(tensor_parallel);
  }
};

}  // namespace kvasir
