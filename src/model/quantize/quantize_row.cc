#include "model/quantize/quantize_row.h"

#include <cfenv>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "model/quantize/group_fit.h"
#include "model/quantize/search_blocks.h"

namespace kvasir {
namespace {

// While it lives, rounding is to nearest even and subnormals are kept, whatever the thread has set.
class DefaultFloats {
 public:
  DefaultFloats() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloats() { std::fesetenv(&before_); }
  DefaultFloats(const DefaultFloats&) = delete;
  DefaultFloats& operator=(const DefaultFloats&) = delete;

 private:
  std::fenv_t before_ = {};
};

Status too_large(ops::WeightType type, size_t index, float value) {
  return error(ErrorCode::kInvalidArgument, "value {} ({}) is too large for {}", index, value,
               ops::weight_type_name(type));
}

Status quantize_16_bits(ops::WeightType type, std::span<const float> row, std::byte* out) {
  const bool f16 = type == ops::WeightType::kF16;
  const uint16_t infinite = f16 ? 0x7C00 : 0x7F80;
  for (size_t i = 0; i < row.size(); ++i) {
    const uint16_t bits = f16 ? ops::f32_to_f16(row[i]) : ops::f32_to_bf16(row[i]);
    if ((bits & infinite) == infinite) return too_large(type, i, row[i]);
    std::memcpy(out + 2 * i, &bits, 2);
  }
  return {};
}

bool found_by_search(ops::WeightType type) {
  return ops::block_values(type) > 32 || type == ops::WeightType::kIq4Nl;
}

}  // namespace

Status quantize_row(ops::WeightType type, std::span<const float> row, std::byte* out) {
  for (size_t i = 0; i < row.size(); ++i) {
    if (std::isfinite(row[i])) continue;
    return error(ErrorCode::kInvalidArgument, "value {} is {}", i, std::isnan(row[i]) ? "NaN" : "infinite");
  }
  if (type == ops::WeightType::kF32) {
    std::memcpy(out, row.data(), row.size_bytes());
    return {};
  }
  if (!ops::is_quantized(type)) return quantize_16_bits(type, row, out);
  const auto block = static_cast<size_t>(ops::block_values(type));
  KV_CHECK(row.size() % block == 0, "type={} values={}", ops::weight_type_name(type), row.size());
  const size_t bytes = ops::row_bytes(type, ops::block_values(type));
  const bool search = found_by_search(type);
  const DefaultFloats floats;
  for (size_t i = 0; i < row.size(); i += block) {
    const std::span<const float> x = row.subspan(i, block);
    auto* to = reinterpret_cast<uint8_t*>(out + i / block * bytes);
    const size_t largest = largest_in(x);
    const bool fits =
        search ? std::fabs(x[largest]) <= kLargestOfSearch && quantize_by_search(type, x.data(), to)
               : quantize_plain_block(type, x.data(), to);
    if (!fits) return too_large(type, i + largest, x[largest]);
  }
  return {};
}

}  // namespace kvasir
