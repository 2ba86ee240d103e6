#include "model/files/rope_tables.h"

namespace kvasir {

ops::RopeTable rope_table(const Rope& rope, uint32_t max_positions) {
  ops::RopeSpec of;
  of.max_positions = max_positions;
  of.head_dim = rope.dim;
  of.freq_base = static_cast<double>(rope.base);
  of.linear_factor = static_cast<double>(rope.linear_factor);
  const bool is_long =
      !rope.long_divisors.empty() && max_positions > static_cast<uint32_t>(rope.original_context);
  of.freq_factors = is_long ? rope.long_divisors : rope.divisors;
  of.attention_factor = static_cast<double>(rope.attention_factor);
  return ops::make_rope_table(of);
}

}  // namespace kvasir
