// The RoPE table: angles in double, stored as floats.
#include "ops/rope_table.h"

#include "base/check.h"
#include "ops/det_math.h"

namespace kvasir::ops {

RopeTable make_rope_table(const RopeSpec& spec) {
  KV_CHECK(spec.max_positions > 0 && spec.head_dim > 0 && spec.head_dim % 2 == 0,
           "max_positions={} head_dim={}", spec.max_positions, spec.head_dim);
  KV_CHECK(spec.freq_base > 0 && spec.linear_factor > 0, "freq_base={} linear_factor={}", spec.freq_base,
           spec.linear_factor);
  RopeTable table;
  table.max_positions = spec.max_positions;
  table.half = spec.head_dim / 2;
  KV_CHECK(spec.freq_factors.empty() || static_cast<int64_t>(spec.freq_factors.size()) == table.half,
           "freq_factors={} half={}", spec.freq_factors.size(), table.half);
  std::vector<double> frequency(static_cast<size_t>(table.half));
  for (int64_t i = 0; i < table.half; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(spec.head_dim);
    double f = det_pow(spec.freq_base, exponent);
    if (!spec.freq_factors.empty()) f /= static_cast<double>(spec.freq_factors[static_cast<size_t>(i)]);
    frequency[static_cast<size_t>(i)] = f;
  }
  table.cos.resize(static_cast<size_t>(spec.max_positions * table.half));
  table.sin.resize(table.cos.size());
  size_t out = 0;
  for (int64_t p = 0; p < spec.max_positions; ++p) {
    const double position = static_cast<double>(p) / spec.linear_factor;
    for (double f : frequency) {
      table.cos[out] = static_cast<float>(det_cos(position * f) * spec.attention_factor);
      table.sin[out] = static_cast<float>(det_sin(position * f) * spec.attention_factor);
      ++out;
    }
  }
  return table;
}

}  // namespace kvasir::ops
