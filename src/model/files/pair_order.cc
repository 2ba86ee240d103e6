#include "model/files/pair_order.h"

#include <algorithm>

namespace kvasir {

std::vector<int64_t> pair_order(const ModelSpec& spec, int32_t layer, int64_t rows) {
  if (!spec.split_pairs) return {};
  const int32_t head_dim = spec.heads_of(layer).head_dim;
  const auto rope = static_cast<size_t>(std::max(0, spec.layer(layer).rope));
  std::vector<int64_t> order(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t in_head = r % head_dim, turned = spec.ropes[rope].dim;
    const int64_t from = in_head >= turned ? in_head : in_head / 2 + in_head % 2 * (turned / 2);
    order[static_cast<size_t>(r)] = r - in_head + from;
  }
  return order;
}

}  // namespace kvasir
