#include "apps/bench/lengths.h"

#include <algorithm>
#include <cmath>

namespace kvasir {

int64_t scale_length(int64_t length, double scale) {
  return std::max<int64_t>(1, std::llround(static_cast<double>(length) * scale));
}

Lengths scale_lengths(const Lengths& lengths, double scale) {
  return {scale_length(lengths.prompt, scale), scale_length(lengths.output, scale)};
}

}  // namespace kvasir
