// Many rows at once, on several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/files/tensor_rows.h"
#include "ops/numerics.h"

namespace kvasir {

// Rows of one type, as they lie in a file, or as they are made from what lies there.
struct StoredRows {
  ops::WeightType type = ops::WeightType::kF32;
  const std::byte* data = nullptr;
  int64_t columns = 0;
  const TensorRows* made = nullptr;  // goes before `data`
  int64_t first_made = 0;
};

// Writes rows [first, first + count) as rows of `type` to `out`: row i is row order[i] of `from`, or row i if
// `order` is empty. Rows that have the type already are copied as they are. The bytes do not depend on the
// number of threads; the threads are started and joined here. kInvalidArgument: a value that `type` cannot
// hold, the first of them, as "row 3: value 17 is NaN", the row being that of the result. REQUIRES: columns
// are whole blocks of both types; threads > 0.
Status quantize_rows(const StoredRows& from, const std::vector<int64_t>& order, int64_t first, int64_t count,
                     ops::WeightType type, int threads, std::byte* out);

}  // namespace kvasir
