#include "ops/gpu/leaf_work.h"

#include <algorithm>

#include "base/check.h"
#include "base/leaf_tokens.h"
#include "ops/gpu/layouts.h"

namespace kvasir::ops::gpu {
namespace {

int64_t first_leaf(const RowPlace& row, int32_t window) {
  const int64_t first = window > 0 ? std::max<int64_t>(0, int64_t{row.position} + 1 - window) : 0;
  return first / kLeafTokens;
}
int64_t last_leaf(const RowPlace& row) {
  return row.position / kLeafTokens;
}
int64_t records_of(const RowPlace& row, int32_t window) {
  return last_leaf(row) + 1 - first_leaf(row, window);
}

}  // namespace

LeafPlan plan_leaves(std::span<RowPlace> rows, int32_t window, int32_t most_rows) {
  KV_CHECK(most_rows > 0, "most_rows={}", most_rows);
  LeafPlan plan;
  for (RowPlace& row : rows) {
    row.first_record = plan.records - first_leaf(row, window);
    plan.records += records_of(row, window);
  }
  for (size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
    while (end < rows.size() && rows[end].slice == rows[begin].slice) ++end;
    size_t from = begin;  // rows before it have their last leaf behind them
    for (int64_t leaf = first_leaf(rows[begin], window); leaf <= last_leaf(rows[end - 1]); ++leaf) {
      while (last_leaf(rows[from]) < leaf) ++from;
      size_t to = from;
      while (to < end && first_leaf(rows[to], window) <= leaf) ++to;
      for (size_t r = from; r < to; r += static_cast<size_t>(most_rows)) {
        const size_t count = std::min(to - r, static_cast<size_t>(most_rows));
        plan.work.push_back(
            {static_cast<int32_t>(r), static_cast<int32_t>(count), static_cast<int32_t>(leaf)});
      }
    }
  }
  return plan;
}

std::vector<int32_t> pass_ends(std::span<const RowPlace> rows, int32_t window, int64_t most_records) {
  std::vector<int32_t> ends;
  int64_t records = 0;  // of the pass at hand
  for (size_t first = 0, end = 0; first < rows.size(); first = end) {
    end = std::min(rows.size(), first + kTileRows);
    int64_t more = 0;
    for (size_t r = first; r < end; ++r) more += records_of(rows[r], window);
    if (first > 0 && records + more > most_records) {
      ends.push_back(static_cast<int32_t>(first));
      records = 0;
    }
    records += more;
  }
  if (!rows.empty()) ends.push_back(static_cast<int32_t>(rows.size()));
  return ends;
}

}  // namespace kvasir::ops::gpu
