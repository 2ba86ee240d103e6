#include "model/files/pair_order.h"

namespace kvasir {

std::vector<int64_t> pair_order(const ModelSpec& spec, int64_t rows) {
  if (!spec.split_pairs) return {};
  std::vector<int64_t> order(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t in_head = r % spec.head_dim, turned = spec.ropes[0].dim;
    const int64_t from = in_head >= turned ? in_head : in_head / 2 + in_head % 2 * (turned / 2);
    order[static_cast<size_t>(r)] = r - in_head + from;
  }
  return order;
}

}  // namespace kvasir
