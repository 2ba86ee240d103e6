// How long requests are.
#pragma once

#include <cstdint>

namespace kvasir {

struct Lengths {
  int64_t prompt = 1;  // tokens
  int64_t output = 1;  // tokens
  friend bool operator==(const Lengths&, const Lengths&) = default;
};

// The length times `scale`, to the nearest token, and at least one.
int64_t scale_length(int64_t length, double scale);
Lengths scale_lengths(const Lengths& lengths, double scale);

}  // namespace kvasir
